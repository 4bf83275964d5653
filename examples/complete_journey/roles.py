"""A broker and all roles for the length of a demo, on free ports and in a directory that goes away."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from services.channels import Target
from services.deployment import wait_until_serving
from services.local_kafka import start_kafka
from services.supervisor import die_with_parent

READY_WITHIN_S = 90.0
STOP_WITHIN_S = 30.0


@dataclass(frozen=True)
class Deployment:
    """Where everything answers."""

    config: Path
    bootstrap: str
    state: str
    recommender: str


@contextlib.contextmanager
def deployment(settings: str, bundle: Path, console: Console) -> Iterator[Deployment]:
    """Kafka and `gemstream up` with `settings` (TOML). Everything is gone afterwards."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemstream-demo-")))
        with console.status("starting Kafka"):
            kafka = start_kafka(directory / "kafka")
        stack.callback(kafka.stop)
        state, recommender = _free_address(), _free_address()
        config = directory / "gemstream.toml"
        config.write_text(
            f'data_dir = "data"\nbundle = "{bundle.resolve()}"\n{settings}\n'
            f'[state_node]\nlisten = "{state}"\nmetrics_listen = "127.0.0.1:0"\n'
            f'[inference_node]\nlisten = "{recommender}"\n'
            'metrics_listen = "127.0.0.1:0"\n[compression_worker]\nmetrics_listen = "127.0.0.1:0"\n'
            '[trending]\nmetrics_listen = "127.0.0.1:0"\n'
        )
        stack.enter_context(_roles(config, kafka.bootstrap, directory / "roles.log"))
        with console.status("starting the roles"):
            asyncio.run(_wait_until_ready([state, recommender]))
        console.print(f"Kafka at {kafka.bootstrap}, state at {state}, recommender at {recommender}")
        yield Deployment(config, kafka.bootstrap, state, recommender)


@contextlib.contextmanager
def _roles(config: Path, bootstrap: str, log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "services.cli", "up"]
    command += ["--config", str(config), "--bootstrap", bootstrap]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  our own command
            die_with_parent(command), stdout=output, stderr=output
        )
    try:
        yield
    except TimeoutError as error:
        raise RuntimeError(f"the roles did not start; their log:\n{log.read_text()}") from error
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()


async def _wait_until_ready(addresses: list[str]) -> None:
    async with asyncio.timeout(READY_WITHIN_S):
        await asyncio.gather(*(wait_until_serving(Target(address)) for address in addresses))


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
