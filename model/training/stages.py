"""The three stages: dense, + indexer loss, selection on; each ends by convergence or with its share of the budget."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from model.network import Network
from model.training.batches import Batch, BatchBuilder
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.histories import Index, draw_cuts
from model.training.losses import Losses, Stage, batch_losses
from model.trie import Trie

STAGES: tuple[Stage, ...] = ("dense", "indexer", "selection")
_WARM_UP_STEPS = 30
_LAST_LEARNING_RATE = 0.05  # of the first
_MAX_GRADIENT_NORM = 1.0
_GATE_RATE_FACTOR = 20.0
_SCORES_RATE_FACTOR = 0.25  # they come trained from the stage before
_TABLES_RATE_FACTOR = 0.1
_WEIGHT_DECAY = 0.05
_BATCHES_SORTED_TOGETHER = 16


@dataclass(frozen=True)
class StageReport:
    """How one stage went. The indexer's figures are None while it does not learn."""

    name: str
    steps: int
    train_loss: float | None
    """Next-token loss, mean over the last steps; None without any."""
    validation_loss: float
    indexer_loss: float | None
    kept_attention_mass: float | None
    ended: str
    """"converged" or "budget"."""


class Convergence:
    """True once `patience` evaluations in a row brought no improvement of at least `min_improvement`."""

    def __init__(self, patience: int, min_improvement: float) -> None:
        """Nothing seen yet."""
        self._patience, self._min_improvement = patience, min_improvement
        self._best, self._without = math.inf, 0

    def reached(self, loss: float) -> bool:
        """Take one evaluation."""
        if loss < self._best - self._min_improvement:
            self._best, self._without = loss, 0
        else:
            self._without += 1
        return self._without >= self._patience


@dataclass(frozen=True)
class _ParameterGroup:
    parameters: Sequence[Tensor]
    rate_factor: float = 1.0
    weight_decay: float = 0.0


def _parameter_groups(network: Network) -> list[_ParameterGroup]:
    """Clipped one by one: the indexers' gradients must not scale the others'.

    A single number may move faster; tables that start from item vectors move slowly, or they learn users by heart.
    """
    indexer = [p for name, p in network.named_parameters() if ".indexer." in name]
    scores = [*network.repeats.score.parameters(), network.repeats.item_score.weight]
    tables = [network.features.vid.weight, network.codebooks_DKH]
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
    """Runs the stages over one network with one optimiser and one learning-rate line."""

    def __init__(
        self,
        network: Network,
        trie: Trie,
        builder: BatchBuilder,
        config: TrainConfig,
        budget: Budget,
        progress: Progress,
    ) -> None:
        """A fresh optimiser; randomness comes from the config's seed."""
        self._network, self._trie, self._builder = network, trie, builder
        self._config, self._budget, self._progress = config, budget, progress
        self._groups = _parameter_groups(network)
        self._optimiser = torch.optim.AdamW(
            [
                {"params": group.parameters, "weight_decay": group.weight_decay}
                for group in self._groups
            ],
            lr=config.learning_rate,
            fused=True,
        )
        self._random = np.random.default_rng(config.seed)
        self._cuts = self._training_cuts()

    def run(self, validation_cuts: Index) -> list[StageReport]:
        """All stages in order; what one leaves of its share goes to the ones behind it."""
        size = self._config.batch_size
        validation = [
            self._builder.build(validation_cuts[i : i + size], 1, 1, None)
            for i in range(0, len(validation_cuts), size)
        ]
        reports, shares = [], self._config.stages.shares
        for i, stage in enumerate(STAGES):
            left = 1.0 - self._budget.spent()
            until = 1.0 if i == len(shares) - 1 else 1.0 - left * (1 - shares[i] / sum(shares[i:]))
            reports.append(self._run_stage(stage, until, validation))
        return reports

    def _run_stage(self, stage: Stage, until: float, validation: list[Batch]) -> StageReport:
        rules = self._config.stages
        convergence = Convergence(rules.patience, rules.min_improvement)
        task = self._progress.add_task(stage, total=1.0)
        start, first_step = self._budget.spent(), self._budget.steps
        recent_losses: deque[float] = deque(maxlen=rules.evaluate_every)
        ended = "budget"
        while self._budget.spent() < until:
            losses = self._step(stage)
            recent_losses.append(float(losses.next_token.detach()))
            steps = self._budget.steps - first_step
            done = (self._budget.spent() - start) / max(until - start, 1e-9)
            text = f"{stage}: step {steps}, loss {np.mean(recent_losses):.3f}"
            self._progress.update(task, description=text, completed=min(done, 1.0))
            if steps % rules.evaluate_every == 0 and convergence.reached(
                self._watched(stage, self.validate(stage, validation))
            ):
                ended = "converged"
                break
        self._progress.update(task, completed=1.0)
        final = self.validate(stage, validation)
        return StageReport(
            name=stage,
            steps=self._budget.steps - first_step,
            train_loss=float(np.mean(recent_losses)) if recent_losses else None,
            validation_loss=float(final.next_token),
            indexer_loss=None if stage == "dense" else float(final.indexer),
            kept_attention_mass=None if math.isnan(final.kept) else final.kept,
            ended=ended,
        )

    def _step(self, stage: Stage) -> Losses:
        config = self._config
        rate = config.learning_rate * min(1.0, (self._budget.steps + 1) / _WARM_UP_STEPS)
        rate *= 1 - (1 - _LAST_LEARNING_RATE) * self._budget.spent()
        for settings, group in zip(self._optimiser.param_groups, self._groups, strict=True):
            settings["lr"] = rate * group.rate_factor
        batch = self._builder.build(
            next(self._cuts), config.targets, config.target_window, self._random
        )
        losses = batch_losses(self._network, self._trie, batch, stage)
        self._optimiser.zero_grad()
        losses.total(config.reconstruction_weight, config.repeat_weight).backward()  # type: ignore[no-untyped-call]
        for group in self._groups:
            nn.utils.clip_grad_norm_(group.parameters, _MAX_GRADIENT_NORM)
        self._optimiser.step()
        self._budget.steps += 1
        return losses

    @torch.inference_mode()
    def validate(self, stage: Stage, validation: list[Batch]) -> Losses:
        """Mean losses over the validation batches, without dropout."""
        self._network.eval()
        found = [batch_losses(self._network, self._trie, batch, stage) for batch in validation]
        self._network.train()
        kept = [losses.kept for losses in found if not math.isnan(losses.kept)]
        return Losses(
            torch.stack([losses.next_token for losses in found]).mean(),
            torch.stack([losses.repeats for losses in found]).mean(),
            torch.stack([losses.reconstruction for losses in found]).mean(),
            torch.stack([losses.indexer for losses in found]).mean(),
            float(np.mean(kept)) if kept else math.nan,
        )

    @staticmethod
    def _watched(stage: Stage, losses: Losses) -> float:
        """The loss whose convergence ends the stage."""
        return float(losses.indexer if stage == "indexer" else losses.next_token)

    def _training_cuts(self) -> Iterator[Index]:
        size = self._config.batch_size
        while True:
            yield from draw_cuts(
                self._builder.histories, size * _BATCHES_SORTED_TOGETHER, size, self._random
            )
