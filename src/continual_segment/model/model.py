"""Model: a folder with one frozen encoder and any number of organ packs.

    model.json               sizes, preparation, and the sha256 of every other file
    encoder.safetensors
    body_parts.safetensors   regressor of body parts, if it was learned
    packs/<name>.pack

Only what model.json lists is part of the model, and model.json is replaced atomically and last, so
no reader ever sees half of a pack. It lists packs by name, so the order of installation leaves no trace
and removing a pack restores every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.errors import ModelError
from continual_segment.files.atomic import atomic_path, write_json
from continual_segment.files.records import as_record
from continual_segment.model.admission import admit
from continual_segment.model.checks import check_sha256, damage_named
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.model.pack import FORMATS, SUFFIX, OrganPack, format_of, network_from_json
from continual_segment.model.starter import model_folder, refuse_starter
from continual_segment.names import check_file_name, printable
from continual_segment.networks import GeneralEncoder, NetworkConfig
from continual_segment.organs import Organ, check_table, in_table, with_distinct_ids

DESCRIPTION = "model.json"
LONGEST_REASON = 400
ENCODER = "encoder.safetensors"
RESTORE = "Restore the model from a copy."
LONGEST_WINDOW = 1024
"""Voxels along one axis."""


@dataclass(frozen=True)
class Model:
    """A model folder as it was when opened."""

    folder: Path
    network: NetworkConfig
    prepare: PrepareConfig
    """How scans are made ready for this encoder."""
    window: tuple[int, int, int]
    """Voxels (z, y, x) the encoder was trained on and segments at a time."""
    encoder_fingerprint: str
    files: dict[str, str]
    """sha256 of every file, by its path in the folder."""

    @classmethod
    def create(
        cls,
        folder: Path,
        encoder: GeneralEncoder,
        prepare: PrepareConfig,
        window: tuple[int, int, int],
        first_pack: OrganPack,
        more: Mapping[str, bytes] | None = None,
    ) -> Model:
        """A new model: an encoder, the pack it was trained with, `more` files by name.

        It appears as a whole or not at all.
        """
        check_free(folder)
        admit(first_pack, encoder)
        contents = {ENCODER: save(encoder.state_dict()), pack_file(first_pack.name): first_pack.to_bytes()}
        contents |= more or {}
        network = encoder.config.described()
        described = {
            "format": format_of(network) if prepare.is_window else 2,
            "network": network,
            "prepare": prepare.described(),
            "window": window,
            "encoder_fingerprint": encoder_fingerprint(encoder, prepare),
            "files": {name: sha256(content) for name, content in sorted(contents.items())},
        }
        _build(folder, contents, described)
        return cls.open(folder)

    def copy(self, folder: Path | str) -> Model:
        """The same model in a new folder, to add packs to; return the copy."""
        folder = Path(folder)
        check_free(folder)
        contents = {name: (self.folder / name).read_bytes() for name in self.files}
        _build(folder, contents, json.loads((self.folder / DESCRIPTION).read_text()))
        return Model.open(folder)

    @classmethod
    def open(cls, folder: Path | str) -> Model:
        """Read a model folder, or the package's model for "starter"; ModelError if it is none or damaged."""
        folder = model_folder(folder)
        path = folder / DESCRIPTION
        try:
            with damage_named(path, RESTORE):
                described = json.loads(path.read_text())
                format_ = described["format"]
        except (FileNotFoundError, NotADirectoryError) as error:
            what = "is no model folder (no model.json in it)" if folder.exists() else "does not exist"
            raise ModelError(
                f"{folder} {what}. `conseg learn DATASET -m NEW_FOLDER` makes a model."
            ) from error
        if format_ not in FORMATS:
            found, known = printable(str(format_)), " and ".join(map(str, FORMATS))
            raise ModelError(
                f"{path}: a model of format {found}; this version reads {known}. Update continual-segment."
            )
        with damage_named(path, RESTORE):
            return cls._from(folder, described)

    @classmethod
    def _from(cls, folder: Path, described: dict[str, Any]) -> Model:
        """The model of a description that may come from a stranger."""
        network = network_from_json(described["network"])
        window = tuple(described["window"])
        if not all(type(length) is int and 1 <= length <= LONGEST_WINDOW for length in window):
            raise ValueError(f"a window has from 1 to {LONGEST_WINDOW} voxels along each axis, not {window}")
        network.check_window(window)
        check_sha256(described["encoder_fingerprint"], "encoder's fingerprint")
        return cls(
            folder=folder,
            network=network,
            prepare=as_record(described["prepare"], PrepareConfig, "prepare", ModelError),
            window=window,
            encoder_fingerprint=described["encoder_fingerprint"],
            files=checked_files(described["files"]),
        )

    @property
    def pack_names(self) -> tuple[str, ...]:
        """Names of the installed packs, in alphabetical order."""
        return tuple(sorted(Path(name).stem for name in self.files if name.endswith(SUFFIX)))

    @cached_property
    def organs(self) -> dict[str, Organ]:
        """Every organ of every pack, by name, with its id in this model: no two have the same."""
        return with_distinct_ids(self._stored_organs.values())

    @cached_property
    def _stored_organs(self) -> dict[str, Organ]:
        """The same with the ids of the pack files, which two organs outside our table may share."""
        return {organ.name: organ for name in self.pack_names for organ in self.pack(name).organs}

    def organs_of(self, pack: OrganPack) -> tuple[Organ, ...]:
        """The organs of one of the packs, in the order of its channels, with their ids in this model."""
        if all(in_table(organ) for organ in pack.organs):  # without reading all other packs
            return pack.organs
        return tuple(replace(organ, id=self.organs[organ.name].id) for organ in pack.organs)

    def load_encoder(self) -> GeneralEncoder:
        """The frozen encoder, checked against its fingerprint."""
        path = self.folder / ENCODER
        encoder = self.network.build_encoder()
        try:
            encoder.load_state_dict(load_file(path))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise ModelError(
                f"{path} is missing or damaged ({printable(str(error), LONGEST_REASON)}). {RESTORE}"
            ) from error
        if encoder_fingerprint(encoder, self.prepare) != self.encoder_fingerprint:
            raise ModelError(
                f"{path}: these are not the weights the model was made with. Restore the model from a copy."
            )
        return encoder.freeze()

    def pack_path(self, name: str) -> Path:
        """The file of an installed pack; ModelError lists the packs if there is none of this name."""
        if name not in self.pack_names:
            known = ", ".join(self.pack_names) or "none"
            raise ModelError(f"{self.folder} has no pack '{name}'. Its packs: {known}.")
        return self.folder / pack_file(name)

    def pack(self, name: str) -> OrganPack:
        """Read an installed pack and check that it belongs to this encoder."""
        pack = OrganPack.read(self.pack_path(name))
        self._check_encoder(pack)
        return pack

    def add(self, pack: OrganPack | str | Path) -> Model:
        """Install a pack or pack file once it has been checked on the encoder; return the model with it."""
        pack = pack if isinstance(pack, OrganPack) else OrganPack.read(pack)
        self._check_fits(pack)
        admit(pack, self.load_encoder())
        with self._locked() as current:
            current._check_fits(pack)
            content = pack.to_bytes()
            path = pack_file(pack.name)
            with atomic_path(self.folder / path) as temporary:
                temporary.write_bytes(content)
            return current._with_files(current.files | {path: sha256(content)})

    def add_file(self, name: str, content: bytes) -> Model:
        """Add what is neither encoder nor pack, once; return the model with it."""
        checked_files({name: sha256(content)})
        with self._locked() as current:
            if name in current.files:
                raise ModelError(f"{self.folder} has {name} already. Nothing learned is overwritten.")
            (self.folder / name).parent.mkdir(exist_ok=True)
            with atomic_path(self.folder / name) as temporary:
                temporary.write_bytes(content)
            return current._with_files(current.files | {name: sha256(content)})

    def remove(self, name: str) -> Model:
        """Take a pack away; every other byte of the folder is as before it was added."""
        with self._locked() as current:
            path = current.pack_path(name)
            kept = {key: sha for key, sha in current.files.items() if self.folder / key != path}
            smaller = current._with_files(kept)
            path.unlink(missing_ok=True)
            return smaller

    def export(self, name: str, path: str | Path) -> None:
        """Copy a pack out, to be added to any model with the same encoder."""
        with atomic_path(path) as temporary:
            shutil.copyfile(self.pack_path(name), temporary)

    def _check_encoder(self, pack: OrganPack) -> None:
        if pack.encoder_fingerprint != self.encoder_fingerprint or pack.network != self.network:
            raise ModelError(
                f"Pack '{pack.name}' was trained on another encoder ({pack.encoder_fingerprint[:12]}) than "
                f"that of {self.folder} ({self.encoder_fingerprint[:12]}). Packs fit the encoder they were "
                "trained on: get one for this encoder, or learn its dataset here."
            )

    def _check_fits(self, pack: OrganPack) -> None:
        self._check_encoder(pack)
        if pack.name in self.pack_names:
            raise ModelError(
                f"{self.folder} has a pack '{pack.name}' already. Nothing learned is overwritten: choose "
                "another name, or remove the old pack first."
            )
        self.check_organs(pack.name, pack.organs)

    def check_organs(self, pack: str, organs: Sequence[Organ]) -> None:
        """Raise where an organ of a new pack has another id than in the packs here or in the organ table."""
        check_table(organs, ModelError)
        for organ in organs:
            if (known := self._stored_organs.get(organ.name, organ)).id != organ.id:
                raise ModelError(
                    f"Pack '{pack}' gives '{organ.name}' the id {organ.id}, which is {known.id} in "
                    f"{self.folder}. Learn its dataset again."
                )
        with_distinct_ids([*self._stored_organs.values(), *organs])  # raises where they are too many

    def _with_files(self, files: dict[str, str]) -> Model:
        path = self.folder / DESCRIPTION
        described: dict[str, Any] = json.loads(path.read_text())
        write_json(path, described | {"files": dict(sorted(files.items()))})
        return Model.open(self.folder)

    @contextmanager
    def _locked(self) -> Iterator[Model]:
        """The model as it is now on disk, with every other writer kept out."""
        refuse_starter(self.folder)
        # beside the folder, so that the folder itself holds nothing but the model
        lock = FileLock(self.folder.with_name(f".{self.folder.name}.lock"), timeout=30)
        try:
            with lock:
                yield Model.open(self.folder)
        except Timeout as error:
            raise ModelError(
                f"{self.folder}: another process has been changing this model for 30 seconds. Wait for it, "
                "then run the command again."
            ) from error


