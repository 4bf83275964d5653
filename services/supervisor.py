"""Keep several child processes running: restart with backoff, stop together, give up on bad configuration."""

import asyncio
import logging
import shutil
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass

from services.errors import ChildMisconfigured
from state.errors import ConfigError

log = logging.getLogger(__name__)

EX_CONFIG = 78
"""What a child exits with when its configuration is wrong and another try would not help (sysexits.h)."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process to keep running. Its output goes where ours goes."""

    name: str
    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ConfigError when there is nothing to run."""
        if not self.name or not self.argv or shutil.which(self.argv[0]) is None:
            raise ConfigError(f"child {self.name!r}: {self.argv} is not a program that can be run")


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig:
    """How soon a child is started again, and how long it may take to stop."""

    first_backoff_s: float = 0.5
    longest_backoff_s: float = 30.0
    healthy_after_s: float = 60.0
    grace_s: float = 15.0

    def __post_init__(self) -> None:
        """Raise ConfigError for times that make no sense."""
        if not 0 < self.first_backoff_s <= self.longest_backoff_s:
            raise ConfigError(
                f"first_backoff_s is {self.first_backoff_s}, longest_backoff_s is "
                f"{self.longest_backoff_s}: the first must be above 0 and not above the longest"
            )
        if self.healthy_after_s < 0 or self.grace_s < 0:
            raise ConfigError(
                f"healthy_after_s is {self.healthy_after_s}, grace_s is {self.grace_s}: not below 0"
            )


class Supervisor:
    """Runs the children until `stop`, SIGTERM, SIGINT, or a child that is misconfigured."""

    def __init__(self, children: Sequence[Child], config: SupervisorConfig | None = None) -> None:
        """Start nothing yet. Raises ConfigError unless names differ."""
        names = [child.name for child in children]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"children are {names}: give at least one, each with its own name")
        self._children = tuple(children)
        self._config = config or SupervisorConfig()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ask `run` to stop the children and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Run on the main thread; every child is gone when it returns or raises.

        Raises ChildMisconfigured.
        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        tasks = [asyncio.create_task(self._keep_running(child)) for child in self._children]
        tasks.append(asyncio.create_task(self._until_stopping()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for number in signals:
                loop.remove_signal_handler(number)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _until_stopping(self) -> None:
        await self._stopping.wait()

    async def _keep_running(self, child: Child) -> None:
        config = self._config
        backoff_s = config.first_backoff_s
        while True:
            started_at = time.monotonic()
            code = await self._run_once(child)
            if code == EX_CONFIG:
                raise ChildMisconfigured(
                    f"{child.name} ended with {EX_CONFIG}, trying again cannot help: see its "
                    "last lines above; everything has been stopped"
                )
            if time.monotonic() - started_at >= config.healthy_after_s:
                backoff_s = config.first_backoff_s
            log.warning("%s restarts in %.1f s", child.name, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, config.longest_backoff_s)

    async def _run_once(self, child: Child) -> int:
        # A session of its own: Ctrl-C reaches the child through us alone, and once.
        process = await asyncio.create_subprocess_exec(
            *die_with_parent(child.argv), start_new_session=True
        )
        log.info("%s started, pid %d", child.name, process.pid)
        try:
            return await process.wait()
        finally:
            await self._end(process)
            log.info("%s ended with %s", child.name, process.returncode)

    async def _end(self, process: Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._config.grace_s)
        except TimeoutError:
            process.kill()
            await process.wait()


def die_with_parent(argv: Sequence[str]) -> list[str]:
    """The same command, killed by the kernel when the thread that started it ends (Linux alone).

    `setpriv` sets this up and then becomes the command: unlike a `preexec_fn`, it is safe beside
    the threads of gRPC and PyTorch.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return [setpriv, "--pdeathsig", "KILL", "--", *argv] if setpriv else list(argv)
