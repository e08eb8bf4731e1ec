"""Four steps on real head and neck scans: base organs, parotids, larynx and esophagus, esophagus with tumour.

    python benchmarks/open_kbp.py DATA OUT [--config configs/open_kbp.toml]

DATA holds Dataset101_HNBase, Dataset102_Parotid, Dataset103_LarynxEsophagus and Dataset104_EsophagusTumour
in nnU-Net's raw layout; they share no patient. Scores three scans of each dataset after every step
(OUT/report.html), and in the end every dataset's whole test split (OUT/test_split). Give the command again
to go on where it stopped.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from pathlib import Path

from continual_segment.config import load_preset
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.evaluation.report import write_report
from continual_segment.memory import keep_freed_memory
from continual_segment.protocol import HeldOut, ProtocolDataset, run_protocol, score

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
    config = load_preset(args.config)
    datasets = {
        name: ProtocolDataset(RawDataset.open(args.data / folder), anomalies)
        for name, (folder, anomalies) in DATASETS.items()
    }
    report = run_protocol(args.out, datasets, config, held_out=3)
    path = write_report(args.out, report, [f"python {shlex.join(sys.argv)}"])
    for name, dataset in datasets.items():
        test = HeldOut.of(dataset.raw, PreparedDataset.open(args.out / "prepared" / name), None)
        found, _ = score(args.out / "model", name, [name], test, config, args.out / "test_split")
        print(f"\n{name}: {len(test.cases)} test scans, by its own pack\n{found.table()}")
    forgotten = report.forgetting[-1].mean_relative
    print(f"\nforgotten after the last step: {forgotten:.4%}\n{report.verification}\n{path}")


if __name__ == "__main__":
    main()
