"""Stock nnU-Net's own predictor on one scan; started by segment_vs_nnunet.py in nnU-Net's environment.

python nnunet_predict.py PLANS DATASET WEIGHTS SCAN OUT THREADS
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
    os.environ.setdefault(name, "/tmp")


def main(plans: str, dataset: str, weights: str, scan: str, out: str, threads: str) -> None:
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    if int(threads):
        torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    described = json.loads(Path(dataset).read_text())
    manager = PlansManager(plans)
    configuration = manager.get_configuration("3d_fullres")
    network = nnUNetTrainer.build_network_architecture(
        manager, configuration, 1, len(described["labels"]), enable_deep_supervision=False
    )
    missing = network.load_state_dict(torch.load(weights, weights_only=True), strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys
    predictor = nnUNetPredictor(use_mirroring=False, device=torch.device("cpu"), allow_tqdm=False)
    predictor.manual_initialization(
        network, manager, configuration, [network.state_dict()], described, "nnUNetTrainer", None
    )
    begun, networks = time.perf_counter(), [0.0]
    predict = predictor.predict_logits_from_preprocessed_data

    def timed(*given, **options):
        started = time.perf_counter()
        try:
            return predict(*given, **options)
        finally:
            networks[0] += time.perf_counter() - started

    predictor.predict_logits_from_preprocessed_data = timed
    predictor.predict_from_files_sequential([[scan]], [out.removesuffix(".nii.gz")])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = time.perf_counter() - begun
    print("\n" + json.dumps({"seconds": seconds, "networks": networks[0], "peak": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
