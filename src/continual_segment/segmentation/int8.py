"""Networks in int8: the cache of them beside a model, and the engine that runs them.

    MODEL.int8/KEY/network.xml, network.bin   a quantised network, as OpenVINO stores it
    MODEL.int8/KEY/network.json               Int8Record: what it was made of

`conseg quantise` makes the cache; the model itself never changes. The key is a fingerprint of all that a
quantised network is derived from, so that a network of another encoder or pack is never found. Where int8
cannot be used, float32 takes its place and a warning gives the reason.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from continual_segment.errors import ConfigError, ContinualSegmentError, ModelError
from continual_segment.files.atomic import atomic_path, write_json
from continual_segment.files.records import read_json
from continual_segment.model import Model
from continual_segment.model.fingerprint import fingerprint_data
from continual_segment.names import printable
from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.networks.heads import ProjectionHead
from continual_segment.segmentation.backends import EAGER, BackendName, Decode, Encode, Engine
from continual_segment.segmentation.openvino_runtime import Run, import_without_telemetry, start
from continual_segment.segmentation.predictions import PackProfile

log = logging.getLogger(__name__)

FORMAT = 1
NETWORK = "network.xml"
WEIGHTS = "network.bin"
RECORD = "network.json"
AGAIN = "Run `conseg quantise` on the model."


class Int8Unavailable(ContinualSegmentError):
    """Why int8 cannot be used."""


@dataclass(frozen=True)
class Int8Record:
    """What a quantised network was made of, and the checksum of its files."""

    sha256: str
    windows: int
    """That calibrated it."""
    openvino: str
    nncf: str
    """Versions."""


@dataclass(frozen=True)
class Int8Cache:
    """The quantised networks of one model."""

    folder: Path
    encoder: str
    """Fingerprint."""
    window: tuple[int, int, int]

    @classmethod
    def of(cls, model: Model) -> Int8Cache:
        place = model.folder.resolve()
        return cls(place.with_name(f"{place.name}.int8"), model.encoder_fingerprint, model.window)

    def place(self, pack: str = "", without_head: bool = False) -> Path:
        """Folder of the encoder, or of the decoder of the pack with this fingerprint."""
        made_of = {
            "format": FORMAT,
            "encoder": self.encoder,
            "window": self.window,
            "pack": pack,
            "without_head": without_head,
        }
        return self.folder / fingerprint_data(made_of)

    def write(
        self, place: Path, save: Callable[[Path], None], windows: int, versions: Mapping[str, str]
    ) -> None:
        """Store what `save` writes to the path of a network, in place of an earlier version."""
        with atomic_path(place) as unfinished:
            unfinished.mkdir()
            save(unfinished / NETWORK)
            record = Int8Record(sha256_of(unfinished), windows, **versions)
            write_json(unfinished / RECORD, asdict(record))
            shutil.rmtree(place, ignore_errors=True)  # a folder that is not empty cannot be replaced

    def read(self, ov: Any, place: Path, what: str) -> tuple[Any, str]:
        """OpenVINO's model in a folder, and its checksum; `what` names the network where it is missing."""
        if not place.is_dir():
            raise Int8Unavailable(f"{self.folder} has no int8 version of {what}. {AGAIN}")
        try:
            record = read_json(place / RECORD, Int8Record, ModelError, AGAIN)
            if sha256_of(place) != record.sha256:
                raise Int8Unavailable(f"{place} is damaged. Delete it and run `conseg quantise` again.")
            return ov.Core().read_model(place / NETWORK), record.sha256
        except (OSError, ModelError, RuntimeError) as error:  # OpenVINO raises RuntimeError
            raise Int8Unavailable(
                f"{place} cannot be read ({error}). Delete it and run `conseg quantise` again."
            ) from error


class Int8Engine:
    """Runs quantised networks; the decoder of a pack that has none runs in float32."""

    backend: BackendName = "int8"

    def __init__(self, cache: Int8Cache) -> None:
        self.ov = import_without_telemetry("openvino", "int8")
        self.cache = cache
        self.quantised: dict[str, str] = {}
        self._encode = self._start("encoder", cache.place(), "its encoder")

    def encoder(self, encoder: GeneralEncoder) -> Encode:
        return self._encode

    def decoder(self, decoder: Decoder | ProjectionHead, without_head: bool, profile: PackProfile) -> Decode:
        try:
            place = self.cache.place(profile.fingerprint, without_head)
            run = self._start(profile.name, place, f"the pack '{profile.name}'")
        except Int8Unavailable as reason:
            log.warning("%s Its decoder runs in float32.", reason)
            return EAGER.decoder(decoder, without_head, profile)
        return lambda features: run(*features)[0]

    def _start(self, name: str, place: Path, what: str) -> Run:
        network, checksum = self.cache.read(self.ov, place, what)
        try:
            run = one_by_one(start(self.ov, network))
        except RuntimeError as error:  # of OpenVINO
            raise Int8Unavailable(
                f"{place} cannot be compiled ({printable(str(error))}). Delete it and run "
                "`conseg quantise` again."
            ) from error
        self.quantised[name] = checksum
        return run


def int8_engine(model: Model) -> Engine:
    """int8 where this machine and the model's cache allow it; otherwise float32, with a warning."""
    try:
        if not has_vnni():
            raise Int8Unavailable("This CPU lacks VNNI, the instructions for int8.")
        return Int8Engine(Int8Cache.of(model))
    except (Int8Unavailable, ConfigError) as reason:
        log.warning("%s: backend eager (float32) in place of int8. %s", model.folder, reason)
        return EAGER


def has_vnni() -> bool:
    """Whether the CPU multiplies int8 and adds to int32 in one instruction.

    Without it, int8 gains less, and sums of two products are kept in 16 bits, which may overflow.
    """
    if hasattr(torch.cpu, "get_capabilities"):  # from torch 2.11 on
        found = torch.cpu.get_capabilities()
        return bool(found.get("avx512_vnni") or found.get("avx_vnni"))
    return torch.cpu._is_vnni_supported()


def one_by_one(run: Run) -> Run:
    """The same on a batch: quantised networks take one window."""

    def of_batch(*inputs: Tensor) -> tuple[Tensor, ...]:
        if len(inputs[0]) == 1:
            return run(*inputs)
        single = [run(*(each[index : index + 1] for each in inputs)) for index in range(len(inputs[0]))]
        return tuple(torch.cat(outputs) for outputs in zip(*single, strict=True))

    return of_batch


def sha256_of(place: Path) -> str:
    """Of a network and its weights."""
    digest = hashlib.sha256()
    for name in (NETWORK, WEIGHTS):
        with (place / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
