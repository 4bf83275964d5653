"""What several roles are made of: addresses, servers, threads, and the check that bundle and state fit."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from services.credentials import TOKEN_VARIABLE, server_credentials
from services.errors import SettingsError
from services.grpc_server import PROTECTED_SERVICES, GrpcServer, is_loopback
from services.settings import Settings
from services.tracing import start_tracing

if TYPE_CHECKING:  # the state node does without PyTorch
    from model.bundle import Bundle

log = logging.getLogger(__name__)


def bootstrap_of(settings: Settings) -> str:
    """Kafka's address. Raises SettingsError when none is given."""
    if settings.bootstrap is None:
        raise SettingsError(
            "no Kafka address: give --bootstrap or GEMSTREAM_KAFKA, or set `bootstrap` in the configuration"
        )
    return settings.bootstrap


def make_server(settings: Settings, role: str, listen: str, names: Sequence[str]) -> GrpcServer:
    """A role's gRPC server, with the credentials and the tracing of the settings."""
    credentials = server_credentials(settings.tls, settings.admin)
    if credentials.token is None and PROTECTED_SERVICES & set(names) and not is_loopback(listen):
        log.warning(
            "whoever reaches %s may delete users: set `token_file` in [admin], or %s",
            listen,
            TOKEN_VARIABLE,
        )
    return GrpcServer(listen, names, credentials, start_tracing(settings.tracing, role))


def limit_threads(num_threads: int) -> None:
    """Each role keeps to its share of the cores."""
    import torch

    torch.set_num_threads(num_threads)


def check_history(bundle: "Bundle", settings: Settings) -> None:
    """Segments must be cut in serving as they were in training. Raises SettingsError."""
    served = settings.history
    for name in ("recent_len", "mid_term_len", "chunk_len"):
        if getattr(bundle.history, name) != getattr(served, name):
            raise SettingsError(
                f"the bundle {bundle.path} was trained with history.{name} = {getattr(bundle.history, name)}, the "
                f"configuration says {getattr(served, name)}; set it to the bundle's, or train another bundle"
            )


class FaustApp(Protocol):
    """A Faust app of ours."""

    async def stop(self) -> None: ...
    async def wait(self) -> None: ...


async def until_stopped_or_crashed(app: FaustApp, stop: asyncio.Event) -> None:
    """Raises WorkerCrashed."""
    crashed, stopping = asyncio.create_task(app.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait([crashed, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await app.stop()
    await crashed
