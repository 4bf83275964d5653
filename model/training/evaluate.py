"""Recall of held-out baskets, for the network and for popularity."""

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


@torch.inference_mode()
def network_recall(
    network: Network, trie: Trie, catalogue: Catalogue, builder: BatchBuilder, cuts: Index, k: int
) -> float:
    """Mean over the baskets at `cuts` of the share of their distinct items among the k best; selection on."""
    recalls: list[float] = []
    for i in range(0, len(cuts), _CONTEXTS_AT_ONCE):
        some = cuts[i : i + _CONTEXTS_AT_ONCE]
        batch = builder.build(some, 1, 1, None)
        context, _ = encode_batch(network, batch)

        def score_next(codes_BWP: Tensor) -> Tensor:
            states = network.decode(context, codes_BWP)  # noqa: B023 - called before the next turn
            return network.logits(states[:, :, -1], codes_BWP.shape[-1])

        bos = network.decode(context, torch.zeros(len(some), 1, 0, dtype=torch.int64))
        mixture = network.repeat_mixture(batch.repeats, context, bos)
        beams = beam_search(score_next, trie, len(some), k, mixture)
        for row, cut in enumerate(some):
            ranked = rank_items(beams, mixture, catalogue, request=row)[:k]
            best = catalogue.item_ids[[index for index, _ in ranked]]
            recalls.append(_recall(builder.histories, int(cut), best))
    return float(np.mean(recalls))


def popularity_recall(histories: Histories, catalogue: Catalogue, cuts: Index, k: int) -> float:
    """The same for the k most frequent items, whoever asks."""
    best = catalogue.item_ids[catalogue.by_popularity()[:k]]
    return float(np.mean([_recall(histories, int(cut), best) for cut in cuts]))


def _recall(histories: Histories, cut: int, best: npt.NDArray[np.uint64]) -> float:
    basket = np.unique(histories.rows["item_id"][cut : histories.basket_end[cut]])
    return float(np.isin(basket, best).mean())
