"""All roles as child processes of one supervisor: checks before the start, and the word when they are ready."""

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.channels import Target, open_aio_channel
from services.credentials import client_credentials, server_credentials
from services.errors import CannotListen, SettingsError
from services.settings import Settings
from services.supervisor import Child, Supervisor

_CHECK_EVERY_S = 0.2


def check_before_start(settings: Settings, roles: Sequence[str]) -> None:
    """Find out early what would make a role fail. Raises SettingsError, CannotListen."""
    needs_bundle = {"compression-worker", "inference-node"} & set(roles)
    if needs_bundle and not (settings.bundle / "bundle.json").is_file():
        raise SettingsError(
            f"no bundle at {settings.bundle}: train one with `gemstream train`, name another with --bundle, "
            "or run without a network: `gemstream up --role state-node`"
        )
    if _addresses(settings, roles):
        server_credentials(settings.tls, settings.admin)
    for address in [*_addresses(settings, roles), *_metrics_addresses(settings, roles)]:
        _check_free(address)


async def run_roles(
    settings: Settings, flags: Sequence[str], roles: Sequence[str], tell: Callable[[str], None]
) -> None:
    """Run `roles` until a signal. Raises ChildMisconfigured."""
    children = [
        Child(name=role, argv=(sys.executable, "-m", "services.cli", "run", role, *flags))
        for role in roles
    ]
    credentials = client_credentials(settings.tls)
    targets = [Target(address, credentials) for address in _addresses(settings, roles)]
    announce = asyncio.create_task(_tell_when_ready(targets, tell))
    try:
        await Supervisor(children).run()
    finally:
        announce.cancel()


async def wait_until_serving(target: Target) -> None:
    """Return when a server says that it is serving."""
    async with open_aio_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass  # not up yet
            await asyncio.sleep(_CHECK_EVERY_S)


async def _tell_when_ready(targets: Sequence[Target], tell: Callable[[str], None]) -> None:
    await asyncio.gather(*map(wait_until_serving, targets))
    tell(f"ready: {', '.join(target.address for target in targets)}; Ctrl-C stops everything")


def _addresses(settings: Settings, roles: Sequence[str]) -> list[str]:
    listening = {
        "state-node": settings.state_node.listen,
        "inference-node": settings.inference_node.listen,
    }
    return [listening[role] for role in roles if role in listening]


def _metrics_addresses(settings: Settings, roles: Sequence[str]) -> list[str]:
    listening = {
        "state-node": settings.state_node.metrics_listen,
        "compression-worker": settings.compression_worker.metrics_listen,
        "inference-node": settings.inference_node.metrics_listen,
        "trending": settings.trending.metrics_listen,
    }
    return [address for role in roles if (address := listening[role])]


def _check_free(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, ValueError) as error:
            raise CannotListen(
                f"cannot listen on {address}: {error}; stop what listens there, or configure another address"
            ) from error
