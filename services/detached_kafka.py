"""A broker that stays when the command that started it is done, and the file that remembers it."""

import json
import uuid
from pathlib import Path

import platformdirs
import psutil

from services.errors import LocalKafkaError
from services.local_kafka import (
    KafkaProcess,
    launch,
    one_at_a_time,
    prepare,
    wait_until_ready,
)

DEFAULT_PORT = 9092


def start_detached(data_dir: Path, *, port: int | None = None) -> tuple[KafkaProcess, bool]:
    """A broker that outlives us, remembered for `running_kafka`, and whether it was started now.

    A user has one at most; of two that start it at once, the second waits and gets the first one's. Without `port`
    it takes the one its directory had before, else 9092, else any. Raises LocalKafkaError.
    """
    with one_at_a_time(record_path().parent):
        running = running_kafka()
        if running is not None:
            return running, False
        with one_at_a_time(data_dir):
            return _start(data_dir, port), True


def _start(data_dir: Path, port: int | None) -> KafkaProcess:
    command, bootstrap = prepare(data_dir, port, DEFAULT_PORT)
    kafka = KafkaProcess(launch(command, data_dir), bootstrap, data_dir)
    # Remembered before it is ready: whoever loses patience here can still stop it.
    _remember(kafka)
    wait_until_ready(kafka)
    return kafka


def running_kafka() -> KafkaProcess | None:
    """The broker that `start_detached` left running for this user, if it still does.

    Raises LocalKafkaError when the file that remembers it cannot be understood.
    """
    path = record_path()
    try:
        record = json.loads(path.read_text())
        process = psutil.Process(record["pid"])
        kafka = KafkaProcess(process, record["bootstrap"], Path(record["data_dir"]))
        # A recycled pid has another creation time.
        ours = process.create_time() == record["created"]
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LocalKafkaError(
            f"{path} cannot be understood ({error!r}): stop the broker it stood for and remove it"
        ) from error
    return kafka if ours and kafka.alive else None


def record_path() -> Path:
    """Where the detached broker is remembered."""
    return platformdirs.user_state_path("gemstream") / "kafka.json"


def _remember(kafka: KafkaProcess) -> None:
    record = {
        "pid": kafka.process.pid,
        "created": kafka.process.create_time(),
        "bootstrap": kafka.bootstrap,
        "data_dir": str(kafka.data_dir.resolve()),
    }
    path = record_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{uuid.uuid4().hex}")
    scratch.write_text(json.dumps(record))
    scratch.replace(path)
