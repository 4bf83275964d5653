"""Ports of this machine: which are free, and which to take."""

import secrets
import socket
from collections.abc import Iterable

_BELOW_CLIENTS = range(20_000, 32_000)
"""Ports below those that systems give to clients (Linux: from 32,768 on)."""
_TRIES = 100


def is_free(port: int) -> bool:
    """Whether a server of ours could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_ports(wanted: Iterable[int]) -> tuple[int, int]:
    """The first wanted port that is free, or any, and another one."""
    port = next((number for number in wanted if is_free(number)), None) or free_port()
    while (other := free_port()) == port:
        pass
    return port, other


def free_port() -> int:
    """Any that is free. No client takes it before the server does, or while that is away; another server might."""
    for _ in range(_TRIES):
        # Not `random`: who seeds it alike in two processes would have both take the same ports.
        if is_free(port := secrets.choice(_BELOW_CLIENTS)):
            return port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
