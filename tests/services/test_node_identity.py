"""A node's name stays, and a write that was cut short leaves no half of one."""

import os
from pathlib import Path

import pytest

from services.node_identity import claim, node_identity
from state.errors import StoreError, StoreLocked


def test_the_name_is_made_once(tmp_path: Path) -> None:
    name = node_identity(tmp_path / "data")
    assert name.startswith("state-node-")
    assert node_identity(tmp_path / "data") == name
    assert os.listdir(tmp_path / "data") == ["node-id"]


def test_an_empty_file_gets_a_name(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_text("\n")
    name = node_identity(tmp_path)
    assert name.startswith("state-node-")
    assert node_identity(tmp_path) == name


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        node_identity(tmp_path)
    assert not (tmp_path / "node-id").exists()


def test_a_directory_takes_one_node_at_a_time(tmp_path: Path) -> None:
    with claim(tmp_path):
        with pytest.raises(StoreLocked, match="another state node works here"):
            with claim(tmp_path):
                pass
    with claim(tmp_path):
        pass
