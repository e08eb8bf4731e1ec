"""The network that a configuration of plans.json describes, in the newer and the older form of plans.

The newer form names a class and its arguments; the older one has the numbers alone and leaves norm,
activation and bias to nnU-Net, where they never varied. Only what our networks compute is accepted: nnU-Net's
plain and residual-encoder U-Nets with its own norm and activation.

In:  the settings of one configuration
Out: NnunetArchitecture
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Literal

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record
from continual_segment.model.nnunet.plans import ADVICE
from continual_segment.names import printable
from continual_segment.networks.blocks import Kernel

Kind = Literal["plain", "residual"]
PerStage = int | tuple[int, ...]
KernelPerStage = int | tuple[int | Kernel, ...]

CLASSES: dict[str, Kind] = {"PlainConvUNet": "plain", "ResidualEncoderUNet": "residual"}
PACKAGE = "dynamic_network_architectures.architectures"
MODULES = (f"{PACKAGE}.unet", f"{PACKAGE}.residual_unet")  # the second is where older plans look for ResEnc
OPERATIONS: dict[str, tuple[str | None, ...]] = {
    "conv_op": ("torch.nn.modules.conv.Conv3d", "torch.nn.Conv3d"),
    "norm_op": ("torch.nn.modules.instancenorm.InstanceNorm3d", "torch.nn.InstanceNorm3d"),
    "nonlin": ("torch.nn.LeakyReLU", "torch.nn.modules.activation.LeakyReLU"),
    "dropout_op": (None,),
}
NORM = {"eps": 1e-5, "affine": True}
NORM_DEFAULTS = {"eps": 1e-5, "affine": False}  # of PyTorch
ACTIVATION = {"negative_slope": 0.01}
WITHOUT_EFFECT = {"dropout_op_kwargs", "deep_supervision"}  # without dropout, and at inference

# Far above nnU-Net's planner; they keep a hostile file from describing a network without end.
MOST_STAGES, MOST_FEATURES, MOST_CONVS, LARGEST_KERNEL, LARGEST_STRIDE = 16, 8192, 64, 31, 16


@dataclass(frozen=True)
class NnunetArchitecture:
    """Sizes of nnU-Net's U-Net, one entry per encoder stage, finest first, unless stated otherwise."""

    kind: Kind
    features: tuple[int, ...]
    kernels: tuple[Kernel, ...]
    strides: tuple[Kernel, ...]
    """Down-sampling on entering the stage; (1, 1, 1) for the first."""
    encoder_convs: tuple[int, ...]
    """Convolutions per stage; with a residual encoder, blocks of two convolutions."""
    decoder_convs: tuple[int, ...]
    """Convolutions per decoder stage, deepest first."""
    conv_bias: bool
    """Of all convolutions but those in residual skips, which have none, and the heads, which have one."""
    norm_eps: float = NORM["eps"]
    """Of the instance norms, which have scale and shift."""
    negative_slope: float = ACTIVATION["negative_slope"]
    """Of the leaky ReLUs."""

    @property
    def total_stride(self) -> Kernel:
        """What the sides of a patch are multiples of."""
        z, y, x = (prod(steps) for steps in zip(*self.strides, strict=True))
        return z, y, x


@dataclass(frozen=True)
class NetworkClass:
    """`architecture` in newer plans."""

    network_class_name: str
    arch_kwargs: dict[str, Any]


@dataclass(frozen=True)
class Arguments:
    """The arguments of nnU-Net's U-Nets that are read."""

    n_stages: int
    features_per_stage: PerStage
    conv_op: str
    kernel_sizes: KernelPerStage
    strides: KernelPerStage
    n_conv_per_stage_decoder: PerStage
    n_conv_per_stage: PerStage | None = None
    n_blocks_per_stage: PerStage | None = None
    conv_bias: bool = False
    norm_op: str | None = None
    norm_op_kwargs: dict[str, Any] | None = None
    dropout_op: str | None = None
    nonlin: str | None = None
    nonlin_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class OldNetwork:
    """The network in older plans; names are those of the file."""

    UNet_class_name: str
    UNet_base_num_features: int
    unet_max_num_features: int
    n_conv_per_stage_encoder: tuple[int, ...]
    n_conv_per_stage_decoder: tuple[int, ...]
    pool_op_kernel_sizes: tuple[Kernel, ...]
    conv_kernel_sizes: tuple[Kernel, ...]


def read_architecture(settings: dict[str, Any], patch_size: Sequence[int], where: str) -> NnunetArchitecture:
    """The network of a configuration; raise where ours would compute something else."""
    if settings.get("architecture") is None:
        settings = _to_new_form(settings, where)
    network = as_record(settings["architecture"], NetworkClass, where, ModelError, ADVICE)
    kind = _kind(network.network_class_name, where)
    arguments = as_record(network.arch_kwargs, Arguments, where, ModelError, ADVICE)
    _check_operations(network.arch_kwargs, arguments, where)
    architecture = _architecture(kind, arguments, where)
    _check_patch(architecture, patch_size, where)
    return architecture


