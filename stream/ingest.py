"""The way of an event into the state: poll, decode, dead letters, fold and write, flush, commit; in that order."""

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from state.arrivals import Applied
from state.errors import DamagedUsers
from state.partition_stores import PartitionStores
from stream.consumer import InteractionConsumer, Poll
from stream.dead_letters import DeadLetters
from stream.decode import Decoded, Decoder, Record, Rejected, fingerprint
from stream.errors import LeaseExpired, OffsetUnreachable
from stream.histogram import Histogram
from stream.set_aside import set_aside

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.1
_LETTERS_WITHIN_S = 5.0
"""Once the loop is to stop."""

_POLL_SIZES = (1, 10, 100, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)


@dataclass(frozen=True)
class PollHistograms:
    """What each poll that brought something new was like."""

    records: Histogram = field(default_factory=lambda: Histogram(_POLL_SIZES))
    decode_s: Histogram = field(default_factory=Histogram)
    write_s: Histogram = field(default_factory=Histogram)
    """Folding and writing the batches of all partitions in the poll."""
    flush_s: Histogram = field(default_factory=Histogram)
    """Until they survive a loss of power."""
    commit_s: Histogram = field(default_factory=Histogram)


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
        stores: PartitionStores,
        on_moved: Callable[[], None],
    ) -> None:
        """`on_moved` is called after a poll that moved a lifecycle boundary."""
        self._consumer = consumer
        self._decoder = decoder
        self._dead_letters = dead_letters
        self._stores = stores
        self._on_moved = on_moved
        self._stopping = asyncio.Event()
        self.counters: Counter[str] = Counter()
        """Since the process started."""
        self.polls = PollHistograms()
        """Since the process started."""

    def stop(self) -> None:
        """Let `run` return after the poll in hand."""
        self._stopping.set()

    async def run(self) -> None:
        """Ingest until stopped. Not to be cancelled: a poll in hand must be applied whole.

        The next poll is read while one is applied. Raises StreamError when the broker refuses, StateError when the
        store does.
        """
        applying = asyncio.create_task(self._process(Poll(generation=0)))
        try:
            while not self._stopping.is_set():
                poll = await self._consumer.poll()
                await applying
                applying = asyncio.create_task(self._process(poll))
        finally:
            await applying

    async def _process(self, poll: Poll) -> None:
        """Apply a poll, unless a rebalance takes it away: then its records are read again by their owner."""
        told: set[tuple[int, int]] = set()
        async with self._consumer.processing:
            while poll.records and self._consumer.is_current(poll):
                if await self._consumer.holds(poll) and await self._apply_whole(poll, told):
                    break
                if self._stopping.is_set():
                    return
                await asyncio.sleep(_ASK_AGAIN_S)
            if self._consumer.is_current(poll):
                await self._consumer.renew()
                self._consumer.phases.applied(poll.positions)
                self._consumer.progress.applied(poll.positions, _newest_timestamps(poll))

    async def _apply_whole(self, poll: Poll, told: set[tuple[int, int]]) -> bool:
        """The order of effects; returns false where something is left to be done again.

        That is where the lease on the partitions ran out before the write, where damaged users were found, whose
        records are to be set aside now, or where the loop stops and the broker takes no letters. `told` are the letters
        that are written already.

        1. Decode.
        2. Dead letters are in their topic before the offset passes them.
        3. State, offset and dirty marks of a partition in one write batch; then the write-ahead log is synced.
        4. Commit to the group, as a hint.
        """
        with self.polls.decode_s.timing():
            decoded = await asyncio.to_thread(self._decode, poll)
        if not decoded:
            return True
        if not await self._write_letters(decoded, told):
            return False
        try:
            applied, done = await asyncio.to_thread(self._apply, decoded)
        except LeaseExpired:
            return False
        with self.polls.commit_s.timing():
            await self._consumer.commit(
                {part.arrivals.partition: part.arrivals.position.next_offset for part in done}
            )
        self._count(done, applied)
        if len(done) < len(decoded):
            return False
        self.polls.records.observe(sum(len(records) for records in poll.records.values()))
        return True

    async def _write_letters(self, decoded: Sequence[Decoded], told: set[tuple[int, int]]) -> bool:
        letters = {
            (letter.record.partition, letter.record.offset): letter
            for part in decoded
            for letter in part.letters
        }
        new = [letter for where, letter in letters.items() if where not in told]
        if new and not await self._written(new):
            return False
        told.update(letters)
        return True

    async def _written(self, letters: Sequence[Rejected]) -> bool:
        """Whether they are in their topic: the client tries for ever, a loop that stops does not wait so long."""
        writing = asyncio.create_task(self._dead_letters.write(letters))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([writing, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.wait([writing], timeout=_LETTERS_WITHIN_S)
        if writing.done():
            writing.result()
            return True
        writing.cancel()
        log.warning("%d dead letters are not written, and their poll is read again", len(letters))
        return False

    def _decode(self, poll: Poll) -> list[Decoded]:
        return [
            self._decode_part(partition, unseen)
            for partition, records in poll.records.items()
            if (unseen := self._unseen(partition, records))
        ]

    def _decode_part(self, partition: int, records: Sequence[Record]) -> Decoded:
        decoded = self._decoder.decode(partition, records)
        quarantined = self._stores.get(partition).quarantine.users
        return set_aside(decoded, records, quarantined) if quarantined else decoded

    def _unseen(self, partition: int, records: Sequence[Record]) -> Sequence[Record]:
        """Records from the stored offset on. The one before it, read again after an assignment, must be the one we know.

        Raises OffsetUnreachable when it is not.
        """
        position = self._stores.get(partition).position()
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
                "directory (and another checkpoints.uri)"
            )
        return records[first:]

    def _apply(self, decoded: Sequence[Decoded]) -> tuple[Applied, list[Decoded]]:
        """What became of it, and the parts that are in their stores: not those with users found damaged only now."""
        total, done = Applied(), []
        stores = [self._stores.get(part.arrivals.partition) for part in decoded]
        with self.polls.write_s.timing():
            for store, part in zip(stores, decoded, strict=True):
                with suppress(
                    DamagedUsers
                ):  # quarantined and logged: the next try sets their records aside
                    total.add(store.apply(part.arrivals, self._consumer.check_lease))
                    done.append(part)
        with self.polls.flush_s.timing():
            for store in stores:
                store.flush()
        return total, done

    def _count(self, decoded: Sequence[Decoded], applied: Applied) -> None:
        self.counters.update(applied.counts())
        self.counters["dead_letters"] += sum(len(part.rejected) for part in decoded)
        self.counters["quarantined"] += sum(len(part.quarantined) for part in decoded)
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
        if applied.boundary_moves:
            self._on_moved()


def _newest_timestamps(poll: Poll) -> dict[int, int]:
    return {partition: records[-1].timestamp for partition, records in poll.records.items()}
