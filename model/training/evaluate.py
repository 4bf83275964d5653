"""Recall of held-out baskets, for the network and for popularity."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.beam_search import Limits, beam_search, blocked_nodes
from model.catalogue import Catalogue
from model.decoder import Context
from model.network import Network
from model.popularity import AT_TRAINING_END
from model.prior import Prior
from model.query import Mask
from model.ranking import rank_items
from model.repeats import RepeatMixture
from model.training.batches import Batch, BatchBuilder
from model.training.config import TrainConfig
from model.training.histories import Histories, Index, mixed_by_length
from model.training.losses import encode_batch
from model.trie import Trie

RECALL_AT = 20
_CONTEXTS_AT_ONCE = 32


def held_out(histories: Histories, config: TrainConfig) -> tuple[Index, Index]:
    """The baskets that steer the stages, and those that are reported on."""
    shuffled = np.random.default_rng(config.seed).permutation(histories.held_out_cuts)
    num_steering = min(config.evaluation_users // 2, (len(shuffled) + 1) // 2)
    tested = shuffled[num_steering : num_steering + config.evaluation_users]
    return shuffled[:num_steering], tested if len(tested) else shuffled


def recall_report(
    network: Network, trie: Trie, builder: BatchBuilder, tested: Index, limit_s: float
) -> dict[str, Any]:
    """Recall of the network and of popularity, and of how many of the baskets."""
    recall, taken = network_recall(network, trie, builder, tested, RECALL_AT, limit_s)
    return {
        "network": recall,
        "popularity": popularity_recall(builder.histories, builder.catalogue, taken, RECALL_AT),
        "baskets": len(taken),
        "asked_baskets": len(tested),
    }


def network_recall(
    network: Network,
    trie: Trie,
    builder: BatchBuilder,
    cuts: Index,
    k: int,
    limit_s: float = math.inf,
) -> tuple[float, Index]:
    """Mean over the baskets at `cuts` of the share of their distinct items among the k best; selection on.

    With the cuts that it is of: all of them, or those done, in batches of like length and random order, when `limit_s`
    were over; one batch at least.
    """
    start, ids = time.monotonic(), builder.catalogue.item_ids
    recalls, taken = list[float](), list[Index]()
    for batch in mixed_by_length(builder.histories, cuts, _CONTEXTS_AT_ONCE, seed=0):
        if taken and time.monotonic() - start >= limit_s:
            break
        ranked = rank_at(network, trie, builder, batch, k)
        recalls += [
            _recall(builder.histories, int(cut), ids[best[:k]])
            for cut, best in zip(batch, ranked, strict=True)
        ]
        taken.append(batch)
    return float(np.mean(recalls)), np.concatenate(taken)


@torch.inference_mode()
def rank_at(
    network: Network,
    trie: Trie,
    builder: BatchBuilder,
    cuts: Index,
    beam_width: int,
    *,
    only_new: bool = False,
) -> Iterator[Index]:
    """What is recommended at each of `cuts`, whatever comes after it: catalogue indices, best first.

    `only_new` leaves out what the user had before, as a request that excludes it.
    """
    untold = Prior.of(network, builder.catalogue, trie, AT_TRAINING_END)
    told = builder.prior
    bucket_starts = torch.from_numpy(builder.catalogue.bucket_starts)
    for i in range(0, len(cuts), _CONTEXTS_AT_ONCE):
        some = cuts[i : i + _CONTEXTS_AT_ONCE]
        batch = builder.build(some, 1, 1, None)
        context, _ = encode_batch(network, batch)

        def score_next(codes_BWP: Tensor, _: Tensor) -> Tensor:
            states = network.decode(context, codes_BWP)  # noqa: B023 - called before the next turn
            counts = batch.code_counts  # noqa: B023
            return network.next_logits(states[:, :, -1], codes_BWP.shape[-1], counts)

        blocked = [builder.seen(int(cut)) if only_new else None for cut in some]
        mixture = replace(
            _repeat_mixture(network, batch, context, blocked),
            next_items=network.next_items(
                context.recent, batch.catalogue_rows, bucket_starts, builder.gains(some)
            ),
        )
        limits = Limits(blocked=blocked_nodes(blocked, trie, builder.catalogue))
        searched = untold.trie if told is None else told.trie.at(batch.moments)
        beams = beam_search(score_next, searched, len(some), beam_width, mixture, limits)
        for row in range(len(some)):
            shares_N = untold.log_shares if told is None else told.log_shares_at(int(some[row]))
            ranked = rank_items(beams, mixture, builder.catalogue, shares_N, blocked[row], row)
            yield np.array([index for index, _ in ranked], np.int64)


def _repeat_mixture(
    network: Network, batch: Batch, context: Context, blocked: Sequence[Mask | None]
) -> RepeatMixture:
    """As served: what is blocked is no candidate."""
    bos = network.decode(context, torch.zeros(len(blocked), 1, 0, dtype=torch.int64))
    evidence = network.repeat_evidence(batch.repeats, bos[:, 0, 0])
    blocked_BN = torch.zeros_like(evidence.items, dtype=torch.bool)
    for row, mask in enumerate(blocked):
        if mask is not None:
            blocked_BN[row] = torch.from_numpy(mask)[evidence.items[row]]
    return evidence.mixture(blocked_BN).favouring(network.config.repeats)


def popularity_recall(histories: Histories, catalogue: Catalogue, cuts: Index, k: int) -> float:
    """The same for the k items that are targets most often, whoever asks."""
    found = catalogue.find(histories.rows["item_id"][histories.are_targets])
    counts = np.bincount(found[found >= 0], minlength=len(catalogue))
    order = catalogue.by_popularity()
    best = catalogue.item_ids[order[np.argsort(-counts[order], kind="stable")[:k]]]
    return float(np.mean([_recall(histories, int(cut), best) for cut in cuts]))


def _recall(histories: Histories, cut: int, best: npt.NDArray[np.uint64]) -> float:
    return float(np.isin(histories.targets_at(cut), best).mean())
