"""Databases of both kinds, and machines that share a repository of checkpoints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from state.key_value_store import KeyValueStore, MemoryStore
from tests.state.checkpointing import PARTITION, TOPIC, Machine, open_rocks


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the checkpoints of the partition will lie."""
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository" / TOPIC / f"{PARTITION:05d}"


@pytest.fixture
def machine(tmp_path: Path, place: Path) -> Machine:
    return Machine(tmp_path / "one", str(tmp_path / "repository"))


@pytest.fixture
def other(tmp_path: Path, place: Path) -> Machine:
    """Another machine, with an empty disk."""
    return Machine(tmp_path / "two", str(tmp_path / "repository"))


@pytest.fixture(params=["memory", "rocks"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    store = MemoryStore() if request.param == "memory" else open_rocks(tmp_path / "db")
    yield store
    store.close()
