"""One user's backfilled history before the live one: the fold's outcome, as if the log had begun with the backfill."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from state.fold import Fold
from state.forgotten_items import NOTHING_FORGOTTEN, ForgottenItems
from state.interaction import Rows, empty_rows, hash_features, join_rows
from state.segments import HistoryConfig
from state.user_fold import UserFold
from state.user_state import UserMeta

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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


def merge_histories(
    live: StoredHistory, backfilled: StoredHistory, history: HistoryConfig
) -> Merged | None:
    """Fold the live interactions into the backfilled history; None when the backfill brings nothing new.

    What the user deleted or had forgotten stays so. Duplicates go by the fold's rule; an interaction whose event hash is
    gone is one if it equals a backfilled one in every feature. The epoch rises, since positions are new.
    """
    old, own = backfilled.rows, live.rows
    refused = old["event_time_ms"] <= live.meta.deleted_until_ms
    refused |= live.forgotten.refuse(old)
    known = np.isin(hash_features(old), hash_features(own))
    if live.meta.first_position and len(own):  # what is older left the history, and would again
        known |= old["event_time_ms"] < own["event_time_ms"].min()
    if np.all(refused | known):
        return None
    meta = _beginning(live.meta, UserMeta() if refused.any() else backfilled.meta)
    stamps = _Stamps()
    if refused.any():
        user_fold = UserFold(meta, empty_rows(), history)
        user_fold.add(stamps.put_on(old[~refused]))
    else:
        user_fold = UserFold(meta, backfilled.tail, history, lambda: backfilled.sealed)
    repeated = (own["event_hash"] == 0) & np.isin(hash_features(own), hash_features(old[~refused]))
    user_fold.add(stamps.put_on(own[~repeated]))
    outcome = user_fold.outcome
    outcome.tail = stamps.taken_off(outcome.tail)
    version = max(outcome.meta.version, live.meta.version + 1)
    outcome.meta = replace(outcome.meta, version=version)
    return Merged(outcome, is_whole=not refused.any())


def _beginning(live: UserMeta, first: UserMeta) -> UserMeta:
    return replace(
        first,
        epoch=live.epoch + 1,
        deleted_until_ms=live.deleted_until_ms,
        forgotten_until_ms=live.forgotten_until_ms,
        tail_blocks=0,
    )


class _Stamps:
    """Event hashes for interactions that lost theirs, so that the fold can tell them apart."""

    def __init__(self) -> None:
        self._stamps = np.empty(0, np.uint64)

    def put_on(self, rows: Rows) -> Rows:
        rows = rows.copy()
        lost = rows["event_hash"] == 0
        first = len(self._stamps) + 1
        numbers = np.arange(first, first + np.count_nonzero(lost), dtype=np.uint64)
        rows["event_hash"][lost] = numbers * _GOLDEN
        self._stamps = np.concatenate([self._stamps, numbers * _GOLDEN])
        return rows

    def taken_off(self, rows: Rows) -> Rows:
        stamped: npt.NDArray[np.bool_] = np.isin(rows["event_hash"], self._stamps)
        if not stamped.any():
            return rows
        rows = rows.copy()
        rows["event_hash"][stamped] = 0
        return rows
