"""A state node's name in its consumer group, kept beside its store."""

import uuid
from pathlib import Path

from state.errors import StoreError

_FILE = "node-id"


def node_identity(data_dir: Path) -> str:
    """The name of the node whose data this is; made once.

    With it Kafka gives a node that was killed its partitions back at once, instead of after its session timeout.
    Raises StoreError when the directory cannot be written.
    """
    path = data_dir / _FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(f"state-node-{uuid.uuid4().hex[:12]}")
        return path.read_text().strip()
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}; the data directory must be writable"
        ) from error
