"""nnU-Net's network and preprocessing in our own terms, or an error that names what ours lack.

In:  NnunetArchitecture, Preprocessing
Out: NetworkConfig, PrepareConfig
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from continual_segment.data.intensity import Intensity
from continual_segment.data.network_frame import FileOrderReader, Reader, ReorientingReader
from continual_segment.data.prepare_config import NnunetPreparation, PrepareConfig
from continual_segment.errors import ModelError
from continual_segment.model.nnunet.architecture import NnunetArchitecture
from continual_segment.model.nnunet.plans import Preprocessing, Resampling
from continual_segment.names import printable
from continual_segment.networks import NetworkConfig

READERS: dict[str, Reader] = {
    name: name for name in (*get_args(FileOrderReader), *get_args(ReorientingReader))
}
PREPROCESSOR = "DefaultPreprocessor"
RESAMPLING = "resample_data_or_seg_to_shape"
OPTIONS = {"is_seg", "order", "order_z", "force_separate_z", "separate_z_anisotropy_threshold"}
"""Of nnU-Net's resampling function."""
ANISOTROPY = 3
"""Default of `separate_z_anisotropy_threshold`, which no plans of nnU-Net itself change."""
ORDER_OF_SCANS, ORDER_OF_LOGITS = 3, 1


def network_config(architecture: NnunetArchitecture, where: str) -> NetworkConfig:
    """The same network as ours."""
    with _named(where):
        return NetworkConfig(
            features=architecture.features,
            kernels=architecture.kernels,
            strides=architecture.strides,
            encoder_convs=architecture.encoder_convs,
            decoder_convs=architecture.decoder_convs,
            encoder=architecture.kind,
        )


def prepare_config(preprocessing: Preprocessing, where: str) -> PrepareConfig:
    """The same preparation of scans."""
    _check_choice("image_reader_writer", preprocessing.image_reader_writer, READERS, where)
    _check_choice("preprocessor_name", preprocessing.preprocessor, (PREPROCESSOR,), where)
    _check_choice("normalization_schemes", preprocessing.normalization, NORMALIZATIONS, where)
    _check_resampling("resampling_fn_data", preprocessing.resample_data, ORDER_OF_SCANS, where)
    _check_resampling(
        "resampling_fn_probabilities", preprocessing.resample_probabilities, ORDER_OF_LOGITS, where
    )
    nnunet = NnunetPreparation(
        image_reader_writer=READERS[preprocessing.image_reader_writer],
        transpose_forward=preprocessing.transpose_forward,
        separate_z=preprocessing.resample_data.force_separate_z,
        separate_z_of_logits=preprocessing.resample_probabilities.force_separate_z,
        # the other schemes do not look at it
        use_mask_for_norm=preprocessing.use_mask_for_norm and preprocessing.normalization == Z_SCORE,
    )
    with _named(where):
        intensity = NORMALIZATIONS[preprocessing.normalization](preprocessing)
        return PrepareConfig(preprocessing.spacing_mm, intensity, nnunet)


def _ct_normalization(preprocessing: Preprocessing) -> Intensity:
    known = preprocessing.intensities
    clip = (known.percentile_00_5, known.percentile_99_5)
    return Intensity("ct-percentiles", clip, known.mean, known.std, padding="zero")


Z_SCORE = "ZScoreNormalization"
NORMALIZATIONS = {
    "CTNormalization": _ct_normalization,
    Z_SCORE: lambda _: Intensity("z-score", padding="zero"),
    "RescaleTo01Normalization": lambda _: Intensity("rescale-01", padding="zero"),
    "NoNormalization": lambda _: Intensity("none", padding="zero"),
}


def _check_choice(name: str, found: str, known: Any, where: str) -> None:
    if found not in known:
        raise ModelError(
            f"{where}: {name} is {printable(found)!r}; {' or '.join(known)} was expected. Models with "
            "another one cannot be imported."
        )


def _check_resampling(name: str, resampling: Resampling, order: int, where: str) -> None:
    """Raise unless this is nnU-Net's own resampling with its own options; separate z may be any."""
    _check_choice(name, resampling.function, (RESAMPLING,), where)
    threshold = resampling.kwargs.get("separate_z_anisotropy_threshold", ANISOTROPY)
    found = {
        "is_seg": resampling.is_seg,
        "order": resampling.order,
        "order_z": resampling.order_z,
        "separate_z_anisotropy_threshold": threshold,
    } | {key: value for key, value in resampling.kwargs.items() if key not in OPTIONS}
    expected = {"is_seg": False, "order": order, "order_z": 0, "separate_z_anisotropy_threshold": ANISOTROPY}
    if found != expected:
        raise ModelError(
            f"{where}: {name}_kwargs are {printable(str(found))}, and {expected} were expected. Models with "
            "others cannot be imported."
        )


@contextmanager
def _named(where: str) -> Iterator[None]:
    """What our settings refuse becomes a ModelError that names the file."""
    try:
        yield
    except ValueError as error:
        raise ModelError(f"{where}: {printable(str(error), 400)} Such a model cannot be imported.") from error
