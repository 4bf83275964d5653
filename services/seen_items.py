"""The items that a user has had, over the whole kept history: what `exclude_seen` leaves out."""

import logging
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from model.query import ItemIds, Query
from services.errors import DataLoss, Unreachable
from state.seen_items import KnownSeen, SeenItems
from state.user_state import UserState

log = logging.getLogger(__name__)

_ENTRY_BYTES = 400
"""Of an entry besides its items."""


class SeenReader(Protocol):
    """Where the lifecycle segment's items are read."""

    async def read_seen(
        self, user_id: str, known: KnownSeen | None = None, timeout_s: float | None = None
    ) -> SeenItems | None:
        """Items from where `known` ends; None when there is no such user. Raises Unreachable, DataLoss."""
        ...


@dataclass(frozen=True)
class _Entry:
    known: KnownSeen
    first_position: int
    item_ids: ItemIds

    @property
    def num_bytes(self) -> int:
        return self.item_ids.nbytes + _ENTRY_BYTES


class SeenItemsCache:
    """The lifecycle segment's items of the users asked for last; of these only what is new is read."""

    def __init__(self, users: SeenReader, max_bytes: int) -> None:
        """`max_bytes` of all users together; 0: every call reads everything."""
        self._users = users
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.num_bytes = 0

    async def item_ids(self, user_id: str, timeout_s: float | None = None) -> ItemIds:
        """Exact over the kept lifecycle segment; a read takes at most `timeout_s`. Raises Unreachable, DataLoss."""
        entry = self._entries.get(user_id)
        seen = await self._users.read_seen(user_id, entry.known if entry else None, timeout_s)
        if seen is not None and entry is not None and seen.start != seen.first_position:
            if seen.first_position == entry.first_position:
                item_ids = entry.item_ids
                if len(seen.item_ids):
                    item_ids = np.union1d(item_ids, seen.item_ids)
                return self._keep(user_id, replace(seen, item_ids=item_ids))
            seen = await self._users.read_seen(
                user_id, None, timeout_s
            )  # the oldest chunks left the history
        if seen is None:
            self._drop(user_id)
            return np.zeros(0, np.uint64)
        return self._keep(user_id, seen)

    def resize(self, max_bytes: int) -> None:
        """Keep to so many bytes from now on."""
        self._max_bytes = max_bytes
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _keep(self, user_id: str, seen: SeenItems) -> ItemIds:
        self._drop(user_id)
        entry = _Entry(seen.known, seen.first_position, seen.item_ids)
        self._entries[user_id] = entry
        self.num_bytes += entry.num_bytes
        self.resize(self._max_bytes)
        return seen.item_ids

    def _drop(self, user_id: str) -> None:
        entry = self._entries.pop(user_id, None)
        self.num_bytes -= 0 if entry is None else entry.num_bytes


async def without_seen(
    seen: SeenItemsCache, state: UserState, query: Query, timeout_s: float | None = None
) -> tuple[Query, bool]:
    """The query without the items that the user has had, and whether these are all of them.

    The rows of the state begin where the lifecycle segment ends. A boundary that moves between the two reads only
    brings items of the rows into the segment, too.
    """
    parts, complete = [query.filter.exclude_ids, state.rows["item_id"]], True
    if state.meta.lifecycle_boundary > state.meta.first_position:
        try:
            parts.append(await seen.item_ids(state.user_id, timeout_s))
        except (Unreachable, DataLoss) as error:
            complete = False
            log.warning(
                "what user %r has seen in the lifecycle segment is not known: %s",
                state.user_id,
                error,
            )
    ids = np.concatenate(parts)
    return replace(query, filter=replace(query.filter, exclude_ids=ids)), complete
