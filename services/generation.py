"""From a user id to recommended items: read the state, encode what it says, search. The seam between gRPC and network."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from model.query import Explanation, Query, Recommended
from services.seen_items import SeenItemsCache, SeenReader, without_seen
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
    is_stale: bool = False
    """Whether the state node did not answer, and an older copy was used."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """An answer."""

    items: Sequence[Recommended]
    view: UserView | None
    """None: nothing is known of the user, the items are what is popular."""
    bundle_version: str
    timings_ms: dict[str, float] = field(default_factory=dict)
    """Where the time went, by stage."""
    explanations: Sequence[Explanation] = ()
    """One per item, where they were asked for."""
    seen_complete: bool = True
    """False: the items may hold some that the user has seen, though they were not to."""


class Stages:
    """How long each of some steps took."""

    def __init__(self) -> None:
        """The first stage begins now."""
        self.milliseconds: dict[str, float] = {}
        self._since_s = time.perf_counter()

    def end(self, stage: str) -> None:
        """`stage` ends, and the next one begins."""
        now_s = time.perf_counter()
        self.milliseconds[stage] = (now_s - self._since_s) * 1e3
        self._since_s = now_s


class UserReader(SeenReader, Protocol):
    """Where user states are read."""

    async def read_user(self, user_id: str, bundle_version: str) -> UserState | None:
        """The user's state; None when there is none. Raises Unreachable, DataLoss."""
        ...


class Recommender(Protocol):
    """What recommends from a state; model.recommender.Recommender is one."""

    @property
    def bundle_version(self) -> str: ...
    @property
    def history(self) -> HistoryConfig: ...

    def recommend(self, state: UserState, query: Query) -> Sequence[Recommended]:
        """At most `query.k` items for a user, best first."""
        ...

    def popular(self, query: Query) -> Sequence[Recommended]:
        """At most `query.k` items that everybody takes."""
        ...

    def explain(
        self, state: UserState, query: Query, found: Sequence[Recommended]
    ) -> Sequence[Explanation]:
        """What each item of an answer came from."""
        ...


class Generator:
    """One request at a time goes through the network, off the event loop."""

    def __init__(
        self,
        recommender: Recommender,
        users: UserReader,
        executor: Executor,
        seen_cache_bytes: int = 64 << 20,
    ) -> None:
        """`executor` runs the network."""
        self._seen = SeenItemsCache(users, seen_cache_bytes)
        self._recommender = recommender
        self._users = users
        self._executor = executor

    @property
    def bundle_version(self) -> str:
        """The bundle that answers."""
        return self._recommender.bundle_version

    async def recommend(
        self, user_id: str, query: Query, *, exclude_seen: bool = False, explain: bool = False
    ) -> Generated:
        """The best items for a user; popular ones for a user without state. Raises Unreachable, DataLoss."""
        stages = Stages()
        state = await self._users.read_user(user_id, self.bundle_version)
        stages.end("read")
        if state is None:
            return await self.popular(query)
        seen_complete = True
        if exclude_seen:
            query, seen_complete = await without_seen(self._seen, state, query)
            stages.end("seen")
        items = await self._run(lambda: self._recommender.recommend(state, query))
        stages.end("generate")
        explanations: Sequence[Explanation] = ()
        if explain:
            explanations = await self._run(lambda: self._recommender.explain(state, query, items))
            stages.end("explain")
        return Generated(
            items=items,
            view=self._view(state),
            bundle_version=self.bundle_version,
            timings_ms=stages.milliseconds,
            explanations=explanations,
            seen_complete=seen_complete,
        )

    async def popular(self, query: Query) -> Generated:
        """What everybody takes."""
        items = await self._run(lambda: self._recommender.popular(query))
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
