"""plans.json: how nnU-Net prepares scans for a network, and what it calls the network.

In:  the text of plans.json and the name of a configuration
Out: the configuration with what it inherits, and the preprocessing as data
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record
from continual_segment.names import printable

Axes = tuple[int, int, int]
ADVICE = "Get plans.json again, as nnU-Net wrote it."
CASCADE = "3d_cascade_fullres"


@dataclass(frozen=True)
class IntensityProperties:
    """Statistics of labelled voxels in the training scans, before normalisation."""

    mean: float
    std: float
    percentile_00_5: float
    percentile_99_5: float

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.mean, self.percentile_00_5, self.percentile_99_5))):
            raise ValueError("mean and percentiles are finite numbers")
        if not 0 < self.std < inf:
            raise ValueError(f"std is above 0, not {self.std}")


@dataclass(frozen=True)
class Resampling:
    """One of nnU-Net's resampling functions with its options; what the plans leave out has its defaults."""

    function: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Everything in the plans, options of other functions included."""
    is_seg: bool = False
    order: int = 3
    order_z: int = 0
    """Order along the coarse axis, where that is resampled separately."""
    force_separate_z: bool | None = False
    """None: where the spacing is anisotropic."""


@dataclass(frozen=True)
class Preprocessing:
    """From a scan to the network's input and back. Axes are those after `transpose_forward`."""

    image_reader_writer: str
    """Decides the orientation: SimpleITKIO reads axes (z, y, x) as stored."""
    transpose_forward: Axes
    transpose_backward: Axes
    spacing_mm: tuple[float, float, float]
    normalization: str
    """Scheme, such as CTNormalization."""
    use_mask_for_norm: bool
    intensities: IntensityProperties
    resample_data: Resampling
    resample_seg: Resampling
    resample_probabilities: Resampling
    preprocessor: str
    """DefaultPreprocessor, unless the plans name one of the user's own."""


@dataclass(frozen=True)
class Plans:
    """The fields of plans.json that are read."""

    dataset_name: str
    plans_name: str
    image_reader_writer: str
    transpose_forward: Axes
    transpose_backward: Axes
    configurations: dict[str, dict[str, Any]]
    label_manager: str = "LabelManager"
    foreground_intensity_properties_per_channel: dict[str, IntensityProperties] | None = None
    foreground_intensity_properties_by_modality: dict[str, IntensityProperties] | None = None
    """The older name."""

    def __post_init__(self) -> None:
        there, back = self.transpose_forward, self.transpose_backward
        if sorted(there) != [0, 1, 2] or sorted(back) != [0, 1, 2] or [there[i] for i in back] != [0, 1, 2]:
            raise ValueError(f"transpose_backward {back} does not undo transpose_forward {there}")
        if self.label_manager != "LabelManager":
            raise ValueError("label_manager is another than nnU-Net's own, which cannot be imported")


@dataclass(frozen=True)
class Configuration:
    """The fields of one configuration that are read; what concerns the network is left as it is."""

    patch_size: tuple[int, ...]
    spacing: tuple[float, ...]
    normalization_schemes: tuple[str, ...]
    use_mask_for_norm: tuple[bool, ...]
    resampling_fn_data: str
    resampling_fn_data_kwargs: dict[str, Any]
    resampling_fn_seg: str
    resampling_fn_seg_kwargs: dict[str, Any]
    resampling_fn_probabilities: str
    resampling_fn_probabilities_kwargs: dict[str, Any]
    preprocessor_name: str = "DefaultPreprocessor"
    previous_stage: str | None = None

    def __post_init__(self) -> None:
        if not all(0 < side < inf for side in (*self.spacing, *self.patch_size)):
            raise ValueError("spacing and patch_size are numbers above 0")


def inherited(plans: Plans, name: str, where: str) -> dict[str, Any]:
    """All settings of a configuration: its own, and below them those it inherits."""
    settings: dict[str, Any] = {}
    visited: list[str] = []
    parent: Any = name
    while parent is not None:
        if not isinstance(parent, str) or parent not in plans.configurations or parent in visited:
            raise ModelError(
                f"{where}: configuration {printable(name)!r} is or inherits from {printable(repr(parent))}, "
                f"which is not one of {printable(', '.join(plans.configurations))}, or inherits from itself. "
                f"{ADVICE}"
            )
        visited.append(parent)
        settings = plans.configurations[parent] | settings
        parent = plans.configurations[parent].get("inherits_from")
    return settings


def read_configuration(settings: dict[str, Any], name: str, where: str) -> Configuration:
    """A configuration of one network for 3D scans with one channel; other kinds are refused."""
    configuration = as_record(settings, Configuration, where, ModelError, ADVICE)
    if configuration.previous_stage is not None or name == CASCADE:
        raise ModelError(
            f"{where}: configuration {printable(name)!r} is the second stage of a cascade, which reads the "
            "labels of the first beside the scan. Import 3d_fullres or 3d_lowres."
        )
    if len(configuration.patch_size) != 3 or len(configuration.spacing) != 3:
        raise ModelError(
            f"{where}: configuration {printable(name)!r} is for {len(configuration.patch_size)}D patches. "
            "Import a 3D configuration, such as 3d_fullres."
        )
    if len(configuration.normalization_schemes) != 1 or len(configuration.use_mask_for_norm) != 1:
        raise ModelError(
            f"{where}: {len(configuration.normalization_schemes)} input channels, one was expected. "
            "Only models of CT alone can be imported."
        )
    return configuration


def read_preprocessing(plans: Plans, configuration: Configuration, where: str) -> Preprocessing:
    """How scans are made ready for a configuration's network."""
    z, y, x = configuration.spacing
    return Preprocessing(
        image_reader_writer=plans.image_reader_writer,
        transpose_forward=plans.transpose_forward,
        transpose_backward=plans.transpose_backward,
        spacing_mm=(z, y, x),
        normalization=configuration.normalization_schemes[0],
        use_mask_for_norm=configuration.use_mask_for_norm[0],
        intensities=_intensities(plans, where),
        resample_data=_resampling(
            configuration.resampling_fn_data, configuration.resampling_fn_data_kwargs, where
        ),
        resample_seg=_resampling(
            configuration.resampling_fn_seg, configuration.resampling_fn_seg_kwargs, where
        ),
        resample_probabilities=_resampling(
            configuration.resampling_fn_probabilities, configuration.resampling_fn_probabilities_kwargs, where
        ),
        preprocessor=configuration.preprocessor_name,
    )


def _intensities(plans: Plans, where: str) -> IntensityProperties:
    of_channels = plans.foreground_intensity_properties_per_channel
    if of_channels is None:
        of_channels = plans.foreground_intensity_properties_by_modality or {}
    if set(of_channels) != {"0"}:
        raise ModelError(
            f"{where}: foreground_intensity_properties_per_channel has {len(of_channels)} channels, "
            f"'0' alone was expected. {ADVICE}"
        )
    return of_channels["0"]


def _resampling(function: str, kwargs: dict[str, Any], where: str) -> Resampling:
    return as_record(kwargs | {"function": function, "kwargs": kwargs}, Resampling, where, ModelError, ADVICE)
