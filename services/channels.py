"""Channels to our own servers: in plain text, or over TLS where it is configured."""

from dataclasses import dataclass, field

import grpc
import grpc.aio

from services.credentials import ClientCredentials

_OPTIONS = [
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


@dataclass(frozen=True)
class Target:
    """A server, and what to show it."""

    address: str
    credentials: ClientCredentials = field(default_factory=ClientCredentials)


def open_channel(target: Target) -> grpc.Channel:
    """For blocking calls. Nothing is connected before the first."""
    if target.credentials.tls is None:
        return grpc.insecure_channel(target.address, options=_OPTIONS)
    return grpc.secure_channel(target.address, target.credentials.tls.current(), options=_OPTIONS)


def open_aio_channel(target: Target) -> grpc.aio.Channel:
    """For calls from an event loop. Nothing is connected before the first."""
    if target.credentials.tls is None:
        return grpc.aio.insecure_channel(target.address, options=_OPTIONS)
    return grpc.aio.secure_channel(
        target.address, target.credentials.tls.current(), options=_OPTIONS
    )
