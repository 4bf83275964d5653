"""Rollouts on a state node: walks over all users at their rates, and what operators may ask of them."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

from services.errors import NotFound
from state.bundle_rollout import (
    BundleStates,
    Step,
    Walk,
    WalkState,
    mark_some,
    put_changed_at,
    read_bundles_changed_at_ms,
    remove_some,
    retire,
    set_rollout_state,
    start_rollout,
    stop_rollout,
)
from state.errors import StoreClosed
from state.key_value_store import Batch, KeyValueStore
from state.partition_stores import PartitionStores
from state.user_store import UserStore

log = logging.getLogger(__name__)

_STEP_EVERY_S = 0.1
_LOOK_EVERY_S = 1.0
_MAX_USERS = 500
"""Of one step: others wait for the store's lock meanwhile."""

Change = Callable[[KeyValueStore], Batch]
_StepOf = Callable[[KeyValueStore, int, int], Step]


def _nobody_copies(partition: int) -> None:
    """Where no checkpoints are kept."""


class Rollouts:
    """Each walk's progress is in its store, so that whoever opens that goes on."""

    def __init__(
        self,
        stores: PartitionStores,
        served: Callable[[], set[int]],
        on_marked: Callable[[], None],
        on_changed: Callable[[int], None] = _nobody_copies,
    ) -> None:
        """`served` names the partitions that may be changed; `on_marked` is called where users are owed summaries since.

        `on_changed` hears of each partition that an operator changed: whoever opens a copy of it is to know.
        """
        self._stores = stores
        self._served = served
        self._on_marked = on_marked
        self._on_changed = on_changed
        self._news = asyncio.Event()
        self._due: defaultdict[str, float] = defaultdict(float)
        """Users that may be changed now, by what the walk does."""

    async def run(self) -> None:
        """Walk on, until cancelled. Raises StoreError."""
        walked_at_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            walks = self._running()
            walked = await self._walk(walks, min(now_s - walked_at_s, _LOOK_EVERY_S))
            walked_at_s = now_s
            if walked:
                await asyncio.sleep(_STEP_EVERY_S)
            else:
                await self._wait_for_news()

    async def change(self, make_change: Change) -> None:
        """In every partition that is served. Raises RolloutRefused from the first that refuses; NotFound without any."""
        partitions = sorted(self._served())
        if not partitions:
            raise NotFound("this node serves no partition now; ask again, or another node")
        for partition in partitions:
            await asyncio.to_thread(self._change, partition, make_change)
        self._news.set()

    async def start(self, bundle_version: str, users_per_s: float) -> None:
        """Owe all users a summary of a bundle."""
        now_ms = _now_ms()
        await self.change(lambda store: start_rollout(store, bundle_version, users_per_s, now_ms))

    async def set_state(self, bundle_version: str, state: WalkState) -> None:
        """Pause, or go on."""
        await self.change(lambda store: set_rollout_state(store, bundle_version, state))

    async def stop(self, bundle_version: str) -> None:
        """Owe no more of it."""
        await self.change(lambda store: stop_rollout(store, bundle_version))

    async def retire(self, bundle_version: str, users_per_s: float) -> None:
        """Remove its summaries."""
        now_ms = _now_ms()
        await self.change(lambda store: retire(store, bundle_version, users_per_s, now_ms))
        self._on_marked()

    def _change(self, partition: int, make_change: Change) -> None:
        store = self._stores.get(partition)

        def make_batch(live: KeyValueStore) -> Batch:
            batch = make_change(live)
            # Clocks of two owners differ, and the later change must say the later time.
            put_changed_at(batch, max(_now_ms(), read_bundles_changed_at_ms(live) + 1))
            return batch

        store.change_bundles(make_batch)
        store.flush()
        self._on_changed(partition)

    def _running(self) -> list[tuple[int, str, Walk, _StepOf]]:
        """Partition, what the walk does, the walk, and how it goes on."""
        walks: list[tuple[int, str, Walk, _StepOf]] = []
        for partition, bundles in self._bundles():
            if bundles.rollout is not None:
                walks.append((partition, "mark", bundles.rollout, mark_some))
            for retired in bundles.retirements:
                remove = partial(_remove_some, retired.bundle_version)
                walks.append((partition, "remove", retired, remove))
        return [walk for walk in walks if walk[2].state is WalkState.RUNNING]

    def _bundles(self) -> Iterable[tuple[int, BundleStates]]:
        for partition in sorted(self._served()):
            try:
                yield partition, self._stores.get(partition).bundles
            except StoreClosed:
                continue  # given away meanwhile

    async def _walk(self, walks: list[tuple[int, str, Walk, _StepOf]], seconds: float) -> int:
        """A step of each; those that do the same share its rate. Returns how many users were looked at."""
        walked = 0
        for kind in ("mark", "remove"):
            alike = [walk for walk in walks if walk[1] == kind]
            rate = min((walk.users_per_s for _, _, walk, _ in alike), default=0.0)
            self._due[kind] = min(self._due[kind] + rate * seconds, max(1.0, rate))
            for place, (partition, _, _, step_of) in enumerate(alike):
                # Rounded up, for the first not to be the only one; what is left over is not lost.
                share = -(-int(self._due[kind]) // (len(alike) - place))
                if share <= 0:
                    break
                step = await asyncio.to_thread(self._step, partition, step_of, share)
                self._due[kind] -= step.changed
                walked += step.walked
                if kind == "mark" and step.changed:
                    self._on_marked()
            if not alike:
                self._due[kind] = 0.0
        return walked if not walks else max(walked, 1)

    def _step(self, partition: int, step_of: _StepOf, max_changed: int) -> Step:
        step = Step(Batch())

        def make_batch(store: KeyValueStore) -> Batch:
            nonlocal step
            step = step_of(store, max_changed, _MAX_USERS)
            return step.batch

        try:
            store: UserStore = self._stores.get(partition)
            store.change_bundles(make_batch)
        except StoreClosed:
            return Step(Batch())  # its next owner goes on
        return step

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):  # partitions come with walks of their own
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()


def _remove_some(
    bundle_version: str, store: KeyValueStore, max_changed: int, max_users: int
) -> Step:
    return remove_some(store, bundle_version, max_changed, max_users)


def _now_ms() -> int:
    return round(time.time() * 1_000)
