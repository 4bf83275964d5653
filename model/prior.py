"""What is expected of SIDs and items before the network says anything: how popular they are, at the moment and ever.

Shapes: T moments, N items, S SIDs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from model.catalogue import Catalogue
from model.features import hash_buckets
from model.network import Network
from model.popularity import LEAST_COUNT, Popularity
from model.trie import Trie

Floats = npt.NDArray[np.float64]

_LEAST_SPREAD = 0.05
"""Of the total: nothing that can be recommended is impossible."""


@dataclass(frozen=True, eq=False)
class Prior:
    """Of one catalogue at one moment."""

    trie: Trie
    """Whose shares are those of the moment."""
    log_shares: Floats
    """[N]: of each item in its bucket."""

    @staticmethod
    def of(network: Network, catalogue: Catalogue, trie: Trie, popularity: Popularity) -> "Prior":
        """What the network was trained to correct: counts of now, or of all of the training. `trie`: the catalogue's."""
        if not network.config.live_prior:
            return Prior(trie, catalogue.log_share_in_bucket)
        counts_N, total = popularity.of_items(catalogue.item_ids), popularity.total
        if counts_N is None:
            rows = hash_buckets(catalogue.item_ids, network.config.features.item_buckets)
            at_end = network.repeats.popularity.double()
            counts_N, total = at_end[torch.from_numpy(rows)].numpy(), float(at_end.sum())
        counts_1N = prior_counts(catalogue, counts_N[None], np.array([total]))
        return Prior(
            trie.weighed(of_sids(catalogue, counts_1N)),
            log_shares_in_bucket(catalogue, counts_1N[0]),
        )


def prior_counts(catalogue: Catalogue, counts_TN: Floats, total_T: Floats) -> Floats:
    """[T, N]: what is counted at each moment; the rest of the total is spread as training counted. Each moment's sum is 1.

    The rest fell to items that are light, or not named.
    """
    known_TN = np.where(counts_TN >= LEAST_COUNT, counts_TN, 0.0)
    rest_T = np.maximum(total_T - known_TN.sum(1), _LEAST_SPREAD * total_T)
    trained_N = np.maximum(catalogue.counts, 1).astype(np.float64)
    spread_T = np.where(total_T > 0, rest_T, 1.0)
    counts_TN = known_TN + spread_T[:, None] * (trained_N / trained_N.sum())
    return np.asarray(counts_TN / counts_TN.sum(1, keepdims=True))


def of_sids(catalogue: Catalogue, counts_TN: Floats) -> Floats:
    """[T, S]: added up by bucket."""
    return np.add.reduceat(counts_TN, catalogue.bucket_starts[:-1], -1)


def log_shares_in_bucket(catalogue: Catalogue, counts_N: Floats) -> Floats:
    """[N]: log of each item's share of its bucket."""
    total_S = of_sids(catalogue, counts_N)
    return np.asarray(np.log(counts_N / total_S[catalogue.bucket_of_item]))
