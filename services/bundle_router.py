"""The bundles that an inference node serves, and who is answered by which. Changes swap one reference."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from model.errors import ModelError
from model.query import Query
from services.answer_stats import AnswerStats
from services.candidate_config import check_share
from services.errors import DataLoss, InvalidRequest, SettingsError, Unreachable
from services.generation import Generated
from services.recommendation_messages import Degradation, degradations_of, kind_of
from services.served_bundle import ServedBundle
from services.status_codes import status_code
from services.traffic_split import Role, role_of
from state.errors import ConfigError, StateError

log = logging.getLogger(__name__)

_Read = TypeVar("_Read")


class BundleLoader(Protocol):
    """Reads bundles. Both calls raise ModelError, StateError or SettingsError for one that cannot be served here."""

    def version(self, path: Path) -> str:
        """What `load` would serve."""
        ...

    def load(self, path: Path) -> ServedBundle:
        """A bundle with all that answers from it prepared. Takes its time, in any thread."""
        ...


@dataclass(frozen=True)
class Bundles:
    """What is served at one moment."""

    primary: ServedBundle
    candidate: ServedBundle | None = None
    share: float = 0.0
    """Of users, that are the candidate's."""

    def by_role(self) -> dict[Role, ServedBundle]:
        """One or two bundles."""
        served = {Role.PRIMARY: self.primary}
        return served if self.candidate is None else served | {Role.CANDIDATE: self.candidate}

    def share_of(self, role: Role) -> float:
        """Of users."""
        return self.share if role is Role.CANDIDATE else 1 - self.share

    def versions(self) -> list[tuple[str, float]]:
        """Version and share by role: who is answered by what."""
        return [(served.version, self.share_of(role)) for role, served in self.by_role().items()]


@dataclass(frozen=True)
class _Answering:
    """A bundle that answers one user, in its role; counts what comes of it."""

    role: Role
    served: ServedBundle
    stats: AnswerStats

    async def recommend(self, user_id: str, query: Query, **options: Any) -> Generated:
        """As Generator.recommend."""
        started_s = time.perf_counter()
        try:
            generated = await self.served.generator.recommend(user_id, query, **options)
        except (Unreachable, DataLoss):
            self.stats.degraded[self.role, kind_of(Degradation.DEGRADATION_STATE_UNAVAILABLE)] += 1
            raise  # `popular` is asked next, and counts the answer
        except Exception as error:
            self._count(started_s, status_code(error).name)
            raise
        self._count(started_s, "OK", generated)
        return generated

    async def popular(self, query: Query, *, deadline_s: float | None = None) -> Generated:
        """As Generator.popular."""
        started_s = time.perf_counter()
        try:
            generated = await self.served.generator.popular(query, deadline_s=deadline_s)
        except Exception as error:
            self._count(started_s, status_code(error).name)
            raise
        self._count(started_s, "OK")
        return generated

    def _count(self, started_s: float, status: str, generated: Generated | None = None) -> None:
        kinds = map(kind_of, degradations_of(generated) if generated else [])
        self.stats.count(self.role, status, time.perf_counter() - started_s, kinds)


