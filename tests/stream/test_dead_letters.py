"""Many letters at once: all are written, in their order, and few wait at a time."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from aiokafka import ConsumerRecord

from stream.dead_letters import SOURCE_OFFSET, DeadLetters
from stream.decode import Rejected
from stream.producer import Header


class _Broker:
    """As a producer whose broker takes records some time later."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.max_waiting = 0
        self._waiting = 0

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes, headers: list[Header]
    ) -> Awaitable[object]:
        self.offsets.append(int(dict(headers)[SOURCE_OFFSET]))
        self._waiting += 1
        self.max_waiting = max(self.max_waiting, self._waiting)
        return asyncio.create_task(self._take())

    async def _take(self) -> None:
        await asyncio.sleep(0)
        self._waiting -= 1


async def test_letters_are_written_in_slices_and_in_order() -> None:
    letters = [
        Rejected(ConsumerRecord("i", 0, n, 0, 0, b"ann", b"rubbish", None, 3, 7, ()), "rubbish")
        for n in range(1_201)
    ]
    broker: Any = _Broker()
    await DeadLetters(broker, "interactions", "dead-letters").write(letters)
    assert broker.offsets == list(range(1_201))
    assert broker.max_waiting <= 500
