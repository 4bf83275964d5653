"""A channel that outlives its certificates: opened anew when their files changed, while calls under way end on the old one."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc
import grpc.aio

from services.channels import Target, open_aio_channel

_Stubs = TypeVar("_Stubs")


class RenewedChannel(Generic[_Stubs]):
    """To one server, on one event loop. gRPC reads a channel's certificates once, so another channel has the new ones."""

    def __init__(
        self,
        target: Target,
        make_stubs: Callable[[grpc.aio.Channel], _Stubs],
        longest_call_s: float,
    ) -> None:
        """Nothing is connected before the first call. `longest_call_s`: no call is given more time."""
        self._target, self._make_stubs = target, make_stubs
        self._longest_call_s = longest_call_s
        self._leaving: set[asyncio.Task[None]] = set()
        self._open()

    def stubs(self) -> _Stubs:
        """For a call that begins now."""
        if _current_tls(self._target) is not self._tls:
            leaving = asyncio.create_task(self._channel.close(self._longest_call_s))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            self._open()
        return self._stubs

    def _open(self) -> None:
        self._tls = _current_tls(self._target)
        self._channel = open_aio_channel(self._target)
        self._stubs = self._make_stubs(self._channel)

    async def close(self) -> None:
        """At once; calls under way fail, those on a channel that was left when their time is over."""
        await asyncio.gather(self._channel.close(), *self._leaving)


def _current_tls(target: Target) -> grpc.ChannelCredentials | None:
    files = target.credentials.tls
    return None if files is None else files.current()
