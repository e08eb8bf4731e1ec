"""Four steps on real head and neck scans: base organs, parotids, larynx and esophagus, esophagus with tumour.

    python benchmarks/open_kbp.py DATA OUT [--config configs/open_kbp.toml]

DATA holds Dataset101_HNBase, Dataset102_Parotid, Dataset103_LarynxEsophagus and Dataset104_EsophagusTumour in
nnU-Net's raw layout; they share no patient. Writes OUT/report.html and OUT/scores.json and prints the Dice of
every organ on its dataset's test split. Give the command again to go on where it was stopped.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from pathlib import Path

from continual_segment.config import load_preset
from continual_segment.data.raw import RawDataset
from continual_segment.evaluation.report import write_report
from continual_segment.memory import keep_freed_memory
from continual_segment.protocol import ProtocolDataset, run_protocol

DATASETS = {
    "hn_base": ("Dataset101_HNBase", ()),
    "parotid": ("Dataset102_Parotid", ()),
    "larynx_esophagus": ("Dataset103_LarynxEsophagus", ()),
    "esophagus_tumour": ("Dataset104_EsophagusTumour", ("head and neck tumour",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", default="configs/open_kbp.toml")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    keep_freed_memory()
    datasets = {
        name: ProtocolDataset(RawDataset.open(args.data / folder), anomalies)
        for name, (folder, anomalies) in DATASETS.items()
    }
    report = run_protocol(args.out, datasets, load_preset(args.config))
    path = write_report(args.out, report, [f"python {shlex.join(sys.argv)}"])
    for which in ("alone", "merged"):
        print(f"\n{'each dataset by its own pack' if which == 'alone' else 'all packs together'}")
        for name, found in getattr(report.steps[-1], which).items():
            print(f"\n{name}\n{found.table()}")
    print(
        f"\nforgotten after the last step: {report.forgetting[-1].mean_relative:.4%}\n{report.verification}\n{path}"
    )


if __name__ == "__main__":
    main()
