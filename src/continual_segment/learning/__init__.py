"""Learning: the paper's method. One step per dataset; nothing already learned changes."""

from continual_segment.learning.joint import learn_jointly
from continual_segment.learning.learn_config import LearnConfig, StageConfig
from continual_segment.learning.shrink_pack import shrink_pack, shrink_packs
from continual_segment.learning.step import learn_dataset

__all__ = ["LearnConfig", "StageConfig", "learn_dataset", "learn_jointly", "shrink_pack", "shrink_packs"]
