"""Apache Kafka on this machine, without Docker: format, start, wait until ready, stop."""

import asyncio
import base64
import fcntl
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import FileLock

from services.errors import LocalKafkaError
from services.kafka_jars import jars, java
from services.ports import choose_ports, is_free
from services.supervisor import die_with_parent
from stream.errors import StreamError
from stream.topics import describe_cluster

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0
START_ALONE_WITHIN_S = 600.0  # the other start may be fetching Kafka
POLL_S = 0.1
LOG_LINES_SHOWN = 15

# TieredStopAtLevel=1 is up sooner, and slower at full load.
JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={log_dir}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.dedupe.buffer.size=16777216
"""

LOG4J_PROPERTIES = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %m (%c{1})%n%rThrowable{8}
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class KafkaProcess:
    """One broker process and its data directory. psutil tells it from a later one with its pid."""

    def __init__(self, process: psutil.Process, bootstrap: str, data_dir: Path) -> None:
        """Take charge of a broker that has been started already."""
        self.process = process
        self.bootstrap = bootstrap
        self.data_dir = data_dir

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        try:
            return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after 15 s; returns once the process is gone."""
        try:
            self.process.terminate()
            self.process.wait(STOP_WITHIN_S)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as in a crash; returns once the process is gone."""
        try:
            self.process.kill()
            self.process.wait(STOP_WITHIN_S)
        except psutil.NoSuchProcess:
            return


class RunningKafka(KafkaProcess):
    """A broker that is our child and dies with us."""

    def __init__(self, command: list[str], bootstrap: str, data_dir: Path) -> None:
        """Start it and wait until it is ready. Raises LocalKafkaError."""
        self._command = die_with_parent(command)
        super().__init__(launch(self._command, data_dir), bootstrap, data_dir)
        wait_until_ready(self)

    def restart(self) -> None:
        """Stop it if it runs, start it again on the same ports and data. Raises LocalKafkaError."""
        self.stop()
        self.process = launch(self._command, self.data_dir)
        wait_until_ready(self)


def start_kafka(data_dir: Path, *, port: int | None = None) -> RunningKafka:
    """Start a broker that ends with this process, even when that is killed. Raises LocalKafkaError.

    Without `port` it takes the one its directory had before, if that is free, else any. Call it from a thread that
    lives as long as the broker should: on Linux the kernel ties the broker to the thread that started it.
    """
    with one_at_a_time(data_dir):
        command, bootstrap = prepare(data_dir, port)
        return RunningKafka(command, bootstrap, data_dir)


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Wait until nobody else starts a broker in `directory`, and keep others out. Raises LocalKafkaError.

    Hold it from before `prepare` until the broker is ready: from then on its own lock keeps others away.
    """
    lock = FileLock(directory / "start.lock", timeout=START_ALONE_WITHIN_S)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise LocalKafkaError(
            f"{directory} cannot be used ({error.strerror or error}): another start may hold {lock.lock_file}; wait "
            "for it, or choose another data directory that you may write to"
        ) from error
    try:
        yield
    finally:
        lock.release()


def prepare(data_dir: Path, port: int | None, default_port: int = 0) -> tuple[list[str], str]:
    """The command that starts a broker and its address; the directory is formatted when it is new.

    Without `port` it is the directory's last one, `default_port`, or any: the first that is free. Raises
    LocalKafkaError.
    """
    classpath = f"{jars()}/*"
    base = [java(), f"-Dlog4j2.configurationFile={data_dir.resolve() / 'log4j2.properties'}"]
    if port is not None and not is_free(port):
        raise LocalKafkaError(f"port {port} on 127.0.0.1 is taken: choose another, or leave it out")
    log_dir = data_dir.resolve() / "data"
    _check_unused(log_dir)
    properties = data_dir / "server.properties"
    wanted = (port, _last_port(properties), default_port)
    port, controller_port = choose_ports(number for number in wanted if number)
    (data_dir / "log4j2.properties").write_text(LOG4J_PROPERTIES)
    properties.write_text(
        SERVER_PROPERTIES.format(port=port, controller_port=controller_port, log_dir=log_dir)
    )
    where = [str(properties.resolve())]
    if not (log_dir / "meta.properties").exists():
        _format([*base, "-cp", classpath, "kafka.tools.StorageTool", "format"], where)
    return [*base, *JAVA_OPTIONS, "-cp", classpath, "kafka.Kafka", *where], f"127.0.0.1:{port}"


def _last_port(properties: Path) -> int | None:
    """The port of the directory's last broker."""
    text = properties.read_text() if properties.exists() else ""
    found = re.search(r"^advertised\.listeners=.*:(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _check_unused(log_dir: Path) -> None:
    """Kafka checks this too, but only once a second broker has touched the metadata log."""
    lock = log_dir / ".lock"
    if not lock.exists():
        return
    with lock.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LocalKafkaError(
                f"another broker is using {log_dir}: stop it, or choose another data directory"
            ) from error


def _format(tool: list[str], properties: list[str]) -> None:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # After "=", because an id may begin with a dash.
    command = [*tool, f"--cluster-id={cluster_id}", "--standalone", "-c", *properties]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise LocalKafkaError(f"Kafka could not format its data directory: {done.stderr.strip()}")


def launch(command: list[str], data_dir: Path) -> psutil.Process:
    """Start it in a session of its own, so that Ctrl-C reaches the broker only through us."""
    with _log_path(data_dir).open("ab") as log:
        return psutil.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _log_path(data_dir: Path) -> Path:
    return data_dir / "broker.log"


def wait_until_ready(kafka: KafkaProcess) -> None:
    """Wait until our process, and no other on its port, answers. Raises LocalKafkaError."""
    give_up_at = time.monotonic() + READY_WITHIN_S
    while kafka.alive and time.monotonic() < give_up_at:
        if _answers(kafka):
            return
        time.sleep(POLL_S)
    reason = (
        f"is not ready after {READY_WITHIN_S:.0f} s" if kafka.alive else "ended before it was ready"
    )
    kafka.stop()
    log = _log_path(kafka.data_dir)
    last = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
    raise LocalKafkaError(f"Kafka {reason}; the end of {log}:\n{last}")


def _answers(kafka: KafkaProcess) -> bool:
    host, port = kafka.bootstrap.split(":")
    meta = (kafka.data_dir / "data" / "meta.properties").read_text()
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            pass
        # A thread of its own: the caller may be inside a running event loop.
        with ThreadPoolExecutor(1) as thread:
            cluster = thread.submit(asyncio.run, describe_cluster(kafka.bootstrap)).result()
    except (OSError, StreamError):
        return False
    return kafka.bootstrap in cluster.nodes and f"cluster.id={cluster.cluster_id}" in meta
