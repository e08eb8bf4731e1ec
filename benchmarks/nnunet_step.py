"""Training steps of stock nnU-Net: its network, loss and optimiser; started by step_vs_nnunet.py.

python nnunet_step.py PLANS ORGANS BATCH STEPS THREADS COMPILE
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
    os.environ.setdefault(name, "/tmp")


def main(plans: str, organs: str, batch: str, steps: str, threads: str, compiled: str) -> None:
    import numpy as np
    import torch
    from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    if int(threads):
        torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    manager = PlansManager(plans)
    configuration = manager.get_configuration("3d_fullres")
    network = nnUNetTrainer.build_network_architecture(
        manager, configuration, 1, int(organs) + 1, enable_deep_supervision=True
    )
    dice = {"batch_dice": configuration.batch_dice, "smooth": 1e-5, "do_bg": False, "ddp": False}
    loss = DC_and_CE_loss(dice, {}, dice_class=MemoryEfficientSoftDiceLoss)
    levels = len(configuration.pool_op_kernel_sizes) - 1
    weights = np.array([1 / 2**i for i in range(levels)])
    weights[-1] = 0
    loss = DeepSupervisionWrapper(loss, weights / weights.sum())
    optimiser = torch.optim.SGD(network.parameters(), 1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
    images = torch.rand(int(batch), 1, *configuration.patch_size) * 2 - 1
    labels = torch.randint(int(organs) + 1, (int(batch), 1, *configuration.patch_size)).float()
    run = torch.compile(network) if int(compiled) else network
    seconds = []
    for _ in range(int(steps) + 1):  # the first grows the heap
        begun = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        outputs = run(images)
        targets = [torch.nn.functional.interpolate(labels, size=output.shape[2:]) for output in outputs]
        loss(outputs, targets).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 12)
        optimiser.step()
        seconds.append(time.perf_counter() - begun)
    print("\n" + json.dumps({"seconds": statistics.median(seconds[1:])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
