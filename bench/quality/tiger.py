"""A TIGER-style rival (arXiv 2305.05065): a T5 that writes the next item's SID, kept to the catalogue by its trie.

SIDs are those that our tokenizer gives, with TIGER's last code, which tells items of one SID apart. Not taken over: tokens
of hashed users, and beams that may leave the catalogue.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from bench.quality.neural_fit import NeuralRanker, Schedule, products_in
from bench.quality.task import Budget, ItemIds, Task
from bench.quality.tiger_network import Encoded, TigerConfig, TigerNetwork
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
from model.tokenizer.fitting import fit_tokenizer
from model.tokenizer.item_vectors import ItemVectorConfig
from model.training.config import TrainConfig
from model.training.devices import new_tensors_on, on_device
from model.training.histories import Index
from model.training.item_blocks import build_item_vectors
from model.trie import Trie


@dataclass(frozen=True, kw_only=True)
class TigerSettings:
    """One kind of data."""

    network: TigerConfig
    schedule: Schedule
    batch_items: int = 1024
    """Interactions per step, padding included."""
    beam_width: int = 64
    rank_batch: int = 32
    validation_cuts: int = 1000
    validation_beam_width: int = 20
    bf16: bool = True


_SCHEDULE = Schedule(learning_rate=3e-3, weight_decay=0.01, num_judgements=10)
NEXT_ITEM = TigerSettings(network=TigerConfig(), schedule=_SCHEDULE)
BASKETS = TigerSettings(network=TigerConfig(max_items=50), schedule=_SCHEDULE)
"""Baskets of many items, and repeats (Complete Journey)."""


class Tiger(NeuralRanker[TigerSettings]):
    """A Ranker."""

    name = "tiger"

    def prepare(self, task: Task, budget: Budget) -> tuple["_Training", Schedule]:
        """As NeuralRanker.prepare; fits the tokenizer, too."""
        self._settings = self.settings or (BASKETS if task.repeats else NEXT_ITEM)
        if budget.scale == "full":
            self._settings = at_full_scale(self._settings)
        with torch.device("cpu"):  # the tokenizer's own place
            codes = semantic_ids(task, budget.seed)
        self._catalogue = SidCatalogue(codes, task.items.counts)
        training = _Training(task, self._catalogue, self._settings, budget.seed)
        self._network = training.network
        return training, self._settings.schedule

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """Item ids, best first; without what the user had where targets are never repeats."""
        contexts = Contexts(task.histories, task.items.item_ids)
        ranking = _Ranking(self._network, self._catalogue, contexts, self._settings)
        for best in ranking.places(cuts, self._settings.beam_width, task.repeats):
            yield task.items.item_ids[best]


def at_full_scale(settings: TigerSettings) -> TigerSettings:
    """As large as the paper's, for a GPU or for hours."""
    network = replace(settings.network, num_heads=6, width=384, ffn_width=1024, num_layers=4)
    schedule = replace(settings.schedule, learning_rate=1e-3)
    return replace(settings, network=network, schedule=schedule, batch_items=8_192)


class SidCatalogue:
    """One SID per item, with its last code, and their trie. Shapes: N items, D levels."""

    def __init__(self, codes: Index, counts: Index) -> None:
        """Items of one SID get their last code by popularity."""
        order = np.lexsort((-counts, *codes.T[::-1]))
        ordered = codes[order]
        new = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
        starts = np.flatnonzero(new)
        last = np.arange(len(codes)) - starts[np.cumsum(new) - 1]
        sids = np.column_stack([ordered, last])
        self.trie = Trie(sids, counts[order])
        self.place_of_sid = order
        """The item of each SID number of the trie."""
        self.codes_ND = np.empty_like(sids)
        self.codes_ND[order] = sids
        self.codebook_sizes = tuple(int(size) for size in sids.max(0) + 1)


def semantic_ids(task: Task, seed: int) -> Index:
    """Codes [N, D] by our tokenizer as `gemstream train` fits it, titles included where there are any."""
    text_weight = 1.0 if any(task.items.titles) else 0.0
    config = TrainConfig(seed=seed, items=ItemVectorConfig(text_weight=text_weight))
    vectors = build_item_vectors(task.training_histories(), task.items, config).vectors_RV
    tokenizer = fit_tokenizer(vectors, config.tokenizer, seed)
    codes: Index = tokenizer.assign(vectors, config.tokenizer.bounds).numpy()
    return codes


@dataclass(frozen=True)
class Targets:
    """What the windows of a batch predict, padded with weight 0."""

    items_BS: Index
    num_items_BS: Index
    """How many items of the window are its context."""
    weights_BS: npt.NDArray[np.float32]


def arrange_targets(batch: Batch) -> Targets:
    """By window."""
    windows, positions = np.divmod(batch.rows[batch.target_rows], batch.items_BL.shape[1])
    counts = np.bincount(windows, minlength=len(batch.items_BL))
    within = np.arange(len(windows)) - np.repeat(np.cumsum(counts) - counts, counts)
    items = np.zeros((len(counts), counts.max()), np.int64)
    num_items, weights = np.ones_like(items), np.zeros(items.shape, np.float32)
    items[windows, within] = batch.targets
    num_items[windows, within] = positions + 1
    weights[windows, within] = batch.weights
    return Targets(items, num_items, weights)


