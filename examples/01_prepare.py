"""Prepare two datasets: from scans and labels as they lie on disk to what a network learns from.

Run the examples in order, in one folder; all they write goes to examples_out.
"""

from pathlib import Path

from continual_segment import RawDataset, load_preset, prepare
from continual_segment.lab.phantom import write_phantom

WORK = Path("examples_out")


def main() -> None:
    preset = load_preset("tiny")  # seconds, and nothing is learned well; "demo" or "laptop" for more
    for name in ("totalseg", "headneck"):
        folder = write_phantom(
            WORK / "raw", name, 5, seed=0, spacing_mm=preset.prepare.spacing_mm, organs="demo"
        )
        raw = RawDataset.open(folder)  # your own folder goes here; all problems of all cases come at once
        dataset = prepare(raw, WORK / "prepared" / name, preset.prepare)
        organs = ", ".join(organ.name for organ in raw.organs)
        print(f"{raw.name} is in {raw.layout} layout and labels {organs}.")
        for split in ("train", "validation", "test"):
            print(f"  {split}: {', '.join(dataset.case_names(split))}")


if __name__ == "__main__":
    main()
