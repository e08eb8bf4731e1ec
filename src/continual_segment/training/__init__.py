"""Training: one loop for every method, its loss, schedule, checkpoint and log."""

from continual_segment.training.loss import dice_and_cross_entropy, supervised_loss
from continual_segment.training.train import TrainConfig, train

__all__ = ["TrainConfig", "dice_and_cross_entropy", "supervised_loss", "train"]
