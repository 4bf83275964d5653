"""Scores the items of one catalogue beside their codes, for users whose recent interactions are encoded.

Shapes: B contexts, R recent interactions, N items, S SIDs, H width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.network import Network
from model.next_item import ItemRows, NextItems
from model.transitions import Followers, Gains, Transitions
from model.user_context import UserContext


class ItemScorer:
    """Holds the vectors of a catalogue's items; nothing where the network scores none."""

    def __init__(
        self, network: Network, catalogue: Catalogue, transitions: Transitions | None = None
    ) -> None:
        """Gathers N vectors once."""
        self.catalogue = catalogue
        self._followers = None if transitions is None else Followers(transitions, catalogue)
        self.vectors_NH: Tensor | None = None
        self._next_item = network.next_item
        if self._next_item is None:
            return
        rows = ItemRows.of(catalogue, network.config.features)
        self._weight = self._next_item.weight * rows.any_seen
        self._log_shares_N = rows.log_shares
        self.vectors_NH = network.features.item_vectors(rows.rows)
        self._bucket_starts = torch.from_numpy(catalogue.bucket_starts)

    def score(self, contexts: Sequence[UserContext]) -> NextItems | None:
        """For some users, by their recent interactions; one without any has weight 0."""
        vectors_NH, recent = self.vectors_NH, [context.newest[1] for context in contexts]
        if self._next_item is None or vectors_NH is None or not recent:
            return None
        nothing_H = vectors_NH.new_zeros(vectors_NH.shape[1])
        newest_BH = torch.stack([one[-1] if len(one) else nothing_H for one in recent])
        present_B = torch.tensor([len(one) > 0 for one in recent])
        newest_BH = newest_BH.to(nothing_H.dtype)  # an engine may keep contexts in bf16
        log_probs_BN = self._next_item(
            newest_BH, vectors_NH, self._log_shares_N, self._gains(contexts)
        )
        return NextItems.of(log_probs_BN, self._weight * present_B, self._bucket_starts)

    def _gains(self, contexts: Sequence[UserContext]) -> Gains | None:
        if self._followers is None:
            return None
        newest = []
        for context in contexts:
            num_recent = len(context.newest[1])
            rows = context.user.tail  # the recent segment is its end
            newest.append(rows["item_id"][len(rows) - num_recent :])
        return self._followers.gains(newest)
