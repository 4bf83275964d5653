"""What a local Kafka needs: Java and the jars, and what is said when they are not there."""

from pathlib import Path

import pytest

from services.errors import LocalKafkaError
from services.kafka_jars import jars, java


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
