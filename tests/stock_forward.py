"""nnU-Net's two U-Nets as functions of a checkpoint's weights, after dynamic-network-architectures 0.4.4.

PyTorch's own operations and none of our modules: what ours compute is compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

State = Mapping[str, Tensor]


def stock_logits(state: State, arguments: Mapping[str, Any], window: Tensor) -> Tensor:
    """Logits of a window (batch, 1, z, y, x); `arguments` are `arch_kwargs` of the plans."""
    features = _encoder(state, arguments, window)
    x = features[-1]
    for stage, convs in enumerate(arguments["n_conv_per_stage_decoder"]):
        name = f"decoder.transpconvs.{stage}"
        stride = arguments["strides"][-1 - stage]
        x = functional.conv_transpose3d(x, state[f"{name}.weight"], state.get(f"{name}.bias"), stride=stride)
        x = torch.cat([x, features[-2 - stage]], dim=1)
        for conv in range(convs):
            x = functional.leaky_relu(_conv_norm(state, f"decoder.stages.{stage}.convs.{conv}", x), 0.01)
    head = f"decoder.seg_layers.{stage}"
    return functional.conv3d(x, state[f"{head}.weight"], state[f"{head}.bias"])


def _encoder(state: State, arguments: Mapping[str, Any], x: Tensor) -> list[Tensor]:
    residual, features = "n_blocks_per_stage" in arguments, []
    if residual:
        x = functional.leaky_relu(_conv_norm(state, "encoder.stem.convs.0", x), 0.01)
    for stage, stride in enumerate(arguments["strides"]):
        depth = arguments["n_blocks_per_stage" if residual else "n_conv_per_stage"][stage]
        for number in range(depth):
            step = stride if number == 0 else [1, 1, 1]
            if residual:
                x = _block(state, f"encoder.stages.{stage}.blocks.{number}", x, step)
            else:
                name = f"encoder.stages.{stage}.0.convs.{number}"
                x = functional.leaky_relu(_conv_norm(state, name, x, step), 0.01)
        features.append(x)
    return features


def _block(state: State, name: str, x: Tensor, stride: list[int]) -> Tensor:
    inner = functional.leaky_relu(_conv_norm(state, f"{name}.conv1", x, stride), 0.01)
    inner = _conv_norm(state, f"{name}.conv2", inner)
    skip = functional.avg_pool3d(x, stride, stride) if stride != [1, 1, 1] else x
    for layer in (f"{name}.skip.0", f"{name}.skip.1"):
        if f"{layer}.conv.weight" in state:
            skip = _conv_norm(state, layer, skip)
    return functional.leaky_relu(inner + skip, 0.01)


def _conv_norm(state: State, name: str, x: Tensor, stride: Any = 1) -> Tensor:
    weight = state[f"{name}.conv.weight"]
    padding = [side // 2 for side in weight.shape[2:]]
    x = functional.conv3d(x, weight, state.get(f"{name}.conv.bias"), stride, padding)
    norm = f"{name}.norm"
    return functional.instance_norm(x, weight=state[f"{norm}.weight"], bias=state[f"{norm}.bias"], eps=1e-5)
