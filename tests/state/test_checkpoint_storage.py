"""Directory and S3 alike: checkpoints come back, leave, and no remaining one ever lacks a file."""

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from state.checkpoint_manifest import Manifest, StoredFile
from state.checkpoint_repository import CheckpointRepository
from state.errors import RepositoryUnavailable
from state.object_storage import ObjectStorage
from tests.state.checkpointing import PARTITION, Machine, add, always_owned, contents
from tests.state.s3_server import Objects, s3_server

OUTSIDE = "GEMSTREAM_TEST_S3"


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, Objects | None]]:
    """host:port of a service with the bucket `checkpoints`, and its contents where it is the stand-in."""
    if outside := os.environ.get(OUTSIDE):
        yield outside, None
        return
    with s3_server("checkpoints") as (address, objects):
        yield address, objects


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not so secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def s3_uri(address: str, bucket: str = "checkpoints") -> str:
    options = f"endpoint_override={address}&scheme=http&region=us-east-1"
    return f"s3://{bucket}/{uuid.uuid4().hex}?{options}"


@pytest.fixture(params=["directory", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        (tmp_path / "repository").mkdir()
        return (tmp_path / "repository").as_uri()
    return s3_uri(request.getfixturevalue("s3")[0])


def test_checkpoints_come_back_and_leave(uri: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one", uri, keep=2)
    store = machine.open()
    for _ in range(3):
        add(store, 300)
        taken = machine.take(store)
    assert 0 < taken.uploaded_bytes < taken.manifest.num_bytes
    assert machine.offsets() == [900, 600]
    assert machine.repository.partitions() == [PARTITION]
    assert Machine(tmp_path / "two", uri).restored() == contents(store)
    machine.take(store, prune=True)
    assert machine.offsets() == [900]
    assert machine.repository.faults(taken.manifest) == []
    assert Machine(tmp_path / "three", uri).restored() == contents(store)
    store.close()


def test_a_bucket_that_is_not_there_is_named(s3: tuple[str, Objects | None]) -> None:
    storage = ObjectStorage(s3_uri(s3[0], "nowhere"))
    with pytest.raises(RepositoryUnavailable, match="there is no nowhere"):
        storage.check_there()


def test_a_refused_upload_is_no_checkpoint_and_tells_no_secret(
    s3: tuple[str, Objects | None], tmp_path: Path
) -> None:
    address, objects = s3
    if objects is None:
        pytest.skip("the stand-in alone refuses on demand")
    machine = Machine(tmp_path, s3_uri(address))
    store = machine.open()
    add(store, 100)
    objects.refused_puts = 1
    with pytest.raises(RepositoryUnavailable, match="ACCESS_DENIED") as refused:
        machine.take(store)
    assert "not so secret" not in str(refused.value)
    assert machine.offsets() == []
    machine.take(store)
    assert machine.offsets() == [100]
    store.close()


CONTENTS = st.frozensets(st.integers(0, 9), min_size=1, max_size=6)
STEP = st.one_of(
    st.tuples(st.just("take"), CONTENTS),
    st.tuples(st.just("killed"), CONTENTS),
    st.tuples(st.just("prune"), st.integers(1, 4)),
    st.tuples(st.just("remove"), st.integers(0, 3)),
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, max_size=12))
def test_no_remaining_checkpoint_ever_lacks_a_file(
    tmp_path: Path, steps: list[tuple[str, frozenset[int] | int]]
) -> None:
    root = tmp_path / uuid.uuid4().hex
    (root / "repository").mkdir(parents=True)
    repository = CheckpointRepository(ObjectStorage(str(root / "repository")), "topic")
    for number, (step, given_value) in enumerate(steps):
        if isinstance(given_value, frozenset):
            take(repository, root / str(number), number, given_value, killed=step == "killed")
        elif step == "prune":
            repository.prune(0, given_value, max_age_s=1_000)
        else:
            repository.remove(0, repository.names(0)[given_value : given_value + 1])
        for name in repository.names(0):
            manifest = repository.read(0, name)
            copy = root / f"copy-{number}-{name}"
            repository.download(manifest, copy, always_owned)
            assert {int(path.read_text()) for path in copy.iterdir()} == {
                int(file.name) for file in manifest.files
            }


class Killed(Exception):
    pass


def take(
    repository: CheckpointRepository,
    directory: Path,
    number: int,
    values: frozenset[int],
    *,
    killed: bool,
) -> None:
    directory.mkdir()
    files = []
    for value in sorted(values):
        text = str(value).encode()
        (directory / str(value)).write_bytes(text)
        files.append(StoredFile(str(value), len(text), sha256(text).hexdigest()))
    manifest = Manifest(
        topic="topic",
        partition=0,
        next_offset=number,
        sequence=number,
        created_at_ms=10**15,
        history={},
        files=tuple(files),
    )
    left = len(values) // 2

    def die_half_way() -> None:
        nonlocal left
        left -= 1
        if killed and left < 0:
            raise Killed

    with suppress(Killed):
        repository.publish(manifest, directory, die_half_way)
