"""The way of an event into the state: poll, decode, dead letters, fold and write, flush, commit; in that order."""

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from state.arrivals import Applied
from state.user_store import UserStore
from stream.consumer import InteractionConsumer
from stream.dead_letters import DeadLetters
from stream.decode import Decoded, Decoder, Record, fingerprint
from stream.errors import OffsetUnreachable

log = logging.getLogger(__name__)


class Ingest:
    """Runs the loop of one state node.

    At-least-once delivery, effectively-once apply: the offset is in the same write batch as the state it led to, a
    restart seeks to it, and what lies below it is skipped.
    """

    def __init__(
        self,
        consumer: InteractionConsumer,
        decoder: Decoder,
        dead_letters: DeadLetters,
        store: UserStore,
        on_moved: Callable[[], None],
    ) -> None:
        """`on_moved` is called after a poll that moved a lifecycle boundary."""
        self._consumer = consumer
        self._decoder = decoder
        self._dead_letters = dead_letters
        self._store = store
        self._on_moved = on_moved
        self._stopping = False
        self.counters: Counter[str] = Counter()
        """Since the process started."""

    def stop(self) -> None:
        """Let `run` return after the poll in hand."""
        self._stopping = True

    async def run(self) -> None:
        """Ingest until stopped. Not to be cancelled: a poll in hand must be applied whole.

        Raises StreamError when the broker refuses, StateError when the store does.
        """
        while not self._stopping:
            polled = await self._consumer.poll()
            if polled:
                async with self._consumer.processing:
                    await self._process(polled)

    async def _process(self, polled: dict[int, list[Record]]) -> None:
        """The order of effects.

        1. Decode. Records of a partition that was taken away meanwhile are left to its new owner.
        2. Dead letters are in their topic before the offset passes them.
        3. State, offset and dirty marks in one write batch; then the write-ahead log is synced.
        4. Commit to the group, as a hint.
        """
        owned = self._consumer.assigned()
        decoded = [
            self._decoder.decode(partition, unseen)
            for partition, records in polled.items()
            if partition in owned and (unseen := self._unseen(partition, records))
        ]
        if not decoded:
            return
        await self._dead_letters.write([letter for part in decoded for letter in part.rejected])
        applied = await asyncio.to_thread(self._apply, decoded)
        await self._consumer.commit(
            {part.arrivals.partition: part.arrivals.position.next_offset for part in decoded}
        )
        self._count(decoded, applied)

    def _unseen(self, partition: int, records: Sequence[Record]) -> Sequence[Record]:
        """Records from the stored offset on. The one before it, read again after an assignment, must be the one we know.

        Raises OffsetUnreachable when it is not.
        """
        position = self._store.position(partition)
        if position is None:
            return records
        first = bisect_left(records, position.next_offset, key=lambda record: record.offset)
        last_seen = records[first - 1] if first else None
        if (
            last_seen is not None
            and last_seen.offset == position.next_offset - 1
            and fingerprint(last_seen) != position.fingerprint
        ):
            raise OffsetUnreachable(
                f"partition {partition}: the record at offset {last_seen.offset} is not the one that was applied; the "
                "topic was made anew, or this is another cluster. Point to the right Kafka, or start from a new data "
                "directory"
            )
        return records[first:]

    def _apply(self, decoded: Sequence[Decoded]) -> Applied:
        applied = self._store.apply([part.arrivals for part in decoded])
        self._store.flush()
        return applied

    def _count(self, decoded: Sequence[Decoded], applied: Applied) -> None:
        self.counters.update(applied.counts())
        self.counters["dead_letters"] += sum(len(part.rejected) for part in decoded)
        self.counters["future"] += sum(part.future for part in decoded)
        for part in decoded:
            if part.rejected:
                first = part.rejected[0]
                log.warning(
                    "%d dead letters from partition %d; the first, offset %d: %s",
                    len(part.rejected),
                    part.arrivals.partition,
                    first.record.offset,
                    first.reason,
                )
        if applied.moved_users:
            self._on_moved()
