"""demo: the continual protocol on phantoms, from nothing to a report."""

from __future__ import annotations

import json
from pathlib import Path

from continual_segment.config import load_preset
from continual_segment.data.raw import RawDataset
from continual_segment.errors import ConfigError
from continual_segment.evaluation.report import write_report
from continual_segment.files.atomic import write_json
from continual_segment.phantom import DATASETS, dataset_folder, write_phantom
from continual_segment.protocol import ProtocolDataset, run_protocol

ORDER = ("totalseg", "chest", "headneck", "esophagus")


def demo(
    folder: Path, preset: str = "demo", cases: int = 24, held_out: int | None = 3, seed: int = 0
) -> Path:
    """Learn four phantom datasets in `folder`, write `folder`/report.html and return its path."""
    config = load_preset(preset)
    spacing_mm = config.prepare.spacing_mm
    claim(folder, {"preset": preset, "cases": cases, "seed": seed})
    datasets = {}
    for name in ORDER:
        raw = dataset_folder(folder / "raw", name)
        if not (raw / "dataset.json").exists():  # written last; a resumed demo goes on with the same files
            write_phantom(folder / "raw", name, cases, seed, spacing_mm, organs="demo")
        datasets[name] = ProtocolDataset(RawDataset.open(raw, progress=False), anomalies(name))
    report = run_protocol(folder, datasets, config, held_out)
    return write_report(folder, report, commands(folder, preset, cases, seed, spacing_mm))


def claim(folder: Path, settings: dict[str, object]) -> None:
    """Note the settings in a new folder; refuse one that holds a demo of other settings."""
    note = folder / "demo.json"
    if note.exists() and (found := json.loads(note.read_text())) != settings:
        raise ConfigError(
            f"{folder} holds a demo with {found}, not {settings}. Choose another --out, or delete it."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(note, settings)


def anomalies(name: str) -> tuple[str, ...]:
    return ("esophageal tumour",) if DATASETS[name].tumour else ()


def commands(
    folder: Path, preset: str, cases: int, seed: int, spacing_mm: tuple[float, float, float]
) -> list[str]:
    """What a user would type for the same result, step by step."""
    spacing = " ".join(f"{size:g}" for size in spacing_mm)
    model, raw, prepared = folder / "model", folder / "raw", folder / "prepared"
    lines = [f"conseg demo --out {folder} --cases {cases} --seed {seed} --preset {preset}", ""]
    for name in ORDER:
        root = dataset_folder(raw, name)
        extra = "".join(f" --anomaly '{kind}'" for kind in anomalies(name))
        lines += [
            f"conseg phantom {raw} --dataset {name} --organs demo --cases {cases} --seed {seed} "
            f"--spacing {spacing}",
            f"conseg prepare {root} -o {prepared / name} --preset {preset}",
            f"conseg learn {prepared / name} -m {model} --preset {preset} --name {name}{extra}",
        ]
    lines += [
        f"conseg verify {model}",
        f"conseg segment {root / 'imagesTr'} -m {model} -o {folder / 'segmented'}",
    ]
    return [*lines, f"conseg evaluate {folder / 'segmented'} {root} -o {folder / 'scores'}"]
