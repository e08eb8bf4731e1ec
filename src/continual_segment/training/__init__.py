"""Training: one loop for every method, its loss, schedule, checkpoint and log."""

from continual_segment.training.loss import Loss, LossConfig, dice_and_cross_entropy, supervised_loss
from continual_segment.training.objective import Objective
from continual_segment.training.train import TrainingRun, train
from continual_segment.training.train_config import TrainConfig

__all__ = [
    "Loss",
    "LossConfig",
    "Objective",
    "TrainConfig",
    "TrainingRun",
    "dice_and_cross_entropy",
    "supervised_loss",
    "train",
]
