"""The first stage: the repeats' scores alone, from statistics and items, which costs a fraction of a network's step.

By the listwise loss of the next basket. The later stages go on from there, with the context and the gate.
"""

import time
from collections import deque

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from model.repeats import Repeats
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.convergence import Convergence
from model.training.devices import peak_memory_bytes
from model.training.draws import StepDraws
from model.training.histories import Index
from model.training.losses import repeat_loss
from model.training.run_state import StageReport

_SCORE_RATE, _ITEM_RATE = 3e-3, 1e-3
_LAST_RATE = 0.02  # of the first
_BATCH_SIZE = 64


class RepeatStage:
    """Trains a module's scores on random cuts."""

    def __init__(self, repeats: Repeats, builder: BatchBuilder, config: TrainConfig) -> None:
        """A fresh optimiser; randomness comes from the config's seed."""
        self._repeats, self._builder, self._config = repeats, builder, config
        self._optimiser = torch.optim.AdamW(
            [
                {"params": list(repeats.score.parameters()), "weight_decay": 1e-4},
                {"params": [repeats.item_score.weight], "weight_decay": 0.0},
            ],
            lr=_SCORE_RATE,
            fused=True,
        )
        self._draws = StepDraws(builder.histories, config.seed, _BATCH_SIZE)

    def run(self, validation_cuts: Index, budget: Budget, progress: Progress) -> StageReport:
        """Until the validation loss converges or the budget is spent."""
        rules = self._config.stages
        convergence, started_s = Convergence(), time.monotonic()
        task, ended = progress.add_task("repeats", total=1.0), "budget"
        losses: deque[float] = deque(maxlen=rules.evaluate_every)
        while budget.spent() < 1:
            rate = 1 - (1 - _LAST_RATE) * budget.spent()
            losses.append(self._step(self._draws.cuts(budget.steps), rate))
            budget.steps += 1
            text = f"repeats: step {budget.steps}, loss {np.mean(losses):.3f}"
            progress.update(task, description=text, completed=budget.spent())
            evaluated = budget.steps % rules.evaluate_every == 0
            if evaluated and convergence.reached(
                self.validate(validation_cuts), budget.steps, rules
            ):
                ended = "plateau"
                break
        progress.update(task, completed=1.0)
        return StageReport(
            name="repeats",
            steps=budget.steps,
            train_loss=float(np.mean(losses)) if losses else None,
            validation_loss=self.validate(validation_cuts),
            indexer_loss=None,
            kept_attention_mass=None,
            ended=ended,
            rule=rules.describe("repeats", self._config.repeat_share),
            seconds=round(time.monotonic() - started_s, 1),
            tokens_per_s=0.0,
            peak_memory_bytes=peak_memory_bytes(torch.device("cpu")),
        )

    @torch.inference_mode()
    def validate(self, cuts: Index) -> float:
        """Mean loss over the baskets at `cuts`."""
        batches = [cuts[i : i + _BATCH_SIZE] for i in range(0, len(cuts), _BATCH_SIZE)]
        totals = [float(self._loss(batch)) * len(batch) for batch in batches]
        return sum(totals) / max(1, len(cuts))

    def _step(self, cuts: Index, rate: float) -> float:
        for settings, first in zip(
            self._optimiser.param_groups, (_SCORE_RATE, _ITEM_RATE), strict=True
        ):
            settings["lr"] = first * rate
        loss = self._loss(cuts)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        self._optimiser.zero_grad()  # nothing is left for the first step of the stages behind
        return float(loss.detach())

    def _loss(self, cuts: Index) -> Tensor:
        candidates, weights = self._builder.repeats(cuts)
        return repeat_loss(self._repeats.shares(candidates), weights)
