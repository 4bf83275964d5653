"""One user's backfilled history before the live one: the fold's outcome, as if the log had begun with the backfill."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from state.fold import Fold, replay
from state.forgotten_items import NOTHING_FORGOTTEN, ForgottenItems
from state.interaction import Rows, empty_rows, hash_features, join_rows
from state.segments import HistoryConfig
from state.user_state import UserMeta

_Mask: TypeAlias = npt.NDArray[np.bool_]
_Hashes: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class StoredHistory:
    """All that is stored of a user's interactions."""

    meta: UserMeta
    sealed: Rows
    """From `meta.first_position` to `meta.tail_start`; their event hashes are gone."""
    tail: Rows
    forgotten: ForgottenItems = NOTHING_FORGOTTEN

    @property
    def rows(self) -> Rows:
        """Every interaction, oldest first."""
        return join_rows([self.sealed, self.tail])


@dataclass(frozen=True)
class Merged:
    """What the user's history becomes."""

    outcome: Fold
    is_whole: bool
    """The whole backfilled history is the beginning: its chunks hold as they are, and so do summaries of them."""
    new: int
    """Backfilled interactions that were not live."""
    repeated: int
    """Live interactions that the backfill holds, too: each gave way to one of the backfill's."""


def merge_histories(
    live: StoredHistory, backfilled: StoredHistory, history: HistoryConfig
) -> Merged | None:
    """Add the live interactions to the backfilled history; None when the backfill brings nothing new.

    What the user deleted or had forgotten stays so. A live interaction is left out only as the repetition of a
    backfilled one, and each of these has one repetition at most: live ones were accepted by their event ids, and are not
    judged by one another again. The epoch rises, since positions are new.
    """
    old, own = backfilled.rows, live.rows
    refused = old["event_time_ms"] <= live.meta.deleted_until_ms
    refused |= live.forgotten.refuse(old)
    old = old[~refused]
    repeated, known = _pair(own, old)
    num_repeated = int(np.count_nonzero(repeated))
    if live.meta.first_position and len(own):  # what is as old left the history, and would again
        known |= old["event_time_ms"] <= own["event_time_ms"].min()
    if np.all(known):
        return None
    own = own[~repeated]
    if refused.any():
        meta, tail, rows = UserMeta(), empty_rows(), join_rows([old, own])
    else:
        meta, tail, rows = backfilled.meta, backfilled.tail, own
    outcome = replay(_beginning(live.meta, meta), tail, rows, history)
    version = max(outcome.meta.version, live.meta.version + 1)
    outcome.meta = replace(outcome.meta, version=version)
    return Merged(outcome, not refused.any(), len(old) - num_repeated, num_repeated)


def _beginning(live: UserMeta, first: UserMeta) -> UserMeta:
    return replace(
        first,
        epoch=live.epoch + 1,
        deleted_until_ms=live.deleted_until_ms,
        forgotten_until_ms=live.forgotten_until_ms,
        tail_blocks=0,
    )


def _pair(own: Rows, old: Rows) -> tuple[_Mask, _Mask]:
    """Pair live interactions with backfilled ones that are the same, one with one; masks of those that have a partner.

    The same are those with one event hash, and those equal in every feature where one of both lost its hash.
    """
    repeated, known = np.zeros(len(own), np.bool_), np.zeros(len(old), np.bool_)

    def pair(ids: _Hashes, old_ids: _Hashes, among: _Mask, old_among: _Mask) -> None:
        mine, theirs = np.flatnonzero(among & ~repeated), np.flatnonzero(old_among & ~known)
        repeated[mine] = _occurrence(ids[mine]) < _count_in(old_ids[theirs], ids[mine])
        known[theirs] = _occurrence(old_ids[theirs]) < _count_in(ids[mine], old_ids[theirs])

    lost, old_lost = own["event_hash"] == 0, old["event_hash"] == 0
    pair(own["event_hash"], old["event_hash"], ~lost, ~old_lost)
    features, old_features = hash_features(own), hash_features(old)
    # Those with hashes come first, since they have no other partners.
    pair(features, old_features, lost, ~old_lost)
    pair(features, old_features, ~lost, old_lost)
    pair(features, old_features, lost, old_lost)
    return repeated, known


def _occurrence(ids: _Hashes) -> npt.NDArray[np.int64]:
    """How many equal ones come before each."""
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    occurrence = np.empty(len(ids), np.int64)
    occurrence[order] = np.arange(len(ids)) - np.searchsorted(in_order, in_order)
    return occurrence


def _count_in(ids: _Hashes, wanted: _Hashes) -> npt.NDArray[np.int64]:
    """How often each wanted one is among `ids`."""
    in_order = np.sort(ids)
    return np.searchsorted(in_order, wanted, "right") - np.searchsorted(in_order, wanted)
