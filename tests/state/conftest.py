"""Machines that share a repository of checkpoints."""

from pathlib import Path

import pytest

from tests.state.checkpointing import PARTITION, TOPIC, Machine


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
