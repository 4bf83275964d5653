"""The first stage: the repeats' scores alone, from statistics and items, which costs a fraction of a network's step.

By the listwise loss of the next basket. The later stages go on from there, with the context and the gate.
"""

import time

import numpy as np
import torch
from rich.progress import TaskID
from torch import Tensor

from model.network import Network
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.candidate_batches import CandidateBatch, CandidateBatches
from model.training.config import TrainConfig
from model.training.devices import peak_memory_bytes
from model.training.divergence import check_step
from model.training.draws import StepDraws
from model.training.histories import Index
from model.training.losses import listwise_loss
from model.training.metrics import StepMetrics
from model.training.run_progress import RunProgress
from model.training.run_state import StageReport
from model.training.steps import Surroundings

STAGE = "repeats"
_SCORE_RATE, _ITEM_RATE = 3e-3, 1e-3
_LAST_RATE = 0.02  # of the first
_BATCH_SIZE = 64
_PREFIX = "repeats_optimiser/"


class RepeatStage:
    """Trains a module's scores on random cuts, on the processor: every process of a run does the same."""

    def __init__(
        self,
        network: Network,
        builder: BatchBuilder,
        config: TrainConfig,
        around: Surroundings,
        run: RunProgress,
    ) -> None:
        """A fresh optimiser, or the checkpoint's; randomness comes from the config's seed."""
        self._network, self._builder, self._config = network, builder, config
        self._around, self._run = around, run
        repeats = network.repeats
        self._parameters = [*repeats.score.parameters(), repeats.item_score.weight]
        self._optimiser = torch.optim.AdamW(
            [
                {"params": self._parameters[:-1], "weight_decay": 1e-4},
                {"params": self._parameters[-1:], "weight_decay": 0.0},
            ],
            lr=_SCORE_RATE,
            fused=True,
        )
        draws = StepDraws(builder.histories, config.seed, _BATCH_SIZE)
        self._batches = CandidateBatches(network, builder, draws, config.seed)
        self._validation: list[CandidateBatch] = []
        """Described once."""
        self._budget = self._own_budget()
        self._task: TaskID | None = None
        self._load(run.tensors)

    def run(self, validation_cuts: Index) -> StageReport:
        """Until the validation loss converges or the budget is spent. Raises as RunProgress.agree, and TrainingError."""
        state, started_s = self._run.state.repeats, time.monotonic() - self._budget.elapsed_s
        while True:
            state.elapsed_s = self._budget.elapsed_s
            spent = self._run.agree(STAGE, self._budget.spent(), self._tensors)
            if state.ended or spent >= 1:
                break
            self._advance(spent, validation_cuts)
        rules, losses = self._config.stages, state.recent_losses
        self._show(1.0)
        report = StageReport(
            name=STAGE,
            steps=state.steps,
            train_loss=float(np.mean(losses)) if losses else None,
            validation_loss=self.validate(validation_cuts) if len(validation_cuts) else None,
            indexer_loss=None,
            kept_attention_mass=None,
            ended=state.ended or "budget",
            rule=rules.describe(STAGE, self._config.repeat_share),
            seconds=round(time.monotonic() - started_s, 1),
            tokens_per_s=0.0,
            peak_memory_bytes=peak_memory_bytes(torch.device("cpu")),
        )
        self._run.state.reports = [report]
        self._run.save({})
        self._run.tensors = {}
        return report

    @torch.no_grad()
    def validate(self, cuts: Index) -> float:
        """Mean loss over the baskets at `cuts`, the same ones at each call."""
        if not self._validation:
            starts = range(0, len(cuts), _BATCH_SIZE)
            self._validation = [self._batches.of_cuts(cuts[i : i + _BATCH_SIZE]) for i in starts]
        totals = [float(self._loss(batch)) * len(batch.weights) for batch in self._validation]
        return sum(totals) / len(cuts)

    def _own_budget(self) -> Budget:
        budget, state = self._around.budget.part(self._config.repeat_share), self._run.state.repeats
        if state.seconds is not None:
            budget.resume(state.seconds, state.elapsed_s, state.steps)
        state.seconds = budget.seconds
        return budget

    def _advance(self, spent: float, validation_cuts: Index) -> None:
        """One step, and the evaluation that is due after it."""
        state, rules = self._run.state.repeats, self._config.stages
        row = self._step(1 - (1 - _LAST_RATE) * spent)
        self._budget.steps = state.steps = row.step
        state.recent_losses = [*state.recent_losses, row.repeat_loss or 0.0][
            -rules.evaluate_every :
        ]
        if state.steps % rules.evaluate_every == 0 and len(validation_cuts):
            loss = self.validate(validation_cuts)
            if state.convergence.reached(loss, state.steps, rules):
                state.ended = "plateau"
            row = row.evaluated(loss, state.convergence.smoothed)
        if state.ended is None and state.steps == rules.max_steps:
            state.ended = "max_steps"
        self._around.log.record(row)
        check_step(row, self._run.saved_step)
        self._show(self._budget.spent())

    def _step(self, rate: float) -> StepMetrics:
        groups, started = self._optimiser.param_groups, time.perf_counter()
        for settings, first in zip(groups, (_SCORE_RATE, _ITEM_RATE), strict=True):
            settings["lr"] = first * rate
        loss = self._loss(self._batches.of_step(self._budget.steps))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in self._parameters if p.grad is not None]
        )
        self._optimiser.step()
        self._optimiser.zero_grad()  # nothing is left for the first step of the stages behind
        return StepMetrics(
            stage=STAGE,
            step=self._budget.steps + 1,
            repeat_loss=float(loss.detach()),
            learning_rate=_SCORE_RATE * rate,
            gradient_norm=float(norm),
            tokens_per_s=round(_BATCH_SIZE / (time.perf_counter() - started), 1),
        )

    def _loss(self, batch: CandidateBatch) -> Tensor:
        return listwise_loss(batch.log_shares(self._network), batch.weights)

    def _show(self, done: float) -> None:
        state, progress = self._run.state.repeats, self._around.progress
        if self._task is None:
            self._task = progress.add_task(STAGE, total=1.0)
        loss = f"{np.mean(state.recent_losses):.3f}" if state.recent_losses else "-"
        text = f"{STAGE}: step {state.steps}, loss {loss}"
        progress.update(self._task, description=text, completed=done)

    def _tensors(self) -> dict[str, Tensor]:
        """What the optimiser learnt about each parameter, by its place."""
        state = self._optimiser.state_dict()["state"]
        return {
            f"{_PREFIX}{place}/{what}": tensor
            for place, tensors in state.items()
            for what, tensor in tensors.items()
        }

    def _load(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            if key.startswith(_PREFIX):
                place, what = key.removeprefix(_PREFIX).split("/")
                state.setdefault(int(place), {})[what] = tensor
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": state, "param_groups": groups})
