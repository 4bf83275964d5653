"""From a user id to recommended items: read the state, encode what it says, search. The seam between gRPC and network."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from model.query import Explanation, Query, Recommended, Source
from services.batcher import Batcher, BatchingConfig, Ticket
from services.cold_start import ColdStart, Picker
from services.context_cache import ContextCache
from services.errors import Unreachable
from services.seen_items import SeenItemsCache, SeenReader, without_seen
from state.errors import ConfigError, StaleDelta
from state.segments import HistoryConfig
from state.user_delta import Known, UserDelta, UserSegments, apply_delta
from state.user_state import UserMeta

if TYPE_CHECKING:  # the state node imports this package, too, and does without PyTorch
    from model.user_context import Reused, UserContext

log = logging.getLogger(__name__)

_SHARE_OF_READING = 0.5
"""Of the time that a caller has left: what a read may take of it, so that an answer without it is still in time."""


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
    explanations: Mapping[int, Explanation] = field(default_factory=dict)
    """Of personal items, by item id, where they were asked for."""
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

    async def read_delta(
        self,
        user_id: str,
        bundle_version: str,
        known: Known | None,
        timeout_s: float | None = None,
    ) -> UserDelta | None:
        """What changed since `known`; None when there is no such user. Raises Unreachable, DataLoss."""
        ...


class Recommender(Picker, Protocol):
    """What encodes users and recommends to them; model.recommender.Recommender is one."""

    @property
    def bundle_version(self) -> str: ...
    @property
    def history(self) -> HistoryConfig: ...

    def encode(
        self, user: UserSegments, previous: "UserContext | None" = None
    ) -> "tuple[UserContext, Reused]":
        """A user's context, from an earlier one where there is one."""
        ...

    def answer(
        self,
        contexts: "Sequence[UserContext]",
        queries: Sequence[Query],
        check: Callable[[], None],
    ) -> Sequence[Sequence[Recommended]]:
        """Per request at most `k` items, best first. `check` is called between steps and may raise."""
        ...

    def explain(
        self, context: "UserContext", query: Query, found: Sequence[Recommended]
    ) -> Sequence[Explanation]:
        """What each item of an answer came from."""
        ...


@dataclass(frozen=True, kw_only=True)
class CachesConfig:
    """Bytes for what is kept of users."""

    context_bytes: int = 1_073_741_824
    """Encoded users, on the decoder's device: up to some 4 MB each at the default sizes of a network, 10 MB for wide ones; in bf16 some 60 %."""
    seen_bytes: int = 67_108_864
    """What users have seen before their mid-term segment; 8 bytes an item, read by `exclude_seen` alone."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.context_bytes, self.seen_bytes) < 0:
            raise ConfigError(
                f"context_bytes is {self.context_bytes} and seen_bytes {self.seen_bytes}; both must be at least 0"
            )


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A request as the network's thread gets it; without a user it is answered with what trends or is popular."""

    query: Query
    user: UserSegments | None = None
    explain: bool = False


@dataclass(frozen=True, kw_only=True)
class _Answer:
    items: Sequence[Recommended]
    explanations: Mapping[int, Explanation] = field(default_factory=dict)
    timings_ms: dict[str, float] = field(default_factory=dict)


