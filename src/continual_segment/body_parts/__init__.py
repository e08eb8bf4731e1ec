"""Body parts: which slices of a scan are hip and thigh, abdomen, chest, head and neck."""

from continual_segment.body_parts.learn import BodyPartConfig, learn_body_parts
from continual_segment.body_parts.regions import Regions, regions_from_labels
from continual_segment.body_parts.regressor import BodyPartRegressor

__all__ = ["BodyPartConfig", "BodyPartRegressor", "Regions", "learn_body_parts", "regions_from_labels"]
