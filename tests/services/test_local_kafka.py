"""A broker of our own: its data survives stops and kills, and a dead one is not taken for alive."""

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from services import detached_kafka
from services.cli.kafka import app
from services.cli.output import CommandError
from services.detached_kafka import record_path, running_kafka
from services.errors import LocalKafkaError
from services.local_kafka import RunningKafka, start_kafka
from services.ports import choose_ports, free_port
from stream.topics import TopicsConfig, describe_cluster, ensure_topics

pytestmark = pytest.mark.broker
WITHIN_S = 30.0


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of the test's own, and no broker left behind in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert record_path().is_relative_to(tmp_path)
    yield tmp_path
    left = running_kafka()
    if left is not None:
        left.stop()


def partitions(kafka: RunningKafka) -> dict[str, int]:
    return asyncio.run(describe_cluster(kafka.bootstrap)).partitions


@pytest.mark.slow
def test_data_survives_stop_and_kill(tmp_path: Path) -> None:
    kafka = start_kafka(tmp_path)
    try:
        asyncio.run(ensure_topics(kafka.bootstrap, TopicsConfig(num_partitions=2)))
        before = asyncio.run(describe_cluster(kafka.bootstrap))
        kafka.stop()
        assert not kafka.alive
        kafka.restart()
        assert asyncio.run(describe_cluster(kafka.bootstrap)) == before
        kafka.kill()
        assert not kafka.alive
        kafka.restart()
        assert kafka.alive
        assert asyncio.run(describe_cluster(kafka.bootstrap)) == before
    finally:
        kafka.stop()
    # Stopping what is gone is no error.
    kafka.stop()
    kafka.kill()


def test_a_new_start_keeps_the_cluster_and_its_port(tmp_path: Path) -> None:
    first = start_kafka(tmp_path)
    cluster = asyncio.run(ensure_topics(first.bootstrap, TopicsConfig(num_partitions=1)))
    first.stop()
    second = start_kafka(tmp_path)
    try:
        again = asyncio.run(describe_cluster(second.bootstrap))
    finally:
        second.stop()
    assert second.bootstrap == first.bootstrap
    assert again.cluster_id == cluster.cluster_id
    assert again.partitions == cluster.partitions


def test_two_brokers_cannot_share_a_directory(kafka: RunningKafka) -> None:
    settings = (kafka.data_dir / "server.properties").read_text()
    with pytest.raises(LocalKafkaError, match="another broker is using"):
        start_kafka(kafka.data_dir)
    assert (kafka.data_dir / "server.properties").read_text() == settings


START = """
import pathlib, sys
from services.errors import LocalKafkaError
from services.local_kafka import start_kafka
try:
    kafka = start_kafka(pathlib.Path(sys.argv[1]))
except LocalKafkaError as error:
    print(error, flush=True)
else:
    print("started", flush=True)
    sys.stdin.read()
    kafka.stop()
"""


def test_two_starts_at_once_in_one_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:  # type: ignore[call-overload]
        lines = sorted(process.stdout.readline() for process in (one, other))
        for process in (one, other):
            process.communicate(timeout=WITHIN_S)
    assert lines[0].startswith("another broker is using")
    assert lines[1] == "started\n"


def test_ports_in_the_order_of_preference(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        taken_port, free_port = (each.getsockname()[1] for each in (taken, free))
        free.close()
        assert choose_ports([taken_port, free_port, 1])[0] == free_port
        assert taken_port not in choose_ports([taken_port])


def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    first = start_kafka(tmp_path)
    first.stop()
    meta = tmp_path / "data" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=2"))
    with pytest.raises(LocalKafkaError, match=r"(?s)ended before it was ready.*node.id"):
        start_kafka(tmp_path)


def test_a_port_that_is_taken(kafka: RunningKafka, tmp_path: Path) -> None:
    port = int(kafka.bootstrap.rpartition(":")[2])
    with pytest.raises(LocalKafkaError, match=f"port {port} on 127.0.0.1 is taken"):
        start_kafka(tmp_path, port=port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
def test_the_broker_dies_with_its_owner(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from services.local_kafka import start_kafka\n"
        f"kafka = start_kafka(pathlib.Path({str(tmp_path)!r}))\n"
        "print(kafka.process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        broker = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        psutil.wait_procs([broker], timeout=WITHIN_S)
    assert not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE


def run_command(*arguments: str) -> dict[str, object]:
    """In a process of its own: the broker has to outlive the command."""
    program = (
        "import sys; from services.cli.kafka import app; app(sys.argv[1:], standalone_mode=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    return json.loads(done.stdout) if done.stdout else {}


def test_a_detached_broker_from_start_to_stop(own_state: Path) -> None:
    started = run_command("start", "--json", "--data-dir", str(own_state / "kafka"))
    assert run_command("start", "--json")["pid"] == started["pid"]
    status = run_command("status", "--json")
    assert status["bootstrap"] == started["bootstrap"]
    assert status["version"] == "4.4.0"
    assert status["topics"] == {}
    assert status["bytes_on_disk"] > 0  # type: ignore[operator]
    run_command("stop")
    assert running_kafka() is None
    assert not psutil.pid_exists(started["pid"])  # type: ignore[arg-type]
    run_command("stop")


def test_two_commands_at_once_share_the_broker(own_state: Path) -> None:
    arguments = ["start", "--json", "--data-dir", str(own_state / "kafka")]
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: run_command(*arguments), range(2))
    assert one["pid"] == other["pid"]


def test_the_first_detached_broker_takes_the_usual_port(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setattr(detached_kafka, "DEFAULT_PORT", port)
    kafka, is_new = detached_kafka.start_detached(own_state / "kafka")
    kafka.stop()
    assert is_new
    assert kafka.bootstrap == f"127.0.0.1:{port}"


def remember(pid: int, created: float) -> None:
    record_path().parent.mkdir(parents=True, exist_ok=True)
    record = {"pid": pid, "created": created, "bootstrap": "127.0.0.1:1", "data_dir": "/nowhere"}
    record_path().write_text(json.dumps(record))


def test_a_dead_pid_is_not_running(own_state: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    remember(dead.pid, 1.0)
    assert running_kafka() is None


def test_a_recycled_pid_is_not_ours(own_state: Path) -> None:
    us = psutil.Process()
    remember(us.pid, us.create_time() - 1)
    assert running_kafka() is None


@pytest.mark.parametrize("asked", [("--data-dir", "elsewhere"), ("--port", "2")])
def test_another_place_than_that_of_the_broker_is_refused(
    own_state: Path, asked: tuple[str, str]
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as broker:
        remember(broker.pid, psutil.Process(broker.pid).create_time())
        result = CliRunner().invoke(app, ["start", *asked])
        broker.kill()
    assert isinstance(result.exception, CommandError)
    assert "127.0.0.1:1, with its data in /nowhere" in str(result.exception)


def test_status_without_a_broker(own_state: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--json"])
    assert result.exit_code == CommandError.NOT_FOUND
    assert json.loads(result.stdout) == {"running": False}
    assert isinstance(CliRunner().invoke(app, ["status"]).exception, CommandError)


def test_a_record_that_cannot_be_read(own_state: Path) -> None:
    remember(1, 1.0)
    record_path().write_text("{")
    with pytest.raises(LocalKafkaError, match="cannot be understood"):
        running_kafka()
    record_path().unlink()


def test_processes_that_seed_alike_take_other_ports() -> None:
    taken = []
    for _ in range(2):
        random.seed(0)
        taken.append([free_port() for _ in range(5)])
    assert taken[0] != taken[1]
