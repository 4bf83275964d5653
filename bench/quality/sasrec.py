"""SASRec with a softmax over all items, as strong as minutes on a core allow; where users come back, histories hold repeats."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench.quality.full_softmax import full_softmax_loss
from bench.quality.neural_fit import NeuralRanker, Schedule, products_in
from bench.quality.sasrec_network import SasrecConfig, SasrecNetwork
from bench.quality.task import NUM_RANKED, Budget, ItemIds, Task
from bench.quality.validation import mean_ndcg, validation_sample
from bench.quality.windows import (
    PADDING,
    Batch,
    Contexts,
    Sequences,
    WindowBatches,
    find_places,
    pad,
)
from model.training.devices import new_tensors_on
from model.training.histories import Index

_RANK_BATCH = 128


@dataclass(frozen=True, kw_only=True)
class SasrecSettings:
    """One kind of data."""

    network: SasrecConfig
    schedule: Schedule
    batch_tokens: int = 1024
    """Interactions per step, padding included. Small ones make more steps of the same minutes."""
    validation_cuts: int = 2000
    bf16: bool = True
    """Products in bfloat16; weights stay float32."""


SHORT = SasrecSettings(
    network=SasrecConfig(dropout=0.3),
    schedule=Schedule(learning_rate=2e-3, num_judgements=12),
    batch_tokens=512,
)
"""Sequences of a few items (Amazon)."""
LONG = SasrecSettings(
    network=SasrecConfig(max_len=200, dropout=0.2), schedule=Schedule(learning_rate=2e-3)
)
"""Hundreds of interactions (MovieLens)."""
BASKETS = SasrecSettings(
    network=SasrecConfig(max_len=256, dropout=0.2),
    schedule=Schedule(learning_rate=2e-3, num_judgements=10),
    validation_cuts=1000,
)
"""Baskets of many items, and repeats (Complete Journey)."""


class Sasrec(NeuralRanker[SasrecSettings]):
    """A Ranker."""

    name = "sasrec"

    def prepare(self, task: Task, budget: Budget) -> tuple["_Training", Schedule]:
        """As NeuralRanker.prepare."""
        settings = self.settings or fitting_settings(task)
        if budget.scale == "full":
            settings = at_full_scale(settings)
        training = _Training(task, settings, budget.seed)
        self._network, self._bf16 = training.network, settings.bf16
        return training, settings.schedule

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """Item ids, best first; without what the user had where targets are never repeats."""
        contexts = Contexts(task.histories, task.items.item_ids)
        for best in rank_places(self._network, contexts, cuts, task.repeats, self._bf16):
            yield task.items.item_ids[best]


def fitting_settings(task: Task) -> SasrecSettings:
    """By what the data are like."""
    if task.repeats:
        return BASKETS
    lengths = np.bincount(task.training.user_index)
    return LONG if np.median(lengths[lengths > 0]) > SHORT.network.max_len else SHORT


def at_full_scale(settings: SasrecSettings) -> SasrecSettings:
    """For a GPU, or for hours."""
    network = replace(settings.network, width=256, num_blocks=4, num_heads=4, ffn_width=1024)
    schedule = replace(settings.schedule, learning_rate=1e-3)
    return replace(settings, network=network, schedule=schedule, batch_tokens=16_384)


class _Training:
    """What `Fit` asks for."""

    def __init__(self, task: Task, settings: SasrecSettings, seed: int) -> None:
        ids = task.items.item_ids
        self._task, self._settings = task, settings
        self._random = np.random.default_rng(seed)
        self._batches = WindowBatches(
            Sequences.of(task.training_histories(), ids),
            settings.network.max_len,
            settings.batch_tokens,
        )
        self._contexts = Contexts(task.histories, ids)
        self._cuts = validation_sample(task, settings.validation_cuts)
        self._targets = [find_places(task.targets(cut), ids) for cut in self._cuts.tolist()]
        self.network = SasrecNetwork(settings.network, len(ids))
        with torch.no_grad():
            self.network.bias.copy_(log_popularity(task))

    def batches(self) -> Iterator[Batch]:
        return self._batches.epoch(self._random)

    def loss(self, batch: Batch) -> Tensor:
        """Mean over baskets."""
        hidden = _encode(self.network, batch.items_BL, batch.hours_BL, self._settings.bf16)
        items = torch.as_tensor(batch.targets)
        weights = torch.as_tensor(batch.weights / len(batch.rows))
        predicting = self.network.dropout(hidden.flatten(0, 1)[torch.as_tensor(batch.rows)])
        return full_softmax_loss(
            predicting, self.network.table(), self.network.bias, (batch.target_rows, items, weights)
        )

    def quality(self) -> float:
        places = rank_places(
            self.network, self._contexts, self._cuts, self._task.repeats, self._settings.bf16
        )
        return mean_ndcg(places, self._targets)


def log_popularity(task: Task) -> Tensor:
    """Of the training interactions, each item having one more."""
    places = find_places(task.training.rows["item_id"], task.items.item_ids)
    counts = 1 + np.bincount(places[places >= 0], minlength=len(task.items.item_ids))
    return torch.as_tensor(np.log(counts / counts.mean())).float()


def _encode(network: SasrecNetwork, items_BL: Index, hours_BL: Index, bf16: bool) -> Tensor:
    with products_in(bf16, network.bias.device):
        hidden: Tensor = network(torch.as_tensor(items_BL), torch.as_tensor(hours_BL))
    return hidden.to(torch.bfloat16 if bf16 else torch.float32)


def rank_places(
    network: SasrecNetwork, contexts: Contexts, cuts: Index, repeats: bool, bf16: bool
) -> Iterator[Index]:
    """Places of the best items at each cut. Batches are of neighbours, so order cuts by length."""
    for first in range(0, len(cuts), _RANK_BATCH):
        batch = cuts[first : first + _RANK_BATCH].tolist()
        newest = [contexts.newest(cut, network.config.max_len) for cut in batch]
        with torch.inference_mode(), new_tensors_on(network.bias.device):
            lasts = torch.tensor([max(1, len(items)) - 1 for items, _ in newest])
            hidden = _encode(
                network, pad([i for i, _ in newest], PADDING), pad([h for _, h in newest], 0), bf16
            )
            scores = network.scores(hidden[torch.arange(len(batch)), lasts].float())
            for row, cut in zip(scores, batch, strict=True):
                if not repeats:
                    row[torch.as_tensor(contexts.seen(cut))] = -torch.inf
            best = scores.topk(min(NUM_RANKED, scores.shape[1])).indices
        yield from best.cpu().numpy()