class Generator:
    """Reads what is new of a user, and has the network answer, off the event loop. `run` must be running."""

    def __init__(
        self,
        recommender: Recommender,
        users: UserReader,
        executor: Executor,
        cold_start: ColdStart | None = None,
        batching: BatchingConfig | None = None,
        caches: CachesConfig | None = None,
    ) -> None:
        """`executor` has the one thread that runs the network; without `cold_start` nothing trends."""
        self._caches = caches = caches or CachesConfig()
        self._recommender = recommender
        self._cold_start = cold_start or ColdStart(recommender)
        self._users = users
        self._seen = SeenItemsCache(users, caches.seen_bytes)
        self.contexts = ContextCache(caches.context_bytes)
        self.batcher: Batcher[_Job, _Answer] = Batcher(
            self._work, executor, batching or BatchingConfig()
        )

    @property
    def bundle_version(self) -> str:
        """The bundle that answers."""
        return self._recommender.bundle_version

    def limit_caches(self, share: float) -> None:
        """Keep to a share, 0 to 1, of the configured bytes: another generator has the rest."""
        self.contexts.resize(int(share * self._caches.context_bytes))
        self._seen.resize(int(share * self._caches.seen_bytes))

    async def run(self) -> None:
        """Answer, until cancelled."""
        await self.batcher.run()

    async def recommend(
        self,
        user_id: str,
        query: Query,
        *,
        exclude_seen: bool = False,
        explain: bool = False,
        deadline_s: float | None = None,
    ) -> Generated:
        """The best items for a user; what trends for a user without state. `deadline_s` is as time.monotonic.

        Raises Unreachable, DataLoss, Overloaded, DeadlineExceeded.
        """
        stages = Stages()
        user, is_stale = await self._read(user_id, deadline_s)
        stages.end("read")
        if user is None:
            return await self.popular(query, deadline_s=deadline_s)
        seen_complete = True
        if exclude_seen:
            query, seen_complete = await without_seen(
                self._seen, user.state, query, _time_to_read_s(deadline_s)
            )
            stages.end("seen")
        job = _Job(query=query, user=user, explain=explain)
        answer = await self.batcher.submit(job, deadline_s)
        return Generated(
            items=answer.items,
            view=self._view(user, is_stale=is_stale),
            bundle_version=self.bundle_version,
            timings_ms=stages.milliseconds | answer.timings_ms,
            explanations=answer.explanations,
            seen_complete=seen_complete,
        )

    async def popular(self, query: Query, *, deadline_s: float | None = None) -> Generated:
        """What trends, then what everybody takes. Raises Overloaded, DeadlineExceeded."""
        answer = await self.batcher.submit(_Job(query=query), deadline_s)
        return Generated(items=answer.items, view=None, bundle_version=self.bundle_version)

    async def _read(
        self, user_id: str, deadline_s: float | None
    ) -> tuple[UserSegments | None, bool]:
        """The user as of now, from what is cached and what is new; and whether it is stale: nobody told what is new."""
        cached = self.contexts.get(user_id)
        previous = cached.user if cached else None
        try:
            delta = await self._users.read_delta(
                user_id,
                self.bundle_version,
                previous.known if previous else None,
                _time_to_read_s(deadline_s),
            )
            if delta is not None:
                try:
                    return apply_delta(previous, delta), False
                except StaleDelta:
                    delta = await self._users.read_delta(
                        user_id, self.bundle_version, None, _time_to_read_s(deadline_s)
                    )
        except Unreachable as error:
            if previous is None:
                raise
            log.warning("answering user %r from an older copy: %s", user_id, error)
            return previous, True
        if delta is None:
            self.contexts.forget(user_id)
            return None, False
        return apply_delta(None, delta), False

    def _work(
        self, batch: Sequence[Ticket[_Job, _Answer]], check: Callable[[], None]
    ) -> list[_Answer | Exception]:
        """In the network's thread. A user who cannot be encoded fails alone."""
        started_s = time.perf_counter()
        answers: dict[int, _Answer | Exception] = {}
        contexts: dict[int, UserContext] = {}
        for place, ticket in enumerate(batch):
            try:
                if ticket.job.user is None:
                    answers[place] = _Answer(items=self._cold_start.fill(ticket.job.query, [], 0))
                elif ticket.is_wanted:
                    contexts[place] = self._encode(ticket.job.user)
                else:
                    answers[place] = TimeoutError("nobody waits for this")
            except Exception as error:
                answers[place] = error
        encoded_s = time.perf_counter()
        queries = [batch[place].job.query for place in contexts]
        found = self._recommender.answer(list(contexts.values()), queries, check)
        spent_ms = {
            "encode": (encoded_s - started_s) * 1e3,
            "search": (time.perf_counter() - encoded_s) * 1e3,
        }
        for (place, context), items in zip(contexts.items(), found, strict=True):
            ticket, stages = batch[place], Stages()
            timings_ms = {"wait": (started_s - ticket.submitted_s) * 1e3, **spent_ms}
            filled = self._cold_start.fill(ticket.job.query, items, context.user.meta.length)
            explanations: dict[int, Explanation] = {}
            if ticket.job.explain:
                personal = [one for one in filled if one.source is Source.PERSONAL]
                reasons = self._recommender.explain(context, ticket.job.query, personal)
                ids = (one.item.item_id for one in personal)
                explanations = dict(zip(ids, reasons, strict=True))
                stages.end("explain")
            answers[place] = _Answer(
                items=filled,
                explanations=explanations,
                timings_ms=timings_ms | stages.milliseconds,
            )
        return [answers[place] for place in range(len(batch))]

    def _encode(self, user: UserSegments) -> "UserContext":
        context, reused = self._recommender.encode(user, self.contexts.get(user.user_id))
        self.contexts.put(user.user_id, context, reused)
        return context

    def _view(self, user: UserSegments, *, is_stale: bool) -> UserView:
        meta, summary = user.meta, user.summary
        num_rows = sum(map(len, user.chunks.values())) + len(user.tail)
        recent = min(num_rows, self._recommender.history.recent_len)
        return UserView(
            meta=meta,
            recent=recent,
            mid_term=num_rows - recent,
            lifecycle=summary.count if summary else 0,
            summary_boundary=summary.boundary if summary else None,
            is_stale=is_stale,
        )


def _time_to_read_s(deadline_s: float | None) -> float | None:
    """What one read may take; None: the client's own limit alone."""
    return (
        None if deadline_s is None else _SHARE_OF_READING * max(0.0, deadline_s - time.monotonic())
    )
