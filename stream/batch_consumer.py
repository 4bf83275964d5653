"""Faust's consumer for one topic in batches: what a fetch brought of a partition is one message, and a rebalance loses none.

Faust resumes a topic before it seeks, lets fetches and seeks run at once, and clears its queues behind the seek. What is
read meanwhile is gone, and the position is past it (faust-streaming/faust#596). Here a fetch and a seek exclude each
other, and from the seek to the clearing nothing is read: a fetch before the seek is undone by it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from faust.transport.drivers import aiokafka as driver

_FEW_RECORDS = 2_000
_PAUSE_S = 0.5
"""After a fetch of few records: what is written for each batch is written once for more of them."""


def consumer_of_batches(topic: str) -> type[driver.Consumer]:
    """The class for `app.transport.Consumer`. `topic` must have one stream, in which messages are done in order."""
    made: type[Any] = type("BatchConsumer", (_BatchConsumer,), {"topic": topic})
    made.logger = driver.Consumer.logger  # Faust gives every class one in the name of who made it
    return made


class _Fetched:
    """All records that a fetch brought of a partition, in the guise of the last one."""

    headers = ()
    key = b""
    checksum = None
    serialized_key_size = 0

    def __init__(self, records: Sequence[Any]) -> None:
        last = records[-1]
        self.topic, self.partition, self.offset = last.topic, last.partition, last.offset
        self.timestamp, self.timestamp_type = last.timestamp, last.timestamp_type
        self.value = records
        self.serialized_value_size = sum(len(record.value or b"") for record in records)


class _BatchConsumer(driver.Consumer):
    topic: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._positions = asyncio.Lock()
        self._is_open = False
        """Whether `topic` is read."""
        self._pause_s = 0.0

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:
        await asyncio.sleep(self._pause_s)
        async with self._positions:
            # A copy: Faust empties its set in a rebalance, and aiokafka takes "none" for "all".
            wanted = {tp for tp in active_partitions if self._is_open or tp.topic != self.topic}
            fetched = await super()._getmany(wanted, timeout) if wanted else {}
        batches = {tp: got for tp, got in fetched.items() if tp.topic == self.topic and got}
        few = batches and sum(map(len, batches.values())) < _FEW_RECORDS
        self._pause_s = _PAUSE_S if few or not wanted else 0.0
        return {**fetched, **{tp: [_Fetched(batch)] for tp, batch in batches.items()}}

    async def seek_to_committed(self) -> Any:
        """After a rebalance; Faust clears its queues and calls `resume_flow` next."""
        async with self._positions:
            self._is_open = False
            committed = await super().seek_to_committed()
            # Where nothing is committed aiokafka stays where it is, which may be behind what was read and dropped.
            unknown = [tp for tp, at in committed.items() if tp.topic == self.topic and not at]
            if unknown:
                await self._thread.seek_to_beginning(*unknown)
        return committed

    async def seek_wait(self, partitions: Any) -> None:
        """Before the table's changelog is read."""
        async with self._positions:
            await super().seek_wait(partitions)

    def resume_flow(self) -> None:
        self._is_open = True
        super().resume_flow()

    async def _add_gap(self, tp: Any, offset_from: int, offset_to: int) -> None:
        """Every message is a gap."""

    def _new_offset(self, tp: Any) -> int | None:
        """The newest message that is done says what to commit, whatever offsets lie between."""
        done = self._acked[tp]
        if not done:
            return None
        newest = max(done)
        done.clear()
        self._acked_index[tp].clear()
        return int(newest) + 1
