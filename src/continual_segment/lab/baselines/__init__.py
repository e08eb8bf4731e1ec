"""Comparison methods, one file each, on one loop. A new one is a file and a line in METHODS."""

from continual_segment.lab.baselines.fine_tuning import FineTuning
from continual_segment.lab.baselines.ilt import ILT
from continual_segment.lab.baselines.lismo import LISMO
from continual_segment.lab.baselines.mib import MiB
from continual_segment.lab.baselines.own_decoder import Unfreezing, UpperBound
from continual_segment.lab.baselines.plop import PLOP
from continual_segment.lab.baselines.rcil import RCIL
from continual_segment.lab.baselines.step import Method, StepSettings, learn_step

METHODS: dict[str, Method] = {
    "fine-tuning": FineTuning(),
    "mib": MiB(),
    "ilt": ILT(),
    "plop": PLOP(),
    "lismo": LISMO(),
    "rcil": RCIL(),
    "unfreezing": Unfreezing(),
    "upper-bound": UpperBound(),
}

__all__ = ["METHODS", "Method", "StepSettings", "learn_step"]
