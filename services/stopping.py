"""Waiting that ends when the process is told to stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Stopped(Exception):
    """The process was told to stop before the work was done; nothing is wrong."""


async def unless_stopped(work: Coroutine[Any, Any, _Result], stop: asyncio.Event) -> _Result:
    """The result of `work`. Raises Stopped, and cancels it, when `stop` is set first."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Stopped
    finally:
        task.cancel()
        stopping.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
