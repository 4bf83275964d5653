"""A broker of our own: its data survives stops and kills, and a dead one is not taken for alive."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from services.cli.kafka import app
from services.cli.output import CommandError
from services.detached_kafka import record_path, running_kafka
from services.errors import LocalKafkaError
from services.kafka_jars import jars, java
from services.local_kafka import RunningKafka, start_kafka
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


def test_a_new_start_keeps_the_cluster_and_takes_other_ports(tmp_path: Path) -> None:
    first = start_kafka(tmp_path)
    cluster = asyncio.run(ensure_topics(first.bootstrap, TopicsConfig(num_partitions=1)))
    first.stop()
    second = start_kafka(tmp_path)
    try:
        again = asyncio.run(describe_cluster(second.bootstrap))
    finally:
        second.stop()
    assert again.cluster_id == cluster.cluster_id
    assert again.partitions == cluster.partitions


def test_two_brokers_cannot_share_a_directory(kafka: RunningKafka) -> None:
    settings = (kafka.data_dir / "server.properties").read_text()
    with pytest.raises(LocalKafkaError, match="another broker is using"):
        start_kafka(kafka.data_dir)
    assert (kafka.data_dir / "server.properties").read_text() == settings


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


def remember(pid: int, created: float) -> None:
    record_path().parent.mkdir(parents=True)
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


def test_without_java_both_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LocalKafkaError, match=r"default-jre-headless.*--bootstrap"):
        java()


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalKafkaError, match="is 11"):
        java()


def test_without_maven_and_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    with pytest.raises(LocalKafkaError, match=r"apt install maven.*KAFKA_HOME.*--bootstrap"):
        jars()


def test_kafka_home_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(LocalKafkaError, match="KAFKA_HOME is"):
        jars()
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13-4.4.0.jar").touch()
    assert jars() == tmp_path / "libs"


def test_maven_that_fails_shows_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho 'no such artifact'; exit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    with pytest.raises(LocalKafkaError, match=r"(?s)no such artifact.*--bootstrap"):
        jars()
    assert list((tmp_path / "cache" / "gemstream").iterdir()) == []
