"""Runs one role as a process: logging, signals, and what its exit code says."""

import asyncio
import logging
import resource
import signal
import sys

from model.errors import BundleError, ModelError
from services.errors import ServiceError, SettingsError
from services.log_rate import limit_request_warnings
from services.settings import Settings
from services.stopping import Stopped
from services.supervisor import EX_CONFIG
from state.errors import ConfigError, CorruptValue, StateError, StoreNotWritable, UnknownFormat
from stream.errors import OffsetUnreachable, StreamError, TopicMismatch
from stream.quiet_logs import quieten_aiokafka

log = logging.getLogger(__name__)

_NEEDS_A_PERSON = (
    SettingsError,
    ConfigError,
    CorruptValue,
    StoreNotWritable,
    UnknownFormat,
    OffsetUnreachable,
    TopicMismatch,
    BundleError,
)
"""Trying again cannot help; a supervisor must not restart the process."""


def run_role(role: str, settings: Settings) -> int:
    """Run `role` in the foreground until SIGTERM or SIGINT; returns the exit code.

    0 = stopped as told, 1 = failed, worth another try, 78 = needs a person.
    """
    _allow_open_files()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {role} %(name)s: %(message)s",
    )
    for library in ("aiokafka", "faust", "mode"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        asyncio.run(_run(role, settings))
    except Stopped:
        return 0
    except _NEEDS_A_PERSON as error:
        log.error("%s", error)  # noqa: TRY400  the message is the whole story
        return EX_CONFIG
    except (ModelError, ServiceError, StateError, StreamError) as error:
        log.error("%s", error)  # noqa: TRY400
        return 1
    return 0


def _allow_open_files() -> None:
    """Up to the hard limit: the soft one is often 1,024, and 64 databases with their files need more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(role: str, settings: Settings) -> None:
    from services.wiring.roles import ROLES

    quieten_aiokafka()
    limit_request_warnings()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await ROLES[role](settings, stop)
