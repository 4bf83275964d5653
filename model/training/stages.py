"""The stages of the whole network: dense, + indexer loss, selection on; each ends by its rule or with its share."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from rich.progress import TaskID

from model.network import Network
from model.training.batches import Batch, BatchBuilder
from model.training.config import TrainConfig
from model.training.devices import peak_memory_bytes
from model.training.divergence import check_loss, check_step
from model.training.histories import Index, mixed_by_length
from model.training.losses import Losses, Stage
from model.training.optimiser import Optimiser, ParameterGroup as _ParameterGroup
from model.training.precision import Precision
from model.training.run_progress import RunProgress
from model.training.run_state import StageReport
from model.training.steps import Steps, Surroundings
from model.trie import Trie

STAGES: tuple[Stage, ...] = ("dense", "indexer", "selection")
VALIDATION_SHARE = 0.01
"""Of a time budget: the most that one pass over the validation batches takes, beyond its first batch."""
_GATE_RATE_FACTOR = 20.0
_SCORES_RATE_FACTOR = 0.25  # they come trained from the stage before
_WEIGHT_DECAY = 0.05


def _parameter_groups(network: Network, table_rate: float) -> list[_ParameterGroup]:
    """Clipped one by one: the indexers' gradients must not scale the others'.

    A single number may move faster; tables that start from item vectors move slowly by default, or they learn users by heart.
    """
    indexer = [p for name, p in network.named_parameters() if ".indexer." in name]
    scores = [*network.repeats.score.parameters(), network.repeats.item_score.weight]
    tables = [network.features.vid.weight, *network.code_tables]
    gate = [network.repeats.gate.bias]
    apart = {id(p) for p in (*indexer, *gate, *scores, *tables)}
    others = [p for p in network.parameters() if id(p) not in apart]
    return [
        _ParameterGroup(others, weight_decay=_WEIGHT_DECAY),
        _ParameterGroup(indexer),
        _ParameterGroup(tables, table_rate),
        _ParameterGroup(gate, _GATE_RATE_FACTOR),
        _ParameterGroup(scores, _SCORES_RATE_FACTOR),
    ]


class StageRunner:
    """Runs the stages over one network with one optimiser and one learning-rate line.

    A loop of single steps; what it knows between two of them is `RunProgress` and the optimiser, which a checkpoint
    holds, so that a run goes on from any step as if it had not stopped.
    """

    def __init__(
        self,
        network: Network,
        trie: Trie,
        builder: BatchBuilder,
        config: TrainConfig,
        around: Surroundings,
        run: RunProgress,
    ) -> None:
        """A fresh optimiser, or the checkpoint's; randomness comes from the config's seed. `network` lies on the device."""
        self._network, self._builder, self._config, self._around = network, builder, config, around
        self._budget, self._workers, self._log = around.budget, around.workers, around.log
        self._run, self._state, self._spent = run, run.state, 0.0
        self._optimiser = Optimiser(network, _parameter_groups(network, config.table_rate))
        self._steps = Steps(network, trie, builder, config, self._optimiser, around)
        self._optimiser.load(run.tensors)
        self._validates = True
        self._task: TaskID | None = None

    @property
    def precision(self) -> Precision:
        """Of matrix products."""
        return "bf16" if self._state.precision == "bf16" else "fp32"

    def run(self, validation_cuts: Index) -> list[StageReport]:
        """All stages in order; what one leaves of its share goes to the ones behind it.

        Raises TrainingStopped, with a checkpoint written, when a signal came; TrainingError where the run diverged;
        TrainingRunError when the run's directory cannot be used.
        """
        size = self._config.batch_size
        parts = mixed_by_length(self._builder.histories, validation_cuts, size, self._config.seed)
        validation = [self._builder.build(cuts, 1, 1, None) for cuts in parts[self._workers.shard]]
        self._validates = len(validation_cuts) > 0
        self._prepare(validation)
        validation = validation[: self._state.validation_batches]
        while self._state.stage < len(STAGES):
            stage = STAGES[self._state.stage]
            self._spent = self._run.agree(stage, self._budget.spent(), self._optimiser.tensors)
            if self._state.until_spent is None:
                self._begin_stage()
            if self._state.ended or self._spent >= (self._state.until_spent or 0.0):
                self._close_stage(validation)
            else:
                self._advance(validation)
        return self._state.reports

    def _prepare(self, validation: Sequence[Batch]) -> None:
        """What is measured before the first step."""
        if self._state.precision is None:
            self._state.precision = self._steps.choose_precision()
        self._steps.precision = self.precision
        if self._state.validation_batches is None:
            limit_s = self._budget.limit_s(VALIDATION_SHARE)
            self._state.validation_batches = self._steps.affordable(validation, limit_s)

    def _begin_stage(self) -> None:
        state, shares = self._state, self._config.stages.shares
        left, i = 1.0 - self._spent, state.stage
        last = i == len(shares) - 1
        state.until_spent = 1.0 if last else 1.0 - left * (1 - shares[i] / sum(shares[i:]))
        state.start_spent, state.first_step = self._spent, self._budget.steps
        state.start_s = self._budget.elapsed_s

    def _advance(self, validation: Sequence[Batch]) -> None:
        """One step, and the evaluation that is due after it."""
        state, rules = self._state, self._config.stages
        stage = STAGES[state.stage]
        row, tokens = self._steps.make(self._budget.steps, stage, self._spent)
        row = dataclasses.replace(row, step=state.repeats.steps + row.step)
        self._budget.steps += 1
        state.tokens += tokens
        if row.next_token_loss is not None:
            losses = [*state.recent_losses, row.next_token_loss]
            state.recent_losses = losses[-rules.evaluate_every :]
        steps = self._budget.steps - state.first_step
        if steps % rules.evaluate_every == 0 and self._validates:
            loss = self._watched(stage, self._steps.validate(stage, validation))
            if state.convergence.reached(loss, steps, rules):
                state.ended = "plateau"
            row = row.evaluated(loss, state.convergence.smoothed)
        if state.ended is None and steps == rules.max_steps:
            state.ended = "max_steps"
        self._log.record(row)
        check_step(row, self._run.saved_step)
        self._show(stage, steps)

    def _close_stage(self, validation: Sequence[Batch]) -> None:
        state, stage = self._state, STAGES[self._state.stage]
        final = self._steps.validate(stage, validation)
        loss = float(final.next_token)
        if self._validates:
            check_loss(loss, stage, self._run.step)
        seconds = self._budget.elapsed_s - state.start_s
        rule = self._config.stages.describe(
            "indexer" if stage == "indexer" else "next-token",
            self._config.stages.shares[state.stage],
        )
        report = StageReport(
            name=stage,
            steps=self._budget.steps - state.first_step,
            train_loss=float(np.mean(state.recent_losses)) if state.recent_losses else None,
            validation_loss=loss if self._validates else None,
            indexer_loss=float(final.indexer) if self._validates and stage != "dense" else None,
            kept_attention_mass=None if math.isnan(final.kept) else final.kept,
            ended=state.ended or "budget",
            rule=rule,
            seconds=round(seconds, 1),
            tokens_per_s=round(state.tokens / max(seconds, 1e-9), 1),
            peak_memory_bytes=peak_memory_bytes(self._around.device),
            kept_by_top_k=self._steps.kept_by_top_k(stage, validation),
        )
        self._show(stage, report.steps, done=1.0)
        self._task = None
        state.begin_next(report)
        self._run.save(self._optimiser.tensors())

    def _show(self, stage: Stage, steps: int, done: float | None = None) -> None:
        state, progress = self._state, self._around.progress
        if self._task is None:
            self._task = progress.add_task(stage, total=1.0)
        if done is None:
            share = max((state.until_spent or 1.0) - state.start_spent, 1e-9)
            done = min(1.0, (self._budget.spent() - state.start_spent) / share)
        loss = f"{np.mean(state.recent_losses):.3f}" if state.recent_losses else "-"
        text = f"{stage}: step {steps}, loss {loss}"
        progress.update(self._task, description=text, completed=done)

    @staticmethod
    def _watched(stage: Stage, losses: Losses) -> float:
        """The loss whose convergence ends the stage."""
        return float(losses.indexer if stage == "indexer" else losses.next_token + losses.next_item)
