"""What of a run's minutes is for training, and when they are too few."""

import math
from collections.abc import Sequence

from model.errors import TrainingError
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.run_state import StageReport
from model.training.stages import VALIDATION_SHARE

RECALL_SHARE = 0.05  # of the wall-clock budget, and what training leaves of its own
RESERVED_SHARE = (
    RECALL_SHARE + 2 * VALIDATION_SHARE + 0.01
)  # and the last stage's figures, and saving
_MIN_TRAINING_S = 10.0  # of a budget that is suggested


def check_time(budget: Budget, config: TrainConfig) -> None:
    """Raises TrainingError where nothing is left to train in."""
    if config.max_steps is None and budget.seconds <= 0:
        raise _too_short(budget, config)


def check_trained(stages: Sequence[StageReport], budget: Budget, config: TrainConfig) -> None:
    """Raises TrainingError where the network made no step of stage "dense"."""
    if not next(stage.steps for stage in stages if stage.name == "dense"):
        raise _too_short(budget, config)


def _too_short(budget: Budget, config: TrainConfig) -> TrainingError:
    """A budget that would do leaves training as long as preparing took, and is twice one in which nothing was learned."""
    if config.max_steps is not None:
        return TrainingError(
            f"max_steps is {config.max_steps}, which leaves stage 'dense' no step; no bundle is written"
        )
    share = 1 - RESERVED_SHARE
    preparing_s = 60 * config.minutes * share - budget.seconds
    enough = max((2 * preparing_s + _MIN_TRAINING_S) / 60 / share, 2 * config.minutes)
    return TrainingError(
        f"{config.minutes:g} minutes are too few: preparing took {preparing_s:.0f} s, and the network made no step; "
        f"no bundle is written; give --minutes {math.ceil(10 * enough) / 10:g} or more, and --restart"
    )
