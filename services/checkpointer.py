"""Takes checkpoints in the background, partition by partition, and keeps what became of them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from services.errors import NotFound
from state.checkpoint_config import CheckpointsConfig
from state.checkpoints import CheckpointWriter, Taken
from state.errors import StateError, StoreClosed
from state.partition_stores import PartitionStores
from state.restore import CheckpointRestorer
from stream.errors import LeaseExpired

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_RETRY_AFTER_S = 30.0


@dataclass
class CheckpointLog:
    """What became of the checkpoints of each partition since the process started."""

    last: dict[int, Taken] = field(default_factory=dict)
    """The newest that was taken, or found when the partition came here."""
    failures: Counter[int] = field(default_factory=Counter)
    last_failure: dict[int, str] = field(default_factory=dict)

    def created_at_ms(self, partition: int) -> int | None:
        """When the newest checkpoint was made; None where there is none."""
        last = self.last.get(partition)
        return None if last is None else last.manifest.created_at_ms

    def num_failures(self, partition: int) -> int:
        """Checkpoints that could not be taken, or looked up."""
        return self.failures[partition]


class Checkpointer:
    """Sees to it that the newest checkpoint of each served partition is at most `interval_s` old.

    Nothing that goes wrong here stops the node: it is logged, counted and tried again.
    """

    def __init__(
        self,
        stores: PartitionStores,
        writer: CheckpointWriter,
        restorer: CheckpointRestorer,
        served: Callable[[], set[int]],
        check_served: Callable[[int], None],
        config: CheckpointsConfig,
    ) -> None:
        """`check_served` raises LeaseExpired once a partition is not surely this node's any more."""
        self.log = CheckpointLog()
        self._stores = stores
        self._writer = writer
        self._restorer = restorer
        self._served = served
        self._check_served = check_served
        self._config = config
        self._known: set[int] = set()
        """The open partitions whose newest checkpoint was looked up."""
        self._due_at_s: dict[int, float] = {}
        self._hastened: set[int] = set()

    async def run(self) -> None:
        """Take checkpoints until cancelled."""
        while True:
            await self._look_up_opened()
            for partition in sorted(self._served()):
                if partition in self._known and self._is_due(partition):
                    await self._try(self._take(partition), partition)
                    await self._look_up_opened()
            await asyncio.sleep(min(_LOOK_EVERY_S, self._config.interval_s))

    async def take(
        self, partition: int | None, *, prune: bool, full: bool = False
    ) -> tuple[list[Taken], dict[int, str]]:
        """Take one of `partition`, or of each that is served, now; returns them, and why others failed.

        A partition that nothing was applied to yet is left out. Raises NotFound for one that is not served here.
        """
        if partition is not None and partition not in self._served():
            raise NotFound(f"partition {partition} is not served by this node now")
        taken, failures = [], {}
        for each in sorted(self._served()) if partition is None else [partition]:
            try:
                result = await self._take(each, prune=prune, full=full)
            except (StateError, LeaseExpired) as error:
                failures[each] = str(error)
            else:
                taken += [] if result is None else [result]
        return taken, failures

    def hasten(self, partition: int) -> None:
        """Take the next one of a partition soon: something changed that Kafka does not know of. From any thread."""
        self._hastened.add(partition)

    def stop(self) -> None:
        """Let restores under way end, as the node stops."""
        self._restorer.stop()

    async def _look_up_opened(self) -> None:
        """An open partition has a newest checkpoint before it is served, and whoever took that."""
        opened = set(self._stores.partitions())
        for gone in (self._known | self._due_at_s.keys() | self._hastened) - opened:
            self._known.discard(gone)
            self._hastened.discard(gone)
            self._due_at_s.pop(gone, None)
            self.log.last.pop(gone, None)
        for partition in sorted(opened - self._known):
            if self._has_waited(partition):
                await self._try(self._look_up(partition), partition)

    async def _try(self, work: Awaitable[object], partition: int) -> None:
        try:
            await work
        except (StoreClosed, LeaseExpired) as error:
            log.info("no checkpoint of partition %d: %s", partition, error)
        except StateError as error:
            log.error("no checkpoint of partition %d: %s", partition, error)  # noqa: TRY400

    async def _look_up(self, partition: int) -> None:
        """The newest checkpoint may be young enough for now."""
        with self._counted(partition):
            newest = await asyncio.to_thread(self._writer.newest, partition)
        self._known.add(partition)
        age_s = self._config.interval_s
        if newest is not None:
            self.log.last.setdefault(partition, Taken(newest, is_new=False))
            age_s = max(0.0, time.time() - newest.created_at_ms / 1_000)
        self._wait(partition, self._config.interval_s - age_s)

    async def _take(
        self, partition: int, *, prune: bool = False, full: bool = False
    ) -> Taken | None:
        self._hastened.discard(partition)
        with self._counted(partition):
            taken = await asyncio.to_thread(
                self._writer.take,
                self._stores.get(partition),
                lambda: self._check_served(partition),
                prune=prune,
                full=full,
            )
        self._wait(partition, self._config.interval_s)
        if taken is not None:
            if taken.is_new or partition not in self.log.last:
                self.log.last[partition] = taken
            if taken.is_new:
                _tell(taken)
        return taken

    @contextmanager
    def _counted(self, partition: int) -> Iterator[None]:
        """What fails inside is counted, and due again soon; a partition that went elsewhere is no failure."""
        self._wait(partition, min(_RETRY_AFTER_S, self._config.interval_s))
        try:
            yield
        except StoreClosed:
            raise
        except StateError as error:
            self.log.failures[partition] += 1
            self.log.last_failure[partition] = str(error)
            raise

    def _is_due(self, partition: int) -> bool:
        return partition in self._hastened or self._has_waited(partition)

    def _has_waited(self, partition: int) -> bool:
        return self._due_at_s.get(partition, 0.0) <= time.monotonic()

    def _wait(self, partition: int, seconds: float) -> None:
        self._due_at_s[partition] = time.monotonic() + seconds


def _tell(taken: Taken) -> None:
    log.info(
        "checkpoint of partition %d at offset %d: %d files, %d of %d bytes uploaded, %.1f s",
        taken.manifest.partition,
        taken.manifest.next_offset,
        len(taken.manifest.files),
        taken.uploaded_bytes,
        taken.manifest.num_bytes,
        taken.seconds,
    )
