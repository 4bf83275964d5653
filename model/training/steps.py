"""One training step: draw a batch, compute losses and gradients, move the weights; and the validation loss."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.progress import Progress

from model.decoder import IndexerTrace
from model.mid_term import KEPT_AT
from model.network import Network
from model.training.arrivals import arrival_cuts
from model.training.batches import Batch, BatchBuilder
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.data_parallel import Workers, mean_losses, scale_to_share
from model.training.devices import new_tensors_on, on_device
from model.training.draws import StepDraws
from model.training.histories import Index
from model.training.losses import (
    Losses,
    Stage,
    batch_losses,
    encode_batch,
    item_losses,
    kept_sums,
    next_token_loss,
)
from model.training.metrics import StepMetrics
from model.training.optimiser import Optimiser
from model.training.precision import Precision, autocast, faster_precision
from model.training.run_log import RunLog
from model.trie import Trie

_WARM_UP_STEPS = 30
_LAST_LEARNING_RATE = 0.05  # of the first


@dataclass(frozen=True)
class Surroundings:
    """What a run works with, beside network and data."""

    budget: Budget
    progress: Progress
    log: RunLog
    workers: Workers
    device: torch.device


class Steps:
    """Makes steps on one network. What is random about a step comes from the seed and its number."""

    def __init__(
        self,
        network: Network,
        trie: Trie,
        builder: BatchBuilder,
        config: TrainConfig,
        optimiser: Optimiser,
        around: Surroundings,
    ) -> None:
        """`network` lies on the device."""
        self._network, self._trie, self._builder = network, on_device(trie, around.device), builder
        self._config, self._optimiser = config, optimiser
        self._workers, self._device = around.workers, around.device
        even_len = config.history.recent_len if config.even_batches else None
        self._draws = StepDraws(builder.histories, config.seed, config.batch_size, even_len)
        self._arrivals = self._arrival_cuts()
        self.precision: Precision = "fp32"

    def make(self, step: int, stage: Stage, spent: float) -> tuple[StepMetrics, float]:
        """Make step number `step` (from 0) where `spent` of the budget is; returns its metrics and tokens."""
        config = self._config
        started = time.perf_counter()
        rate = config.learning_rate * min(1.0, (step + 1) / _WARM_UP_STEPS)
        rate *= 1 - (1 - _LAST_LEARNING_RATE) * spent
        items_alone = stage == "dense" and step % config.codes_every != 0
        batch = self._batch(step, stage, recent_alone=items_alone)
        losses = self._forward_backward(batch, step, None if items_alone else stage)
        norm = self._optimiser.step(rate, self._workers)
        own = [
            float(loss.detach())
            for loss in (
                losses.next_token,
                losses.reconstruction,
                losses.repeats,
                losses.indexer,
                losses.next_item,
            )
        ]
        num_codes = 0 if items_alone else (batch.target_weights > 0).sum() * self._trie.num_levels
        num_tokens = batch.mask.sum() + num_codes
        kept_at = losses.kept_at or (0.0,) * (2 * len(KEPT_AT))
        *figures, tokens = self._workers.sum([*own, losses.kept, *kept_at, float(num_tokens)])
        metrics = StepMetrics(
            stage=stage,
            step=step + 1,
            next_token_loss=None if items_alone else figures[0],
            reconstruction_loss=None if items_alone else figures[1],
            repeat_loss=None if items_alone else figures[2],
            indexer_loss=None if stage == "dense" else figures[3],
            next_item_loss=figures[4] if config.network.next_item.enabled else None,
            kept_attention_mass=None if math.isnan(figures[5]) else figures[5],
            **{f"kept_{k}": mass for k, mass in _kept_means(figures[6:]).items()},
            learning_rate=rate,
            gradient_norm=norm,
            tokens_per_s=round(tokens / (time.perf_counter() - started), 1),
        )
        return metrics, tokens

    def _arrival_cuts(self) -> Index:
        builder, config = self._builder, self._config
        if not config.arrival_cuts:
            return np.empty(0, np.int64)
        return arrival_cuts(builder.histories, builder.first_codes, config.history)

    def _favoured(self, stage: Stage) -> list[tuple[Index, float]]:
        """Cuts that are drawn more often than others: arrivals not in the last stage, which learns how often they come."""
        config, favoured = self._config, []
        if config.newest_cuts:
            favoured.append((self._builder.histories.newest_train_cuts, config.newest_cuts))
        if stage != "selection" and len(self._arrivals):
            favoured.append((self._arrivals, config.arrival_cuts))
        return favoured

    def _batch(self, step: int, stage: Stage, *, recent_alone: bool = False) -> Batch:
        config = self._config
        batch = self._builder.build(
            self._draws.cuts(step, self._favoured(stage)),
            config.targets,
            config.target_window,
            self._draws.targets(step),
            self._workers.shard,
            recent_alone=recent_alone,
        )
        return on_device(batch, self._device)

    def _forward_backward(self, batch: Batch, step: int, stage: Stage | None) -> Losses:
        config, device = self._config, self._device
        self._draws.seed_dropout(step, self._workers.rank)
        with new_tensors_on(device):
            losses = self._losses(batch, stage, self.precision)
            reconstruction_len = config.network.lifecycle.reconstruction_len
            losses = scale_to_share(losses, batch, self._workers, reconstruction_len)
            self._backward(losses)
        return losses

    def choose_precision(self) -> Precision:
        """The configured one, or the faster one. A run of a step budget can be repeated, so the clock has no say in it."""
        config = self._config
        if config.precision != "auto":
            return config.precision
        if config.max_steps is not None:
            return "fp32"
        chosen: Precision = "fp32"
        if self._workers.is_first:
            chosen = faster_precision(self._attempt, self._device)
        (bf16,) = self._workers.agree(chosen == "bf16")
        return "bf16" if bf16 else "fp32"

    def _attempt(self, precision: Precision) -> None:
        """One step of this process alone, of the kind that most are, without consequences."""
        items_alone = self._config.codes_every > 1
        batch = self._batch(0, "dense", recent_alone=items_alone)
        with new_tensors_on(self._device):
            losses = self._losses(batch, None if items_alone else "dense", precision)
            self._backward(losses)
        self._optimiser.forget_gradients()

    def _losses(self, batch: Batch, stage: Stage | None, precision: Precision) -> Losses:
        """Without a stage, items alone learn."""
        with autocast(precision, self._device):
            if stage is None:
                return item_losses(self._network, batch)
            return batch_losses(self._network, self._trie, batch, stage)

    def _backward(self, losses: Losses) -> None:
        config = self._config
        total = losses.total(
            config.reconstruction_weight, config.repeat_weight, config.next_item_weight
        )
        if total.requires_grad:  # of items alone it is not where nothing followed that is known
            total.backward()  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def affordable(self, validation: Sequence[Batch], limit_s: float) -> int:
        """How many batches per process a pass has time for: those after which `limit_s` are over, one at least.

        The first process has as many batches as any, and its clock decides.
        """
        start, device = time.monotonic(), self._device
        (most,) = map(int, self._workers.agree(len(validation)))
        if limit_s == math.inf:
            return most
        self._network.eval()
        taken = 0
        while taken < most:
            with new_tensors_on(device), autocast(self.precision, device):
                for batch in validation[taken : taken + 1]:
                    losses = batch_losses(
                        self._network, self._trie, on_device(batch, device), "selection"
                    )
                    losses.next_token.item()
            taken += 1
            (over,) = self._workers.agree(time.monotonic() - start >= limit_s)
            if over:
                break
        self._network.train()
        return taken

    @torch.inference_mode()
    def validate(self, stage: Stage, validation: Sequence[Batch]) -> Losses:
        """Mean losses over the validation batches of all processes, without dropout."""
        device = self._device
        self._network.eval()
        with new_tensors_on(device), autocast(self.precision, device):
            found = [
                batch_losses(self._network, self._trie, on_device(batch, device), stage)
                for batch in validation
            ]
        self._network.train()
        return mean_losses(found, self._workers)

    @torch.inference_mode()
    def kept_by_top_k(self, stage: Stage, validation: Sequence[Batch]) -> dict[str, float | None]:
        """Mean attention mass that the indexers' best k keep, for every k of KEPT_AT; empty before they learn.

        None where no mid-term segment is longer than k.
        """
        device, sums = self._device, np.zeros(2 * len(KEPT_AT))
        self._network.eval()
        with new_tensors_on(device), autocast(self.precision, device):
            for batch in () if stage == "dense" else validation:
                moved, trace = on_device(batch, device), IndexerTrace()
                context, _ = encode_batch(self._network, moved)
                next_token_loss(self._network, self._trie, context, moved, stage, trace)
                sums += kept_sums(trace, batch)
        self._network.train()
        means = _kept_means(self._workers.sum(sums.tolist()))
        return {} if stage == "dense" else {str(k): mass for k, mass in means.items()}


def _kept_means(sums: Sequence[float]) -> dict[int, float | None]:
    """From `kept_sums`; None where no segment is longer."""
    masses, counts = sums[: len(KEPT_AT)], sums[len(KEPT_AT) :]
    return {
        k: mass / count if count else None
        for k, mass, count in zip(KEPT_AT, masses, counts, strict=True)
    }
