"""A DICOM node under load that is killed again and again: every series is answered exactly once.

    python benchmarks/node_load.py      # 200 series of 100 slices, 4 senders, 10 kills: minutes
    python benchmarks/node_load.py --series 6 --slices 12 --kills 4

`conseg listen` runs as a user starts it, with a small model of random weights. All slices of all series are
sent in random order by several processes at once, on loopback. The node and its worker get SIGKILL, half of
the times while it receives and half of the times while it segments and sends, and are started again. Senders
send again what was not answered with success, as PACS do. An archive counts what it gets. While slices are
sent, a series waits for hours before it counts as complete: one that is complete too early on a slow machine
would be answered again by right.

Exit code 0: each series has one result, made of all of its slices, and the node lists each as done.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np
from made_up import make_model
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, SegmentationStorage
from pynetdicom import AE, evt

from continual_segment.node.queue import Queue

SPACING_MM = (4.0, 12.0, 12.0)
START_SECONDS = 900.0
"""For a node to start, on a machine that does much else."""
WHILE_SENDING, AFTER_SENDING = 7200.0, 5.0
"""Seconds of silence after which a series is complete."""
CONFIG = """
folder = "node"
[listen]
port = {port}
health_port = 0
silence_seconds = {silence}
[limits]
free_disk_mb = 100
instances_per_minute = 1000000
[retries]
first_wait_seconds = 0.5
longest_wait_seconds = 5
segment = 5
[[destinations]]
name = "archive"
host = "127.0.0.1"
port = {archive}
ae_title = "ARCHIVE"
[[rules]]
model = ["model"]
segment = {{ overlap = 0.0 }}
"""


@dataclass(frozen=True)
class LoadConfig:
    """How much is sent, and how often the node is killed."""

    series: int = 200
    slices: int = 100
    senders: int = 4
    kills: int = 10
    """At least 2; half of them, rounded up, while slices are sent."""
    pixels: int = 32
    seconds: float = 7200.0
    """After which it is given up."""
    seed: int = 0


@dataclass
class LoadResult:
    """What was counted."""

    series_answered: int
    series_answered_twice: int
    """By results with different UIDs."""
    results_with_missing_slices: int
    same_result_stored_again: int
    """With the same UID and the same bytes: a kill between storing and noting it."""
    same_uid_other_bytes: int
    states: dict[str, int]
    killed_while: list[str]
    attempts_without_answer: int
    """C-STORE or association, while the node was down; the slice was sent again."""
    sending_seconds: float
    seconds: float
    problems: list[str] = field(default_factory=list)


def series_uid(number: int) -> str:
    return f"1.2.826.0.1.3680043.10.9999.1.{number + 1}"


def image(series: int, number: int, config: LoadConfig) -> Dataset:
    """One slice: a body with two dark lungs that differ from series to series."""
    rng = np.random.default_rng((config.seed, series, number))
    y, x = np.meshgrid(*[np.linspace(-1, 1, config.pixels)] * 2, indexing="ij")
    plane = np.where((y / 0.7) ** 2 + (x / 0.9) ** 2 < 1, 40.0, -1000.0)
    for side in (-0.35, 0.35):
        plane[(y / 0.45) ** 2 + ((x - side) / (0.2 + 0.002 * (series % 50))) ** 2 < 1] = -850
    plane += rng.normal(0, 15, plane.shape)
    data = Dataset()
    data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, f"{series_uid(series)}.{number + 1}"
    data.StudyInstanceUID, data.SeriesInstanceUID = f"{series_uid(series)}.0.1", series_uid(series)
    data.FrameOfReferenceUID = f"{series_uid(series)}.0.2"
    data.PatientName, data.PatientID, data.PatientBirthDate, data.PatientSex = "Load^Test", "LOAD", "", ""
    data.StudyDate, data.StudyTime, data.StudyID = "20260101", "120000", "1"
    data.AccessionNumber = data.ReferringPhysicianName = data.Manufacturer = ""
    data.Modality, data.ImageType, data.SeriesNumber = "CT", ["ORIGINAL", "PRIMARY", "AXIAL"], 1
    data.InstanceNumber, data.ImageOrientationPatient = number + 1, [1, 0, 0, 0, 1, 0]
    data.ImagePositionPatient = [0.0, 0.0, number * SPACING_MM[0]]
    data.PixelSpacing, data.SliceThickness = list(SPACING_MM[1:]), SPACING_MM[0]
    data.Rows = data.Columns = config.pixels
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
    data.RescaleSlope, data.RescaleIntercept, data.RescaleType = 1, 0, "HU"
    data.PixelData = np.rint(plane).astype(np.int16).tobytes()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    return data


def shares(config: LoadConfig) -> list[list[tuple[int, int]]]:
    """All slices in random order, dealt to the senders."""
    every = [(series, number) for series in range(config.series) for number in range(config.slices)]
    random.Random(config.seed).shuffle(every)
    return [every[sender :: config.senders] for sender in range(config.senders)]


def send_all(
    port: int,
    slices: list[tuple[int, int]],
    config: LoadConfig,
    accepted: Synchronized,
    repeated: Synchronized,
) -> None:
    """Send slices, each until it is answered with success; runs in a process of its own."""
    entity = AE(ae_title="SCANNER")
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = 60
    entity.add_requested_context(CTImageStorage, ExplicitVRLittleEndian)
    association: Any = None
    for which in slices:
        data = image(*which, config)
        while True:
            if association is None or not association.is_established:
                association = entity.associate("127.0.0.1", port, ae_title="CONSEG")
            if association.is_established and association.send_c_store(data).get("Status") == 0:
                break
            with repeated.get_lock():
                repeated.value += 1
            time.sleep(0.2)
        with accepted.get_lock():
            accepted.value += 1
    association.release()


class CountingArchive:
    """Keeps which result came for which series."""

    def __init__(self) -> None:
        self.results: list[tuple[str, str, int, int]] = []
        """UID, UID of its series, slices it refers to, hash of its bytes."""
        self.lock = threading.Lock()

    def store(self, event: Any) -> int:
        data = event.dataset
        source = data.ReferencedSeriesSequence[0]
        slices = len(source.ReferencedInstanceSequence)
        content = hash(bytes(event.request.DataSet.getvalue()))
        with self.lock:
            self.results.append((data.SOPInstanceUID, source.SeriesInstanceUID, slices, content))
        return 0

    @property
    def count(self) -> int:
        """Different results so far."""
        with self.lock:
            return len({uid for uid, *_ in self.results})

    @contextmanager
    def open(self) -> Iterator[int]:
        entity = AE(ae_title="ARCHIVE")
        entity.add_supported_context(SegmentationStorage)
        handlers = [(evt.EVT_C_STORE, self.store)]
        server = entity.start_server(("127.0.0.1", 0), block=False, evt_handlers=handlers)
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


class KillableNode:
    """`conseg listen` in a group of processes of its own."""

    def __init__(self, folder: Path, port: int, archive: int) -> None:
        self.folder, self.port, self.archive = folder, port, archive
        self.silence_seconds = WHILE_SENDING
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        settings = {"port": self.port, "archive": self.archive, "silence": self.silence_seconds}
        (self.folder / "node.toml").write_text(CONFIG.format(**settings))
        command = [
            sys.executable,
            "-m",
            "continual_segment.cli.main",
            "listen",
            str(self.folder / "node.toml"),
        ]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < end, "the node does not answer"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def states(self) -> dict[str, int]:
        queue = Queue(self.folder / "node" / "queue.sqlite", read_only=True)
        try:
            return queue.counts()
        finally:
            queue.close()


def run(config: LoadConfig, folder: Path, model: Path | None = None) -> LoadResult:
    """Send, kill and count; `folder` must be new."""
    folder.mkdir(parents=True)
    found = model or make_model(folder / "made", "light", 4, 1, (16, 32, 32), SPACING_MM)
    (folder / "model").symlink_to(found.resolve())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    archive = CountingArchive()
    with archive.open() as archive_port:
        node = KillableNode(folder, port, archive_port)
        try:
            return _load(config, node, archive)
        except TimeoutError as error:
            log = (folder / "log").read_text()[-4000:]
            raise TimeoutError(f"{error}: {node.states()}, {archive.count} results; {log}") from error
        finally:
            node.kill()


def _load(config: LoadConfig, node: KillableNode, archive: CountingArchive) -> LoadResult:
    started = time.monotonic()
    node.start()
    context = multiprocessing.get_context("spawn")
    accepted, repeated = context.Value("i", 0), context.Value("i", 0)
    senders = [
        context.Process(target=send_all, args=(node.port, share, config, accepted, repeated), daemon=True)
        for share in shares(config)
    ]
    for sender in senders:
        sender.start()
    early, late = (config.kills + 1) // 2, config.kills // 2
    total, end = config.series * config.slices, started + config.seconds
    killed = []
    for number in range(early):
        _wait(lambda goal=total * (number + 1) // (early + 1): accepted.value >= goal, end)
        killed.append(_kill(node))
    for sender in senders:
        sender.join(max(0.0, end - time.monotonic()))
        assert sender.exitcode == 0, f"a sender ended with {sender.exitcode}"
    sending = time.monotonic() - started
    node.silence_seconds = AFTER_SENDING
    for number in range(late):  # the first at once
        _wait(lambda goal=config.series * number // late: archive.count >= goal, end)
        killed.append(_kill(node))
    _wait(lambda: node.states().keys() <= {"done", "failed", "skipped"}, end)
    time.sleep(3)  # what else would come
    return _counted(config, node, archive, killed, repeated.value, sending, time.monotonic() - started)


def _wait(condition: Any, end: float) -> None:
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the load test took too long")
        time.sleep(0.05)


def _kill(node: KillableNode) -> str:
    """Kill and restart; what the series were doing just before."""
    before = ", ".join(f"{count} {state}" for state, count in node.states().items())
    node.kill()
    print(f"killed: {before}", file=sys.stderr, flush=True)
    node.start()
    return before


def _counted(
    config: LoadConfig,
    node: KillableNode,
    archive: CountingArchive,
    killed: list[str],
    repeated: int,
    sending: float,
    seconds: float,
) -> LoadResult:
    of_series: dict[str, set[str]] = {}
    contents: dict[str, set[int]] = {}
    for uid, series, _, content in archive.results:
        of_series.setdefault(series, set()).add(uid)
        contents.setdefault(uid, set()).add(content)
    times = Counter(uid for uid, *_ in archive.results)
    result = LoadResult(
        series_answered=len(of_series),
        series_answered_twice=sum(len(uids) > 1 for uids in of_series.values()),
        results_with_missing_slices=sum(slices != config.slices for _, _, slices, _ in archive.results),
        same_result_stored_again=sum(times.values()) - len(times),
        same_uid_other_bytes=sum(len(each) > 1 for each in contents.values()),
        states=node.states(),
        killed_while=killed,
        attempts_without_answer=repeated,
        sending_seconds=round(sending, 1),
        seconds=round(seconds, 1),
    )
    result.problems = problems(config, result)
    return result


def problems(config: LoadConfig, result: LoadResult) -> list[str]:
    """What is not as promised."""
    checks = {
        "series without an answer": config.series - result.series_answered,
        "series with two answers": result.series_answered_twice,
        "results that miss slices": result.results_with_missing_slices,
        "results that differ though their UID is the same": result.same_uid_other_bytes,
        "series that are not done": config.series - result.states.get("done", 0),
        "results stored again without a kill": max(0, result.same_result_stored_again - config.kills),
    }
    return [f"{count} {what}" for what, count in checks.items() if count]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = LoadConfig()
    for name in ("series", "slices", "senders", "kills", "pixels", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    parser.add_argument("--seconds", type=float, default=defaults.seconds)
    parser.add_argument("--out", type=Path, help="also write the counts to this JSON file")
    args = parser.parse_args()
    config = LoadConfig(**{name: getattr(args, name) for name in asdict(defaults)})
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, Path(folder) / "load")
    text = json.dumps(
        {"command": " ".join(sys.argv), "config": asdict(config), "found": asdict(result)}, indent=1
    )
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
