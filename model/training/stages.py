"""The three stages: dense, + indexer loss, selection on; each ends by convergence or with its share of the budget."""

import math
from collections.abc import Sequence

import numpy as np
from rich.progress import TaskID

from model.errors import TrainingStopped
from model.network import Network
from model.training.batches import Batch, BatchBuilder
from model.training.config import TrainConfig
from model.training.devices import peak_memory_bytes
from model.training.histories import Index, mixed_by_length
from model.training.losses import Losses, Stage
from model.training.optimiser import Optimiser, ParameterGroup as _ParameterGroup
from model.training.precision import Precision
from model.training.run_state import RunState, StageReport
from model.training.steps import Steps, Surroundings
from model.trie import Trie

STAGES: tuple[Stage, ...] = ("dense", "indexer", "selection")
VALIDATION_SHARE = 0.01
"""Of a time budget: the most that one pass over the validation batches takes, beyond its first batch."""
_GATE_RATE_FACTOR = 20.0
_SCORES_RATE_FACTOR = 0.25  # they come trained from the stage before
_TABLES_RATE_FACTOR = 0.1
_WEIGHT_DECAY = 0.05


def _parameter_groups(network: Network) -> list[_ParameterGroup]:
    """Clipped one by one: the indexers' gradients must not scale the others'.

    A single number may move faster; tables that start from item vectors move slowly, or they learn users by heart.
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
        _ParameterGroup(tables, _TABLES_RATE_FACTOR),
        _ParameterGroup(gate, _GATE_RATE_FACTOR),
        _ParameterGroup(scores, _SCORES_RATE_FACTOR),
    ]


class StageRunner:
    """Runs the stages over one network with one optimiser and one learning-rate line.

    A loop of single steps; what it knows between two of them is `RunState`, weights and optimiser, which a checkpoint
    holds, so that a run goes on from any step as if it had not stopped.
    """

    def __init__(
        self,
        network: Network,
        trie: Trie,
        builder: BatchBuilder,
        config: TrainConfig,
        around: Surroundings,
    ) -> None:
        """A fresh optimiser; randomness comes from the config's seed. `network` lies on the device."""
        self._network, self._builder, self._config, self._around = network, builder, config, around
        self._budget, self._workers, self._log = around.budget, around.workers, around.log
        self._optimiser = Optimiser(network, _parameter_groups(network))
        self._steps = Steps(network, trie, builder, config, self._optimiser, around)
        self._state, self._spent = RunState(), 0.0
        self._task: TaskID | None = None

    @property
    def precision(self) -> Precision:
        """Of matrix products."""
        return "bf16" if self._state.precision == "bf16" else "fp32"

    def run(self, validation_cuts: Index, done: Sequence[StageReport] = ()) -> list[StageReport]:
        """All stages in order, behind those `done`; what one leaves of its share goes to the ones behind it.

        Goes on from the log's checkpoint, if there is one. Raises TrainingStopped, with a checkpoint written, when a
        signal came; TrainingRunError when the run's directory cannot be used.
        """
        size = self._config.batch_size
        shard = self._workers.shard
        parts = mixed_by_length(self._builder.histories, validation_cuts, size, self._config.seed)
        validation = [self._builder.build(cuts, 1, 1, None) for cuts in parts[shard]]
        self._state.reports = list(done)
        self._resume(validation)
        validation = validation[: self._state.validation_batches]
        try:
            while self._state.stage < len(STAGES):
                self._agree()
                if self._state.until_spent is None:
                    self._begin_stage()
                if self._state.ended or self._spent >= (self._state.until_spent or 0.0):
                    self._close_stage(validation)
                else:
                    self._advance(validation)
        finally:
            self._log.close()
        return self._state.reports

    def _resume(self, validation: Sequence[Batch]) -> None:
        found = self._log.load()
        if found is not None:
            tensors, progress = found
            prefix = "network/"
            weights = {
                k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)
            }
            self._network.load_state_dict(weights)
            self._optimiser.load(tensors)
            self._state = RunState.of_document(progress["state"])
            self._budget.resume(progress["seconds"], progress["elapsed_s"], progress["step"])
            if self._workers.is_first:
                self._around.progress.console.print(f"going on after step {self._budget.steps}")
        self._log.begin(self._budget.steps)
        if self._state.precision is None:
            self._state.precision = self._steps.choose_precision()
        self._steps.precision = self.precision
        if self._state.validation_batches is None:
            limit_s = self._budget.limit_s(VALIDATION_SHARE)
            self._state.validation_batches = self._steps.affordable(validation, limit_s)

    def _save(self) -> None:
        weights = {f"network/{name}": t for name, t in self._network.state_dict().items()}
        self._log.save(
            weights | self._optimiser.tensors(),
            {
                "state": self._state.document(),
                "seconds": self._budget.seconds,
                "elapsed_s": self._budget.elapsed_s,
                "step": self._budget.steps,
            },
        )

    def _agree(self) -> None:
        """Clock and signals of the first process count for all; it writes a checkpoint when one is due."""
        spent, stop, due = self._workers.agree(
            self._budget.spent(), self._log.stop_signal, self._log.is_due
        )
        self._spent = spent
        if due or stop:
            self._save()
        if stop:
            raise TrainingStopped(
                f"stopped after step {self._budget.steps} in stage {STAGES[self._state.stage]!r}; "
                "the same command goes on from there",
                int(stop),
            )

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
        self._budget.steps += 1
        state.tokens += tokens
        state.recent_losses = [*state.recent_losses, row.next_token_loss][-rules.evaluate_every :]
        steps = self._budget.steps - state.first_step
        if steps % rules.evaluate_every == 0:
            loss = self._watched(stage, self._steps.validate(stage, validation))
            if state.convergence.reached(loss, steps, rules):
                state.ended = "plateau"
            smoothed = state.convergence.smoothed
            row = row.evaluated(loss, math.nan if smoothed is None else smoothed)
        if state.ended is None and steps == rules.max_steps:
            state.ended = "max_steps"
        self._log.record(row)
        self._show(stage, steps)

    def _close_stage(self, validation: Sequence[Batch]) -> None:
        state, stage = self._state, STAGES[self._state.stage]
        final = self._steps.validate(stage, validation)
        seconds = self._budget.elapsed_s - state.start_s
        rule = self._config.stages.describe(
            "indexer" if stage == "indexer" else "next-token",
            self._config.stages.shares[state.stage],
        )
        report = StageReport(
            name=stage,
            steps=self._budget.steps - state.first_step,
            train_loss=float(np.mean(state.recent_losses)) if state.recent_losses else None,
            validation_loss=float(final.next_token),
            indexer_loss=None if stage == "dense" else float(final.indexer),
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
        self._save()

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
        return float(losses.indexer if stage == "indexer" else losses.next_token)
