"""How histories are split: cuts of the test and of validation, and what trains."""

import numpy as np

from bench.quality.events import part_of
from bench.quality.sources import DataSetUnusable
from model.catalogue import ItemTable
from model.training.histories import Histories, Index, build_histories
from state.event_log import EventLog


def leave_one_out(log: EventLog) -> tuple[EventLog, Histories, Index, Index]:
    """Training, histories, test cuts and validation cuts: the last interaction of each user tests, the one before it validates.

    Users with fewer than three train and are not asked for, nor is what is no target. Raises DataSetUnusable when a user has
    two interactions of one time: which of them is the last cannot be told.
    """
    histories = build_histories(log)
    together = np.flatnonzero(histories.basket_size > 1)
    if len(together):
        user = log.user_ids[int(histories.users[together[0]])]
        raise DataSetUnusable(
            f"user {user} has several interactions at one time: leave-one-out needs an order; "
            "give positions, or take --protocol time-split"
        )
    starts = np.flatnonzero(histories.user_start == np.arange(len(histories.rows)))
    ends = np.append(starts[1:], len(histories.rows))
    long_enough = ends - starts >= 3
    last = ends[long_enough] - 1
    trained = np.ones(len(histories.rows), bool)
    trained[last] = trained[last - 1] = False
    by_user = np.argsort(log.user_index, kind="stable")
    kept = np.empty(len(trained), bool)
    kept[by_user] = trained
    tested, validated = (cuts[histories.are_targets[cuts]] for cuts in (last, last - 1))
    return part_of(log, kept), histories, tested, validated


def cuts_between(histories: Histories, items: ItemTable, begin_ms: int, end_ms: int) -> Index:
    """Starts of the baskets in a stretch of time that hold any target; those without a history before them, too."""
    ranked = np.isin(histories.rows["item_id"], items.item_ids) & histories.are_targets
    ends = histories.basket_end
    cuts = np.unique(ends - histories.basket_size)
    times = histories.rows["event_time_ms"][cuts]
    cuts = cuts[(times >= begin_ms) & (times < end_ms)]
    num_ranked = np.append(0, np.cumsum(ranked))
    return cuts[num_ranked[ends[cuts]] > num_ranked[cuts]]


def until(log: EventLog, end_ms: int) -> EventLog:
    """The interactions before a time."""
    return part_of(log, log.rows["event_time_ms"] < end_ms)
