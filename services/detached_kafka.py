"""A broker that stays when the command that started it is done, and the file that remembers it."""

import json
import uuid
from pathlib import Path

import platformdirs
import psutil

from services.errors import LocalKafkaError
from services.local_kafka import JAVA_OPTIONS, KafkaProcess, launch, prepare, wait_until_ready


def start_detached(data_dir: Path, *, port: int | None = None) -> KafkaProcess:
    """Start a broker that outlives us, and remember it for `running_kafka`. Raises LocalKafkaError."""
    command, bootstrap = prepare(data_dir, port, JAVA_OPTIONS)
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
