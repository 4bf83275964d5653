"""From a user id to recommended items: read the state, encode what it says, search. The seam between gRPC and network."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from model.query import Query, Recommended
from services.cold_start import ColdStart, Picker
from state.segments import HistoryConfig
from state.user_state import UserMeta, UserState

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class UserView:
    """What an answer was made from."""

    meta: UserMeta
    recent: int
    """Interactions of each segment."""
    mid_term: int
    lifecycle: int
    """Covered by the summary; 0 when there is none."""
    summary_boundary: int | None
    """Where the summary ends; None when there is none for this bundle."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """An answer."""

    items: Sequence[Recommended]
    view: UserView | None
    """None: nothing is known of the user, the items are what trends or is popular."""
    bundle_version: str
    timings_ms: dict[str, float] = field(default_factory=dict)
    """Where the time went, by stage."""


class UserReader(Protocol):
    """Where user states are read."""

    async def read_user(self, user_id: str, bundle_version: str) -> UserState | None:
        """The user's state; None when there is none. Raises Unreachable, DataLoss."""
        ...


class Recommender(Picker, Protocol):
    """What recommends from a state; model.recommender.Recommender is one."""

    @property
    def bundle_version(self) -> str: ...
    @property
    def history(self) -> HistoryConfig: ...

    def recommend(self, state: UserState, query: Query) -> Sequence[Recommended]:
        """At most `query.k` items for a user, best first."""
        ...


class Generator:
    """One request at a time goes through the network, off the event loop."""

    def __init__(
        self,
        recommender: Recommender,
        users: UserReader,
        executor: Executor,
        cold_start: ColdStart | None = None,
    ) -> None:
        """`executor` runs the network; without `cold_start` nothing trends."""
        self._recommender = recommender
        self._cold_start = cold_start or ColdStart(recommender)
        self._users = users
        self._executor = executor

    @property
    def bundle_version(self) -> str:
        """The bundle that answers."""
        return self._recommender.bundle_version

    async def recommend(self, user_id: str, query: Query) -> Generated:
        """The best items for a user; what trends for a user without state. Raises Unreachable, DataLoss."""
        started_s = time.perf_counter()
        state = await self._users.read_user(user_id, self.bundle_version)
        if state is None:
            return await self.popular(query)
        read_s = time.perf_counter()
        items = await self._run(
            lambda: self._cold_start.fill(
                query, self._recommender.recommend(state, query), state.meta.length
            )
        )
        timings_ms = {
            "read": (read_s - started_s) * 1e3,
            "generate": (time.perf_counter() - read_s) * 1e3,
        }
        return Generated(
            items=items,
            view=self._view(state),
            bundle_version=self.bundle_version,
            timings_ms=timings_ms,
        )

    async def popular(self, query: Query) -> Generated:
        """What trends, then what everybody takes."""
        items = await self._run(lambda: self._cold_start.fill(query, [], 0))
        return Generated(items=items, view=None, bundle_version=self.bundle_version)

    def _view(self, state: UserState) -> UserView:
        history, summary = self._recommender.history, state.summary
        return UserView(
            meta=state.meta,
            recent=len(state.recent(history)),
            mid_term=len(state.mid_term(history)),
            lifecycle=summary.count if summary else 0,
            summary_boundary=summary.boundary if summary else None,
        )

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)
