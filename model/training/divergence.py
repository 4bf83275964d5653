"""Figures that are no numbers end a run at once: nothing good comes after them."""

import math

import torch
from torch import nn

from model.errors import TrainingError
from model.training.metrics import StepMetrics


def check_step(row: StepMetrics, checkpoint_step: int | None) -> None:
    """Raises TrainingError, naming step and remedy, where a figure of the step is not finite."""
    broken = row.not_finite()
    if not broken:
        return
    cause = (
        "train.repeat_share = 0 leaves the stage out"
        if row.stage == "repeats"
        else "lower train.learning_rate"
    )
    kept = ""
    if checkpoint_step is not None:
        kept = f" (the checkpoint, of step {checkpoint_step}, is of these settings; others begin again with --restart)"
    raise TrainingError(
        f"training diverged at step {row.step} in stage {row.stage!r}: {', '.join(broken)} at learning rate "
        f"{row.learning_rate:.3g}; no bundle is written; {cause}{kept}"
    )


def check_loss(loss: float, stage: str, step: int) -> None:
    """Raises TrainingError where a validation loss is not finite."""
    if not math.isfinite(loss):
        raise TrainingError(
            f"training diverged at step {step} in stage {stage!r}: the validation loss is {loss}; no bundle is written; "
            "lower train.learning_rate and begin again with --restart"
        )


def check_weights(network: nn.Module) -> None:
    """Raises TrainingError where a weight is not finite."""
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise TrainingError(
                f"training diverged: {name} holds values that are not finite; no bundle is written; "
                "lower train.learning_rate and begin again with --restart"
            )
