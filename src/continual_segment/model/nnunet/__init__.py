"""Stock nnU-Net v2 models: read safely, described as data, made models of ours and written again."""

from continual_segment.model.nnunet.architecture import NnunetArchitecture
from continual_segment.model.nnunet.dataset import Attribution, NnunetLabels
from continual_segment.model.nnunet.export_model import export_nnunet
from continual_segment.model.nnunet.import_model import import_nnunet
from continual_segment.model.nnunet.model import NnunetModel
from continual_segment.model.nnunet.plans import IntensityProperties, Preprocessing, Resampling
from continual_segment.model.nnunet.report import ImportReport, Training

__all__ = [
    "Attribution",
    "ImportReport",
    "IntensityProperties",
    "NnunetArchitecture",
    "NnunetLabels",
    "NnunetModel",
    "Preprocessing",
    "Resampling",
    "Training",
    "export_nnunet",
    "import_nnunet",
]
