"""Keeps an inference node's catalogue as the topic `items` says: hear, hide at once, build aside, swap."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping

from model.catalogue_view import CatalogueView
from model.errors import CatalogueError
from model.item_placement import Refusal
from model.live_catalogue import CatalogueVersion, LiveCatalogue
from services.catalogue_config import CatalogueConfig
from services.errors import NotFound
from services.item_messages import change_of
from stream.errors import StreamError, TopicMismatch
from stream.histogram import Histogram
from stream.item_records import ItemBatch, ItemRecord

log = logging.getLogger(__name__)

_FOLLOW_AGAIN_AFTER_S = 1.0
_SWEEP_EVERY_S = 60.0
_MAX_UNREADABLE = 100
_MAX_REFUSALS_LOGGED = 20
_REBUILD_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Read = Callable[[int], AsyncIterator[ItemBatch]]
"""The topic from an offset on. Raises StreamError."""


class CatalogueFollower:
    """Everything but the building happens on the event loop; one build or rollback at a time."""

    def __init__(
        self,
        live: LiveCatalogue,
        read: Read,
        swap: Callable[[CatalogueView], None],
        config: CatalogueConfig,
    ) -> None:
        """`swap` makes requests take another view from now on."""
        self.live = live
        self._read = read
        self._swap = swap
        self._config = config
        self._building = asyncio.Lock()
        self._news = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._unreadable: OrderedDict[str, ItemRecord] = OrderedDict()
        self.num_unreadable = 0
        """Records whose key is no item id."""
        self.is_following = False
        """Whether Kafka answers."""
        self.rebuild_s = Histogram(_REBUILD_BOUNDS_S)

    @property
    def is_caught_up(self) -> bool:
        """Whether all is served that was in the topic when the node started."""
        return self._caught_up.is_set()

    @property
    def unreadable(self) -> Mapping[str, ItemRecord]:
        """The newest records whose key is no item id, by key."""
        return self._unreadable

    @property
    def version(self) -> CatalogueVersion:
        """What is served."""
        return self.live.versions[-1]

    @property
    def num_refused(self) -> int:
        """Records that cannot be used."""
        return self.live.counts[Refusal] + self.num_unreadable

    async def run(self) -> None:
        """Until cancelled. Raises TopicMismatch; while the broker is away the last word stands."""
        tasks = [asyncio.create_task(each) for each in (self._follow(), self._refresh())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_until_caught_up(self) -> None:
        """Return when all is served that was in the topic at the start, or with a warning when that does not go on."""
        if not await self._caught_up_in_time():
            log.warning(
                "the catalogue's topic is not read to its end, and nothing came for %.0f s (catalogue.start_timeout_s); "
                "serving version %d, items that were removed may be among it",
                self._config.start_timeout_s,
                self.version.number,
            )

    async def _caught_up_in_time(self) -> bool:
        """False after `start_timeout_s` in which nothing was read or built."""
        while True:
            before = self.live.next_offset
            try:
                async with asyncio.timeout(self._config.start_timeout_s):
                    await self._caught_up.wait()
            except TimeoutError:
                if not self._building.locked() and self.live.next_offset == before:
                    return False
            else:
                return True

    async def roll_back(self) -> CatalogueVersion:
        """Serve the version before and hold there. Raises NotFound when none is kept."""
        async with self._building:
            try:
                batch = self.live.undone()
            except CatalogueError as error:
                raise NotFound(str(error)) from error
            version = self.live.roll_back(await asyncio.to_thread(self.live.build, batch))
            self._swap(self.live.view)
        log.warning("the catalogue is rolled back to version %d and held there", version.number)
        return version

    async def resume(self) -> None:
        """Serve what was held back with the next build, within seconds."""
        async with self._building:
            self.live.resume()
            self._swap(self.live.view)
            self._news.set()
        log.info("the catalogue follows its topic again")

    async def _follow(self) -> None:
        while True:
            try:
                async for batch in self._read(self.live.next_offset):
                    self.is_following = True
                    self._hear(batch)
                    at_end = batch.is_at_end and not self.is_caught_up
                    if at_end and await self._build():
                        self._caught_up.set()
            except TopicMismatch:
                raise
            except StreamError as error:
                log.warning("cannot follow the catalogue's topic, will try again: %s", error)
            self.is_following = False
            await asyncio.sleep(_FOLLOW_AGAIN_AFTER_S)

    def _hear(self, batch: ItemBatch) -> None:
        if not batch.records:
            return
        changes = []
        for record in batch.records:
            if record.item_id is None:
                self._refuse_unreadable(record)
            else:
                changes.append((record.item_id, change_of(record)))
        before = self.live.view
        self.live.hear(changes, batch.next_offset, batch.records[-1].time_ms)
        if self.live.view is not before:
            self._swap(self.live.view)
        self._news.set()

    def _refuse_unreadable(self, record: ItemRecord) -> None:
        log.warning(
            "record %d of the catalogue's topic is refused: %s", record.offset, record.fault
        )
        self.num_unreadable += record.key not in self._unreadable
        self._unreadable[record.key] = record
        self._unreadable.move_to_end(record.key)
        if len(self._unreadable) > _MAX_UNREADABLE:
            self._unreadable.popitem(last=False)

    async def _refresh(self) -> None:
        await self._caught_up_in_time()
        swept_s = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(_SWEEP_EVERY_S):
                    await self._news.wait()
            except TimeoutError:
                pass  # what expired may leave
            self._news.clear()
            sweep = time.monotonic() - swept_s >= _SWEEP_EVERY_S
            swept_s = time.monotonic() if sweep else swept_s
            await self._build(sweep=sweep)
            await asyncio.sleep(self._config.refresh_interval_s)

    async def _build(self, *, sweep: bool = False) -> bool:
        """Whether all that was heard is served, or was held back."""
        async with self._building:
            batch = self.live.take(sweep=sweep)
            if batch is None:
                return True
            try:
                built = await asyncio.to_thread(self.live.build, batch)
            except Exception:
                log.exception(
                    "the catalogue could not be built; its changes wait for the next time"
                )
                self.live.give_back(batch)
                self._news.set()
                return False
            version = self.live.publish(built)
            self._swap(self.live.view)
        self.rebuild_s.observe(built.seconds)
        refused = {i: state for i, state in built.states.items() if isinstance(state, Refusal)}
        for item_id, refusal in list(refused.items())[:_MAX_REFUSALS_LOGGED]:
            log.warning("item %d is refused: %s", item_id, refusal.reason)
        log.info(
            "serving catalogue version %d (offset %d): %d items, %d changes, %d refused, built in %.3f s",
            version.number,
            version.next_offset,
            version.num_items,
            len(built.states),
            len(refused),
            built.seconds,
        )
        return True
