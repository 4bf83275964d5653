"""Recall of held-out baskets, for the network and for popularity."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.beam_search import beam_search
from model.catalogue import Catalogue
from model.network import Network
from model.ranking import rank_items
from model.training.batches import BatchBuilder
from model.training.histories import Histories, Index
from model.training.losses import encode_batch
from model.trie import Trie

_CONTEXTS_AT_ONCE = 32


def network_recall(
    network: Network, trie: Trie, builder: BatchBuilder, cuts: Index, k: int
) -> float:
    """Mean over the baskets at `cuts` of the share of their distinct items among the k best; selection on."""
    cuts = builder.histories.by_length(cuts)
    ranked = rank_at(network, trie, builder, cuts, k)
    ids = builder.catalogue.item_ids
    recalls = [
        _recall(builder.histories, int(cut), ids[best[:k]])
        for cut, best in zip(cuts, ranked, strict=True)
    ]
    return float(np.mean(recalls))


@torch.inference_mode()
def rank_at(
    network: Network, trie: Trie, builder: BatchBuilder, cuts: Index, beam_width: int
) -> Iterator[Index]:
    """What is recommended at each of `cuts`, whatever comes after it: catalogue indices, best first."""
    for i in range(0, len(cuts), _CONTEXTS_AT_ONCE):
        some = cuts[i : i + _CONTEXTS_AT_ONCE]
        batch = builder.build(some, 1, 1, None)
        context, _ = encode_batch(network, batch)

        def score_next(codes_BWP: Tensor, _: Tensor) -> Tensor:
            states = network.decode(context, codes_BWP)  # noqa: B023 - called before the next turn
            return network.logits(states[:, :, -1], codes_BWP.shape[-1])

        bos = network.decode(context, torch.zeros(len(some), 1, 0, dtype=torch.int64))
        mixture = network.repeat_mixture(batch.repeats, bos)
        beams = beam_search(score_next, trie, len(some), beam_width, mixture)
        for row in range(len(some)):
            ranked = rank_items(beams, mixture, builder.catalogue, request=row)
            yield np.array([index for index, _ in ranked], np.int64)


def popularity_recall(histories: Histories, catalogue: Catalogue, cuts: Index, k: int) -> float:
    """The same for the k most frequent items, whoever asks."""
    best = catalogue.item_ids[catalogue.by_popularity()[:k]]
    return float(np.mean([_recall(histories, int(cut), best) for cut in cuts]))


def _recall(histories: Histories, cut: int, best: npt.NDArray[np.uint64]) -> float:
    basket = np.unique(histories.rows["item_id"][cut : histories.basket_end[cut]])
    return float(np.isin(basket, best).mean())
