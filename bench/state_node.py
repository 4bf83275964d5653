"""A real state node process, started as its operator would start it."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from services.channels import Target
from services.deployment import wait_until_serving
from services.ports import choose_ports
from services.supervisor import die_with_parent
from stream.topics import TopicsConfig

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 60.0


class StateNodeProcess:
    """`gemstream run state-node` on a directory. Use as a context manager."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        topics: TopicsConfig,
        group: str,
        cache_mib: int | None = None,
    ) -> None:
        """Start it. A long session timeout lets a bench stop it for a while.

        `cache_mib`: the size of RocksDB's cache, and of its memtables; theirs when not given.
        """
        directory.mkdir(parents=True)
        port, _ = choose_ports([])
        self.address = f"127.0.0.1:{port}"
        self._log = directory / "state-node.log"
        config = directory / "gemstream.toml"
        config.write_text(
            f'bootstrap = "{bootstrap}"\ndata_dir = "data"\n'
            f'[topics]\ninteractions = "{topics.interactions}"\ndead_letters = "{topics.dead_letters}"\n'
            f'compression_jobs = "{topics.compression_jobs}"\nnum_partitions = {topics.num_partitions}\n'
            f'[consumer]\ngroup = "{group}"\nsession_timeout_ms = 120000\n'
            f'[state_node]\nlisten = "{self.address}"\nmetrics_listen = "127.0.0.1:0"\n'
            + _rocks(cache_mib)
        )
        command = [sys.executable, "-m", "services.cli", "run", "state-node"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                die_with_parent([*command, "--config", str(config)]), stdout=log, stderr=log
            )
        self.watched = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        """Wait until it serves. Raises SystemExit with its log when it does not."""
        try:
            asyncio.run(asyncio.wait_for(wait_until_serving(Target(self.address)), READY_WITHIN_S))
        except TimeoutError as error:
            self.stop()
            raise SystemExit(f"the state node is not ready:\n{self._log.read_text()}") from error
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _rocks(cache_mib: int | None) -> str:
    if cache_mib is None:
        return ""
    num_bytes = cache_mib << 20
    return f"[rocks]\nblock_cache_bytes = {num_bytes}\nmemtable_bytes = {num_bytes}\n"
