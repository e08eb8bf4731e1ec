"""The tensors that an architecture has, and those of them in a checkpoint.

nnU-Net stores most layers under several names: every convolution and norm a second time in `all_modules`, the
encoder a second time inside the decoder. One of each is kept, under the name that our networks use.

A trainer may build another network than its plans describe. Names and shapes show that; they are computed
from the plans as plain numbers, so a file that describes a huge network allocates nothing.

In:  NnunetArchitecture, and the weights of a checkpoint
Out: its tensors by name, as float32, in memory of their own
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from continual_segment.errors import ModelError
from continual_segment.model.nnunet.architecture import NnunetArchitecture
from continual_segment.names import printable, some_of
from continual_segment.networks.blocks import Kernel

Shape = tuple[int, ...]
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MOST_EXAMPLES = 3
IN_ALL_MODULES = re.compile(r"(?P<block>.+)\.(?P<layer>conv|norm)\.(?P<tensor>weight|bias)")


def expected_shapes(architecture: NnunetArchitecture, outputs: int) -> dict[str, Shape]:
    """Shape of every tensor of the network for one input channel and so many output channels, by name."""
    encoder = _plain_encoder if architecture.kind == "plain" else _residual_encoder
    return dict([*encoder(architecture), *_decoder(architecture, outputs)])


def fit_weights(
    weights: Mapping[str, Tensor], expected: Mapping[str, Shape], trainer: str, where: str
) -> dict[str, Tensor]:
    """The expected tensors out of a checkpoint's; raise where it has others."""
    found = {stored_once(name) for name in weights}
    problems = [
        *_listed("missing", (name for name in expected if name not in found)),
        *_listed("not in the plans", (name for name in weights if stored_once(name) not in expected)),
        *_listed("of another shape", _wrong_shapes(weights, expected)),
    ]
    if problems:
        raise ModelError(
            f"{where}: the weights do not fit plans.json and dataset.json: {'; '.join(problems)}. These "
            f"files belong to another model, or the trainer {printable(trainer)} builds another network than "
            "the plans describe, which cannot be imported."
        )
    kept = _without_duplicates(weights, where)
    return {name: _own_copy(name, kept[name], where) for name in expected}


def stored_once(name: str) -> str:
    """The one name under which a tensor is kept."""
    if name.startswith("decoder.encoder."):
        name = name.removeprefix("decoder.")
    return name.replace(".all_modules.0.", ".conv.").replace(".all_modules.1.", ".norm.")


def stock_names(name: str) -> list[str]:
    """Every name under which nnU-Net stores the tensor that is kept under this one."""
    names = [name]
    if match := IN_ALL_MODULES.fullmatch(name):
        number = ("conv", "norm").index(match["layer"])
        names.append(f"{match['block']}.all_modules.{number}.{match['tensor']}")
    if name.startswith("encoder."):
        names += [f"decoder.{each}" for each in names]
    return names


def _plain_encoder(architecture: NnunetArchitecture) -> Iterator[tuple[str, Shape]]:
    inputs = 1
    for stage, (features, kernel, convs) in enumerate(_stages(architecture)):
        for conv in range(convs):
            name = f"encoder.stages.{stage}.0.convs.{conv}"
            yield from _conv_norm(name, inputs, features, kernel, architecture.conv_bias)
            inputs = features


def _residual_encoder(architecture: NnunetArchitecture) -> Iterator[tuple[str, Shape]]:
    inputs, bias = architecture.features[0], architecture.conv_bias
    yield from _conv_norm("encoder.stem.convs.0", 1, inputs, architecture.kernels[0], bias)
    for stage, (features, kernel, blocks) in enumerate(_stages(architecture)):
        for block in range(blocks):
            name = f"encoder.stages.{stage}.blocks.{block}"
            yield from _conv_norm(f"{name}.conv1", inputs, features, kernel, bias)
            yield from _conv_norm(f"{name}.conv2", features, features, kernel, bias)
            if inputs != features:
                pools = block == 0 and architecture.strides[stage] != (1, 1, 1)  # skip.0 is the pooling then
                yield from _conv_norm(f"{name}.skip.{int(pools)}", inputs, features, (1, 1, 1), False)
            inputs = features


def _decoder(architecture: NnunetArchitecture, outputs: int) -> Iterator[tuple[str, Shape]]:
    """All decoder stages, deepest first, with their heads."""
    bias = architecture.conv_bias
    for stage, convs in enumerate(architecture.decoder_convs):
        below, features = architecture.features[-1 - stage], architecture.features[-2 - stage]
        upwards = (below, features, *architecture.strides[-1 - stage])
        yield from _with_bias(f"decoder.transpconvs.{stage}", upwards, features if bias else 0)
        inputs = 2 * features  # beside the encoder's
        for conv in range(convs):
            name = f"decoder.stages.{stage}.convs.{conv}"
            yield from _conv_norm(name, inputs, features, architecture.kernels[-2 - stage], bias)
            inputs = features
        yield from _with_bias(f"decoder.seg_layers.{stage}", (outputs, features, 1, 1, 1), outputs)


def _stages(architecture: NnunetArchitecture) -> Iterator[tuple[int, Kernel, int]]:
    return zip(architecture.features, architecture.kernels, architecture.encoder_convs, strict=True)


def _conv_norm(
    name: str, inputs: int, outputs: int, kernel: Kernel, bias: bool
) -> Iterator[tuple[str, Shape]]:
    yield from _with_bias(f"{name}.conv", (outputs, inputs, *kernel), outputs if bias else 0)
    yield from _with_bias(f"{name}.norm", (outputs,), outputs)


def _with_bias(name: str, weight: Shape, bias: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", weight
    if bias:
        yield f"{name}.bias", (bias,)


def _wrong_shapes(weights: Mapping[str, Tensor], expected: Mapping[str, Shape]) -> Iterator[str]:
    for name, tensor in weights.items():
        wanted = expected.get(stored_once(name))
        if wanted is not None and tuple(tensor.shape) != wanted:
            yield f"{name} {tuple(tensor.shape)} instead of {wanted}"


def _listed(what: str, names: Iterable[str]) -> list[str]:
    """One phrase with the first names and how many there are; empty where there is none."""
    found = list(names)
    return [f"{len(found)} {what} ({some_of(found, MOST_EXAMPLES)})"] if found else []


def _without_duplicates(weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        first = kept.setdefault(stored_once(name), tensor)
        if first.data_ptr() != tensor.data_ptr() and not torch.equal(first, tensor):
            raise ModelError(
                f"{where}: {printable(name)} and {stored_once(name)} are the same layer with different "
                "values. Get the checkpoint again, as nnU-Net wrote it."
            )
    return kept


def _own_copy(name: str, tensor: Tensor, where: str) -> Tensor:
    """The tensor apart from the file it was mapped from."""
    if tensor.dtype not in FLOATS or not bool(torch.isfinite(tensor).all()):
        raise ModelError(
            f"{where}: {name} has {tensor.dtype} values that are no finite numbers. Training failed, or the "
            "checkpoint is damaged: use another one."
        )
    return tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
