"""The items that a user has had, over the whole kept history: what `exclude_seen` leaves out."""

import logging
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from model.query import ItemIds, Query
from services.errors import DataLoss, Unreachable
from state.user_state import UserState

log = logging.getLogger(__name__)


@runtime_checkable
class SeenReader(Protocol):
    """A reader of states that knows the lifecycle segment's items, too."""

    async def read_seen(self, user_id: str) -> ItemIds:
        """Item ids of the kept lifecycle segment, in any order. Raises Unreachable, DataLoss."""
        ...


async def without_seen(users: object, state: UserState, query: Query) -> tuple[Query, bool]:
    """The query without the items that the user has had, and whether these are all of them.

    The rows of the state end where the lifecycle segment begins. A boundary that moves between the two reads only
    moves items from the rows to the segment: they are in both.
    """
    seen, complete = [state.rows["item_id"]], True
    if state.meta.lifecycle_boundary > state.meta.first_position:
        older = await _lifecycle_items(users, state.user_id)
        complete = older is not None
        seen += [] if older is None else [older]
    ids = np.unique(np.concatenate([query.filter.exclude_ids, *seen]))
    return replace(query, filter=replace(query.filter, exclude_ids=ids)), complete


async def _lifecycle_items(users: object, user_id: str) -> ItemIds | None:
    """None where they cannot be had now."""
    if not isinstance(users, SeenReader):
        return None
    try:
        return await users.read_seen(user_id)
    except (Unreachable, DataLoss) as error:
        log.warning(
            "what user %r has seen in the lifecycle segment is not known: %s", user_id, error
        )
        return None