def check_free(folder: Path) -> None:
    """Raise where a new model cannot have this folder."""
    refuse_starter(folder)
    if folder.exists():
        raise ModelError(f"{folder} exists already. Choose another name, or delete it.")


def _build(folder: Path, contents: Mapping[str, bytes], described: dict[str, Any]) -> None:
    """Write a model; its folder appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (building / "packs").mkdir()
        for name, content in contents.items():
            (building / name).parent.mkdir(exist_ok=True)
            with atomic_path(building / name) as temporary:
                temporary.write_bytes(content)
        write_json(building / DESCRIPTION, described)
        building.chmod(0o777 & ~_umask())  # mkdtemp makes folders that only their owner can read
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def pack_file(name: str) -> str:
    """The file of a pack in the folder."""
    return f"packs/{name}{SUFFIX}"


def checked_files(files: dict[str, str]) -> dict[str, str]:
    """What model.json lists; raises where a key is no path of a file, or of one in a folder, of the model."""
    for path, sha in files.items():
        parts = path.split("/")
        for part in parts:
            check_file_name(part, "The file", ModelError)
        if len(parts) > 2 or (path.endswith(SUFFIX) and path != pack_file(PurePosixPath(path).stem)):
            raise ModelError(f"{printable(repr(path))} is no place for a file of a model.")
        check_sha256(sha, f"checksum of {path}")
    return files


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encoder_fingerprint(encoder: GeneralEncoder, prepare: PrepareConfig) -> str:
    """sha256 of all that decides the features a decoder reads: weights, sizes and preparation."""
    return fingerprint_data(
        {
            "weights": fingerprint_tensors(encoder.state_dict()),
            "network": encoder.config.described(),
            "prepare": prepare.described(),
        }
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
