"""Body parts: which slices of a scan are hip and thigh, abdomen, chest, head and neck."""

from continual_segment.body_parts.coverage import Coverage, measure_coverage
from continual_segment.body_parts.learn import BodyPartConfig, learn_body_parts
from continual_segment.body_parts.regions import Regions, regions_from_labels
from continual_segment.body_parts.regressor import BodyPartRegressor

__all__ = [
    "BodyPartConfig",
    "BodyPartRegressor",
    "Coverage",
    "Regions",
    "learn_body_parts",
    "measure_coverage",
    "regions_from_labels",
]