class _Training:
    """What `Fit` asks for: windows of histories, each position of which predicts as in `windows`."""

    def __init__(
        self, task: Task, catalogue: SidCatalogue, settings: TigerSettings, seed: int
    ) -> None:
        ids = task.items.item_ids
        self._task, self._catalogue, self._settings = task, catalogue, settings
        self._random = np.random.default_rng(seed)
        self._batches = WindowBatches(
            Sequences.of(task.training_histories(), ids),
            settings.network.max_items,
            settings.batch_items,
        )
        self.network = TigerNetwork(settings.network, catalogue.codebook_sizes)
        self._cuts = validation_sample(task, settings.validation_cuts)
        self._targets = [find_places(task.targets(cut), ids) for cut in self._cuts.tolist()]
        contexts = Contexts(task.histories, ids)
        self._ranking = _Ranking(self.network, catalogue, contexts, settings)

    def batches(self) -> Iterator[Batch]:
        return self._batches.epoch(self._random)

    def loss(self, batch: Batch) -> Tensor:
        """Mean over baskets of the mean over their items of -log P(SID)."""
        network, codes = self.network, self._catalogue.codes_ND
        targets = arrange_targets(batch)
        sids = torch.as_tensor(codes[targets.items_BS])
        with products_in(self._settings.bf16, network.begins.device):
            encoded = network.encode(
                torch.as_tensor(_codes(codes, batch.items_BL)),
                torch.as_tensor(targets.num_items_BS),
            )
            hidden = network.decode(sids[..., :-1], encoded)
            logits = [network.logits(hidden[:, :, i], i) for i in range(network.num_levels)]
        losses = [
            functional.cross_entropy(logits_BSK.float().flatten(0, 1), sids[..., i].flatten(), reduction="none")
            for i, logits_BSK in enumerate(logits)
        ]  # fmt: skip
        weights = torch.as_tensor(targets.weights_BS).flatten()
        return torch.stack(losses).sum(0) @ weights / len(batch.rows)

    def quality(self) -> float:
        width = self._settings.validation_beam_width
        return mean_ndcg(self._ranking.places(self._cuts, width, self._task.repeats), self._targets)


@dataclass(frozen=True)
class _Ranking:
    """Beam search for many cuts."""

    network: TigerNetwork
    catalogue: SidCatalogue
    contexts: Contexts
    settings: TigerSettings

    def places(self, cuts: Index, beam_width: int, repeats: bool) -> Iterator[Index]:
        """Of the best items at each cut; batches are of neighbours, so order cuts by length."""
        device = self.network.begins.device
        trie = on_device(self.catalogue.trie, device)
        for first in range(0, len(cuts), self.settings.rank_batch):
            batch = cuts[first : first + self.settings.rank_batch].tolist()
            max_items = self.settings.network.max_items
            newest = [self.contexts.newest(cut, max_items)[0] for cut in batch]
            with (
                torch.inference_mode(),
                new_tensors_on(device),
                products_in(self.settings.bf16, device),
            ):
                codes = torch.as_tensor(_codes(self.catalogue.codes_ND, pad(newest, PADDING)))
                lengths = torch.tensor([[len(items)] for items in newest])
                encoded = self.network.encode(codes, lengths)
                sids, _ = constrained_beams(self.network, trie, encoded, beam_width)
            for found, cut in zip(sids.cpu(), batch, strict=True):
                best: Any = self.catalogue.place_of_sid[found[found >= 0].numpy()]
                yield best if repeats else best[~np.isin(best, self.contexts.seen(cut))]


def constrained_beams(
    network: TigerNetwork, trie: Trie, encoded: Encoded, beam_width: int
) -> tuple[Tensor, Tensor]:
    """SID numbers [B, beams], best first, -1 where there are no more, and their log-probabilities."""
    batch = len(encoded.memory_BTW)
    nodes = torch.zeros(batch, 1, dtype=torch.int64)
    codes, scores = nodes.new_zeros(batch, 1, 0), torch.zeros(batch, 1)
    for level in range(trie.num_levels):
        hidden = network.decode(codes, encoded)[:, :, -1]
        log_probs = network.logits(hidden, level).float().log_softmax(-1)
        children = trie.children(level, nodes)
        candidates = scores[..., None] + log_probs.gather(-1, children.codes)
        candidates = candidates.masked_fill(~children.real, -torch.inf).flatten(1)
        scores, best = candidates.topk(min(beam_width, candidates.shape[1]))
        parents = best // children.codes.shape[-1]
        nodes = children.nodes.flatten(1).gather(1, best)
        chosen = children.codes.flatten(1).gather(1, best)
        before = codes.gather(1, parents[..., None].expand(-1, -1, codes.shape[-1]))
        codes = torch.cat([before, chosen[..., None]], 2)
    return nodes.where(scores > -torch.inf, -1), scores


def _codes(codes_ND: Index, places_BL: Index) -> Index:
    """[B, L, D], padding kept."""
    return np.where(places_BL[..., None] >= 0, codes_ND[np.maximum(places_BL, 0)], PADDING)
