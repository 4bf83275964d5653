"""Cuts before an arrival: a target whose first code neither the recent nor the mid-term segment holds.

Next to nothing that is near tells of it; what does is mostly the lifecycle segment.
"""

import numpy as np

from model.training.histories import Histories, Index
from state.segments import HistoryConfig


def arrival_cuts(histories: Histories, first_codes: Index, history: HistoryConfig) -> Index:
    """The training cuts, in order, whose basket holds an arrival and that have a lifecycle segment.

    `first_codes`: per interaction of `histories`, the first code of its item's SID, negative where it has none.
    """
    length = np.arange(len(first_codes)) - histories.user_start
    boundaries = np.array(
        [history.lifecycle_boundary(n) for n in range(length.max(initial=0) + 1)], np.int64
    )
    cuts = histories.basket_end - histories.basket_size
    nearer = histories.user_start + boundaries[length[cuts]]
    arrives = (first_codes >= 0) & histories.are_targets & (nearer > histories.user_start)
    arrives &= _previous(histories.users, first_codes) < nearer
    return np.intersect1d(cuts[arrives], histories.train_cuts)


def _previous(users: Index, codes: Index) -> Index:
    """Per interaction, the position of its user's last one before it with the same code; -1 where there is none."""
    order = np.lexsort((codes, users))
    same = (users[order[1:]] == users[order[:-1]]) & (codes[order[1:]] == codes[order[:-1]])
    previous = np.full(len(codes), -1)
    previous[order[1:][same]] = order[:-1][same]
    return previous
