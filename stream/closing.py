"""Closes a client of aiokafka without losing a cancellation: the client swallows one that comes while it closes.

A task that loses it goes on for ever, and who waits for its end does, too.
"""

import asyncio
from collections.abc import Awaitable


async def close(closing: Awaitable[object]) -> None:
    """Await it. Raises CancelledError where this task was asked to end meanwhile."""
    task = asyncio.current_task()
    asked = 0 if task is None else task.cancelling()
    await closing
    if task is not None and task.cancelling() > asked:
        raise asyncio.CancelledError