class BundleRouter:
    """Everything but the loading happens on the event loop. `run` must be running."""

    def __init__(self, loader: BundleLoader, bundles: Bundles) -> None:
        """`bundles` are those of the settings, not running yet."""
        self._loader = loader
        self._configured = bundles.versions()
        self.bundles = bundles
        self._changing = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self.stats = AnswerStats()
        self._serve(bundles)

    @property
    def is_as_configured(self) -> bool:
        """Whether a restart would serve the same."""
        return self.bundles.versions() == self._configured

    @contextlib.contextmanager
    def answering(self, user_id: str) -> Iterator[_Answering]:
        """What answers a user's request; it stays whatever changes meanwhile."""
        bundles = self.bundles
        role = role_of(user_id, bundles.share)
        served = bundles.by_role()[role]
        with served.in_use():
            yield _Answering(role, served, self.stats)

    async def run(self) -> None:
        """Answer, until cancelled. Raises what ends one of the bundles."""
        self._start_all()
        try:
            (await self._failed.get()).result()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _start_all(self) -> None:  # not in `run`, which would hold on to a bundle
        for served in self.bundles.by_role().values():
            self._start(served)

    async def wait_until_caught_up(self) -> None:
        """Return when the bundles know the whole catalogue."""
        for served in self.bundles.by_role().values():
            await served.wait_until_caught_up()

    async def load(self, path: Path, share: float) -> None:
        """Serve a bundle as the candidate, once it is ready. Raises InvalidRequest, and changes nothing then."""
        _check_share(share)
        async with self._changing:
            bundles = self.bundles
            version = await self._read(self._loader.version, path)
            candidate = bundles.candidate
            if version == bundles.primary.version:
                raise InvalidRequest(f"{path} is bundle {version}, which is the primary already")
            if candidate is None:
                candidate = await self._read(self._loader.load, path)
                await self._begin(candidate)
            elif version != candidate.version:
                raise InvalidRequest(
                    f"bundle {candidate.version} is the candidate; promote or unload it before {path} is loaded"
                )
            self._serve(replace(bundles, candidate=candidate, share=share))

    async def set_share(self, share: float) -> None:
        """Of users, that the candidate answers. Raises InvalidRequest."""
        _check_share(share)
        async with self._changing:
            self._candidate("")
            self._serve(replace(self.bundles, share=share))

    async def promote(self, version: str = "") -> None:
        """The candidate answers all users from now on. Raises InvalidRequest, as where it is not `version`."""
        async with self._changing:
            candidate, primary = self._candidate(version), self.bundles.primary
            if primary.catalogue.live.is_held:
                raise InvalidRequest(
                    f"the catalogue of bundle {primary.version} is held after a rollback, and that of "
                    f"{candidate.version} is not; `gemstream catalogue resume` first"
                )
            self._serve(Bundles(candidate))
            self._retire(primary)

    async def unload(self, version: str = "") -> None:
        """The primary answers all users from now on. Raises InvalidRequest, as where it is not `version`."""
        async with self._changing:
            candidate = self._candidate(version)
            self._serve(Bundles(self.bundles.primary))
            self._retire(candidate)

    def _candidate(self, version: str) -> ServedBundle:
        candidate = self.bundles.candidate
        if candidate is None:
            raise InvalidRequest("there is no candidate; `gemstream bundle load` loads one")
        if version not in ("", candidate.version):
            raise InvalidRequest(f"the candidate is bundle {candidate.version}, not {version}")
        return candidate

    def _serve(self, bundles: Bundles) -> None:
        """Requests that come from now on find these. Users' caches are divided as users are."""
        self.bundles = bundles
        for role, served in bundles.by_role().items():
            served.generator.limit_caches(bundles.share_of(role))
            log.info(
                "bundle %s is the %s, for %g %% of users",
                served.version,
                role,
                100 * bundles.share_of(role),
            )

    async def _read(self, read: Callable[[Path], _Read], path: Path) -> _Read:
        try:
            return await asyncio.to_thread(read, path)
        except (ModelError, StateError, SettingsError) as error:
            raise InvalidRequest(str(error)) from error

    async def _begin(self, served: ServedBundle) -> None:
        """Run it, until it is ready."""
        task = self._start(served)
        try:
            await served.wait_until_caught_up()
        except BaseException:
            task.cancel()
            raise

    def _start(self, served: ServedBundle) -> asyncio.Task[None]:
        task = asyncio.create_task(served.run(), name=served.version)
        served.running = task
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._failed.put_nowait(task)

    def _retire(self, served: ServedBundle) -> None:
        task = asyncio.create_task(served.stop())
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def _check_share(share: float) -> None:
    try:
        check_share(share)
    except ConfigError as error:
        raise InvalidRequest(str(error)) from error
