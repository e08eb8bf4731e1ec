"""Time to merge many packs: each with five organs, the first of them shared with the pack before it.

    python benchmarks/merging_time.py [--packs 4 16 64] [--rules consensus background-aware ensemble]

One slab of made-up probabilities is merged by each rule. Seconds are CPU time of one thread, the least of
--rounds. A pack in four is disease-aware.
"""

from __future__ import annotations

import argparse
import time

import torch

from continual_segment.organs import BODY_PARTS
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.merge import RULES, RuleName
from continual_segment.segmentation.nested import merge_predictions
from continual_segment.segmentation.predictions import PackPrediction, PackProfile

ORGANS = 5
FIRST_ID = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packs", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=["consensus", "background-aware"])
    parser.add_argument("--shape", type=int, nargs=3, default=[2, 128, 160], metavar=("Z", "Y", "X"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| rule | packs | seconds | seconds a pack |\n|---|---|---|---|")
    for rule in args.rules:
        for packs in args.packs:
            seconds = min(seconds_to_merge(rule, packs, args.shape) for _ in range(args.rounds))
            print(f"| {rule} | {packs} | {seconds:.3f} | {seconds / packs:.4f} |", flush=True)


def seconds_to_merge(rule: RuleName, packs: int, shape: list[int]) -> float:
    """CPU time of one merge; predictions are new, as nothing of them is known from an earlier merge."""
    torch.manual_seed(0)
    predictions = [made_up_pack(index, shape) for index in range(packs)]
    context = ScanContext(torch.randint(-1, len(BODY_PARTS), (shape[0], 1, 1)), torch.rand(*shape))
    started = time.process_time()
    merge_predictions(RULES[rule], predictions, context)
    return time.process_time() - started


def made_up_pack(index: int, shape: list[int]) -> PackPrediction:
    first = FIRST_ID + index * (ORGANS - 1)  # the last organ is the first of the next pack
    ids = torch.tensor([0, *range(first, first + ORGANS)], dtype=torch.int32)
    coverage = {part: (index + place) % 3 / 2 for place, part in enumerate(BODY_PARTS)}
    profile = PackProfile(f"pack{index}", f"{index:04}", coverage, anomaly_aware=index % 4 == 0)
    return PackPrediction(profile, ids, torch.randn(len(ids), *shape).mul(3).softmax(dim=0))


if __name__ == "__main__":
    main()
