"""The supervisor with tiny children: restarts, giving up, and nobody left behind."""

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from services.errors import ChildMisconfigured
from services.supervisor import EX_CONFIG, Child, Supervisor, SupervisorConfig
from state.errors import ConfigError

WITHIN_S = 20.0
QUICK = SupervisorConfig(first_backoff_s=0.05, longest_backoff_s=0.2, grace_s=10.0)
SAY_PID = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); "
FOREVER = "import signal; signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def child(name: str, code: str, *arguments: object) -> Child:
    return Child(name=name, argv=(sys.executable, "-c", code, *map(str, arguments)))


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # files and processes have no event to wait for
            await asyncio.sleep(0.01)


def backoffs(caplog: pytest.LogCaptureFixture) -> list[float]:
    return [
        record.args[1]  # type: ignore[index,misc]
        for record in caplog.records
        if "restarts in" in record.msg
    ]


async def test_a_dead_child_is_started_again_ever_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lives, steady = tmp_path / "lives", tmp_path / "steady"
    supervisor = Supervisor(
        [
            child("mayfly", SAY_PID + "sys.exit(1)", lives),
            child("steady", SAY_PID + FOREVER, steady),
        ],
        QUICK,
    )
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(pids(lives)) >= 5)
    supervisor.stop()
    await asyncio.wait_for(running, WITHIN_S)
    assert backoffs(caplog)[:4] == [0.05, 0.1, 0.2, 0.2]
    assert "mayfly ended with 1" in caplog.messages
    assert len(pids(steady)) == 1
    assert gone(pids(steady)[0])


async def test_a_healthy_life_resets_the_backoff(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = SupervisorConfig(first_backoff_s=0.05, longest_backoff_s=5.0, healthy_after_s=0.0)
    supervisor = Supervisor([child("mayfly", SAY_PID, tmp_path / "lives")], config)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(pids(tmp_path / "lives")) >= 3)
    supervisor.stop()
    await asyncio.wait_for(running, WITHIN_S)
    assert set(backoffs(caplog)) == {0.05}


async def test_a_wrong_configuration_stops_everything(tmp_path: Path) -> None:
    steady = tmp_path / "steady"
    wait_for_it = f"import os\nwhile not os.path.exists({str(steady)!r}): pass\n"
    supervisor = Supervisor(
        [
            child("steady", SAY_PID + FOREVER, steady),
            child("wrong", wait_for_it + f"raise SystemExit({EX_CONFIG})"),
        ],
        QUICK,
    )
    with pytest.raises(ChildMisconfigured, match="wrong ended with 78"):
        await asyncio.wait_for(supervisor.run(), WITHIN_S)
    await until(lambda: all(map(gone, pids(steady))))


async def test_a_stubborn_child_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = SupervisorConfig(grace_s=0.2)
    supervisor = Supervisor(
        [child("stubborn", STUBBORN + SAY_PID + FOREVER, tmp_path / "pid")], config
    )
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(pids(tmp_path / "pid")) == 1)
    supervisor.stop()
    await asyncio.wait_for(running, WITHIN_S)
    assert gone(pids(tmp_path / "pid")[0])
    assert "stubborn ended with -9" in caplog.messages


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)]
)
async def test_nobody_outlives_the_supervisor(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux ties a child's life to its parent's")
    path = tmp_path / "pid"
    program = (
        "import asyncio, sys; from services.supervisor import Child, Supervisor\n"
        f"child = Child(name='c', argv=(sys.executable, '-c', {SAY_PID + FOREVER!r}, {str(path)!r}))\n"
        "asyncio.run(Supervisor([child]).run())"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as supervisor:
        await until(lambda: len(pids(path)) == 1)
        supervisor.send_signal(number)
        assert supervisor.wait(WITHIN_S) == exit_code
    await until(lambda: gone(pids(path)[0]))


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="no-such-program"):
        Child(name="x", argv=("no-such-program",))
    twice = child("x", FOREVER)
    with pytest.raises(ConfigError, match="own name"):
        Supervisor([twice, twice])
    with pytest.raises(ConfigError, match="longest_backoff_s"):
        SupervisorConfig(first_backoff_s=2, longest_backoff_s=1)
    with pytest.raises(ConfigError, match="grace_s"):
        SupervisorConfig(grace_s=-1)
