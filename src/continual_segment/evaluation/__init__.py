"""Predictions compared with the truth: scores per organ and dataset, forgetting over steps."""

from continual_segment.evaluation.evaluate import evaluate, score_case
from continual_segment.evaluation.forgetting import AllScores, StepForgetting, all_scores, forgetting
from continual_segment.evaluation.scores import Evaluation, ScoreMean, ScoreRow

__all__ = [
    "AllScores",
    "Evaluation",
    "ScoreMean",
    "ScoreRow",
    "StepForgetting",
    "all_scores",
    "evaluate",
    "forgetting",
    "score_case",
]
