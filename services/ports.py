"""Ports of this machine: which are free, and which to take."""

import socket
from collections.abc import Iterable


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
    any_ports = _free_ports(2)
    port = next((number for number in wanted if is_free(number)), any_ports[0])
    return port, next(number for number in reversed(any_ports) if number != port)


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