def _to_new_form(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """Older plans as nnU-Net itself reads them."""
    old = as_record(settings, OldNetwork, where, ModelError, ADVICE)
    stages = len(old.n_conv_per_stage_encoder)
    _check_range("n_conv_per_stage_encoder", [stages], 2, MOST_STAGES, where)
    depth = "n_conv_per_stage" if old.UNet_class_name == "PlainConvUNet" else "n_blocks_per_stage"
    arguments = {
        "n_stages": stages,
        "features_per_stage": [
            min(old.UNet_base_num_features * 2**stage, old.unet_max_num_features) for stage in range(stages)
        ],
        "conv_op": OPERATIONS["conv_op"][0],
        "kernel_sizes": old.conv_kernel_sizes,
        "strides": old.pool_op_kernel_sizes,
        depth: old.n_conv_per_stage_encoder,
        "n_conv_per_stage_decoder": old.n_conv_per_stage_decoder,
        "conv_bias": True,
        "norm_op": OPERATIONS["norm_op"][0],
        "norm_op_kwargs": NORM,
        "nonlin": OPERATIONS["nonlin"][0],
    }
    name = f"{MODULES[0]}.{old.UNet_class_name}"
    return {"architecture": {"network_class_name": name, "arch_kwargs": arguments}}


def _kind(class_name: str, where: str) -> Kind:
    module, _, name = class_name.rpartition(".")
    if module not in MODULES or name not in CLASSES:
        raise ModelError(
            f"{where}: a network of class {printable(class_name)}. Only nnU-Net's {' and '.join(CLASSES)} "
            "can be imported."
        )
    return CLASSES[name]


def _check_operations(given: dict[str, Any], arguments: Arguments, where: str) -> None:
    """Raise where norm, activation, dropout or an argument that is not read differ from nnU-Net's own."""
    activation = {key: value for key, value in (arguments.nonlin_kwargs or {}).items() if key != "inplace"}
    found = {name: getattr(arguments, name) for name in OPERATIONS}
    other = {name: value for name, value in found.items() if value not in OPERATIONS[name]}
    if NORM_DEFAULTS | (arguments.norm_op_kwargs or {}) != NORM:
        other["norm_op_kwargs"] = arguments.norm_op_kwargs
    if ACTIVATION | activation != ACTIVATION:
        other["nonlin_kwargs"] = arguments.nonlin_kwargs
    known = {field.name for field in fields(Arguments)} | WITHOUT_EFFECT
    other |= {key: value for key, value in given.items() if key not in known and value not in (None, False)}
    if other:
        listed = ", ".join(f"{name} {value!r}" for name, value in other.items())
        raise ModelError(
            f"{where}: the network has {printable(listed)}. Only nnU-Net's own InstanceNorm3d ({NORM}), "
            f"LeakyReLU ({ACTIVATION}) and no dropout can be imported."
        )


def _architecture(kind: Kind, arguments: Arguments, where: str) -> NnunetArchitecture:
    stages = arguments.n_stages
    _check_range("n_stages", [stages], 2, MOST_STAGES, where)
    depth = "n_conv_per_stage" if kind == "plain" else "n_blocks_per_stage"
    architecture = NnunetArchitecture(
        kind=kind,
        features=_per_stage(arguments, "features_per_stage", stages, MOST_FEATURES, where),
        kernels=_kernels(arguments, "kernel_sizes", LARGEST_KERNEL, where),
        strides=_kernels(arguments, "strides", LARGEST_STRIDE, where),
        encoder_convs=_per_stage(arguments, depth, stages, MOST_CONVS, where),
        decoder_convs=_per_stage(arguments, "n_conv_per_stage_decoder", stages - 1, MOST_CONVS, where),
        conv_bias=arguments.conv_bias,
    )
    if any(side % 2 == 0 for kernel in architecture.kernels for side in kernel):
        raise ModelError(f"{where}: kernel_sizes {architecture.kernels}, odd sizes were expected. {ADVICE}")
    if architecture.strides[0] != (1, 1, 1):
        raise ModelError(
            f"{where}: the first stride is {architecture.strides[0]}, (1, 1, 1) was expected. {ADVICE}"
        )
    return architecture


def _per_stage(arguments: Arguments, name: str, stages: int, most: int, where: str) -> tuple[int, ...]:
    """An argument with one number per stage; a single number counts for all."""
    value: PerStage | None = getattr(arguments, name)
    numbers = (value,) * stages if isinstance(value, int) else value or ()
    if len(numbers) != stages:
        raise ModelError(f"{where}: {name} has {len(numbers)} entries, {stages} were expected. {ADVICE}")
    _check_range(name, numbers, 1, most, where)
    return numbers


def _kernels(arguments: Arguments, name: str, most: int, where: str) -> tuple[Kernel, ...]:
    """An argument with three numbers per stage; a single number counts for all axes."""
    value: KernelPerStage = getattr(arguments, name)
    sizes = (value,) * arguments.n_stages if isinstance(value, int) else value
    if len(sizes) != arguments.n_stages:
        raise ModelError(
            f"{where}: {name} has {len(sizes)} entries, {arguments.n_stages} were expected. {ADVICE}"
        )
    kernels = tuple((size, size, size) if isinstance(size, int) else size for size in sizes)
    _check_range(name, [side for kernel in kernels for side in kernel], 1, most, where)
    return kernels


def _check_range(name: str, numbers: Sequence[int], least: int, most: int, where: str) -> None:
    if not all(least <= number <= most for number in numbers):
        raise ModelError(
            f"{where}: {name} is {printable(str(numbers))}, {least} to {most} was expected. {ADVICE}"
        )


def _check_patch(architecture: NnunetArchitecture, patch_size: Sequence[int], where: str) -> None:
    stride = architecture.total_stride
    if any(side % step for side, step in zip(patch_size, stride, strict=True)):
        raise ModelError(
            f"{where}: patch_size {tuple(patch_size)} is no multiple of the network's strides, {stride}. "
            f"{ADVICE}"
        )
