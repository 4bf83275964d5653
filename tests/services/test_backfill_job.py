"""The tasks of a backfill, one after the other in this process: `gemstream store backfill` without Ray."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from rich.progress import Progress

from model.bundle import load_bundle
from model.compression import Compressor
from model.training.train import train
from services.backfill_job import (
    BackfillPlan,
    Made,
    make_histories,
    make_summaries,
    plan_histories,
    plan_summaries,
)
from services.backfill_ray import run_plan
from services.backfill_shards import Sharding, compress_users, split_parts
from services.errors import NotFound, SettingsError
from services.settings import Settings, load_settings
from services.wiring.stores import backfill_repository, checkpoint_restorer, database_opener
from state import keys
from state.arrivals import Arrivals, Deletion, Position
from state.backfill_intake import BackfillIntake
from state.checkpoints import CheckpointWriter
from state.errors import InvalidInteraction, RepositoryUnavailable
from state.event_log import EventLog, LogPart, event_log_parts, read_event_log
from state.interaction import empty_rows
from state.key_value_store import Family, MemoryStore
from state.store_check import check_store
from state.store_directory import StoreDirectory
from state.user_store import UserStore
from stream.topics import partition_of
from tests.model.worlds import SMALL, make_event_log
from tests.services.calls import call
from tests.state.builders import stored_histories

NUM_PARTITIONS = 3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "bundle"
    train(make_event_log(), None, replace(SMALL, max_steps=4), path, Progress(disable=True))
    return path


@pytest.fixture
def config(tmp_path: Path, bundle: Path) -> Path:
    path = tmp_path / "gemstream.toml"
    path.write_text(
        f'bundle = "{bundle}"\n[topics]\nnum_partitions = {NUM_PARTITIONS}\n'
        "[history]\nrecent_len = 8\nmid_term_len = 16\nchunk_len = 4\nmax_history = 1000\n"
        '[backfills]\nuri = "place"\n[checkpoints]\nuri = "place"\n'
    )
    (tmp_path / "place").mkdir()
    return path


@pytest.fixture
def ours(config: Path) -> Settings:
    return load_settings(config, {})


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    """Two files with ids, which overlap, and one without."""
    log, directory = make_event_log(), tmp_path / "histories"
    directory.mkdir()
    write_log(directory / "a.parquet", log, range(600))
    write_log(directory / "b.parquet", log, range(500, 1_000))
    write_log(directory / "c.parquet", log, range(1_000, len(log.rows)), with_ids=False)
    return directory


def write_log(path: Path, log: EventLog, chosen: Sequence[int], *, with_ids: bool = True) -> None:
    columns = {"user_id": [log.user_ids[log.user_index[row]] for row in chosen]}
    if with_ids:
        columns["event_id"] = [log.event_ids[row] for row in chosen]
    numbers = ("item_id", "event_time_ms", "author_id", "tag")
    table = pa.table({**columns, **{name: log.rows[name][list(chosen)] for name in numbers}})
    pyarrow.parquet.write_table(table, path)


def make(plan: BackfillPlan) -> Made:
    """As services/backfill_ray.py, one task after the other."""
    made = Made()
    split = [split_parts(parts, plan.sharding, plan.wanted_shards()) for parts in plan.reading]
    for rank, partition in enumerate(plan.partitions):
        if plan.content == "summaries":
            made.add(make_summaries(plan, partition))
            continue
        shards = range(rank * plan.num_buckets, (rank + 1) * plan.num_buckets)
        made.add(make_histories(plan, partition, ([each[n] for each in split] for n in shards)))
    return made


def opened(settings: Settings, path: Path, partition: int) -> UserStore:
    database = database_opener(settings)(StoreDirectory(path).path(partition))
    return UserStore(database, settings.history, partition)


def taken(settings: Settings, path: Path, store: UserStore) -> list[str]:
    intake = BackfillIntake(
        backfill_repository(settings),
        StoreDirectory(path),
        settings.history,
        NUM_PARTITIONS,
        database_opener(settings),
    )
    return [each.backfill for each in intake.take_new(store)]


def ingested(settings: Settings, files: Sequence[Path], partition: int) -> UserStore:
    """What a state node would hold, had it read one log of all files in the order of time."""
    logs = [read_event_log(path) for path in files]
    rows = np.concatenate([log.rows for log in logs])
    users = [log.user_ids[user] for log in logs for user in log.user_index.tolist()]
    order = np.argsort(rows["event_time_ms"], kind="stable")
    order = order[[partition_of(users[row], NUM_PARTITIONS) == partition for row in order]]
    names = [users[row].encode() for row in order]
    store = UserStore(MemoryStore(), settings.history, partition)
    position = Position(len(order), 0)
    store.apply(Arrivals(partition, position, names, np.arange(len(order)), rows[order]))
    return store


@pytest.mark.parametrize("num_buckets", [1, 3])
def test_stores_are_what_ingest_and_workers_would_have_made(
    ours: Settings, histories: Path, bundle: Path, tmp_path: Path, num_buckets: int
) -> None:
    compressor = Compressor(load_bundle(bundle))
    plan = plan_histories(ours, histories, bundle_version=compressor.bundle_version)
    assert plan.num_buckets == 1
    made = make(replace(plan, num_buckets=num_buckets))
    assert (made.users, made.interactions, made.duplicates) == (24, 1_536, 100)
    assert made.summaries == 24
    for partition in range(NUM_PARTITIONS):
        store = opened(ours, tmp_path / "state", partition)
        assert taken(ours, tmp_path / "state", store) == [plan.name]
        expected = ingested(ours, sorted(histories.iterdir()), partition)
        pairs = dict(store.database.scan(Family.USERS, *keys.all_users()))
        without = {key: each for key, each in pairs.items() if key in expected_keys(expected)}
        assert without == dict(expected.database.scan(Family.USERS, *keys.all_users()))
        owed = [mark.user_id for mark in expected.dirty_marks()]
        compress_users(expected, compressor, owed)
        for user in owed:
            ours_, theirs = (
                each.read_user(user, compressor.bundle_version) for each in (store, expected)
            )
            assert ours_ is not None
            assert theirs is not None
            assert ours_.summary is not None
            assert theirs.summary is not None
            assert ours_.summary.accumulators == theirs.summary.accumulators
            assert ours_.summary.boundary == ours_.meta.lifecycle_boundary
        assert store.dirty_marks() == []
        assert check_store(store.database, ours.history, partition).damage == []
        store.close()


def expected_keys(store: UserStore) -> set[bytes]:
    return {key for key, _ in store.database.scan(Family.USERS, *keys.all_users())}


def test_the_same_again_makes_what_is_missing(
    ours: Settings, histories: Path, tmp_path: Path
) -> None:
    plan = plan_histories(ours, histories, bundle_version=None)
    assert plan.partitions == (0, 1, 2)
    make(replace(plan, partitions=(1,)))
    again = plan_histories(ours, histories, bundle_version=None)
    assert (again.name, again.partitions, again.num_there) == (plan.name, (0, 2), 1)
    assert make(again).users < 24
    done = plan_histories(ours, histories, bundle_version=None)
    assert done.partitions == ()
    assert run_plan(done, None, None, lambda *_: None) == Made()
    assert plan_histories(ours, histories, bundle_version="v2").name != plan.name
    (histories / "a.parquet").touch()
    assert plan_histories(ours, histories, bundle_version=None).name != plan.name


def checkpointed(settings: Settings, histories: Path, directory: Path) -> list[UserStore]:
    """A node's stores with all histories and no summaries, and a checkpoint of each."""
    make(plan_histories(settings, histories, bundle_version=None))
    state = directory / "state"
    stores = [opened(settings, state, each) for each in range(NUM_PARTITIONS)]
    repository = checkpoint_restorer(settings).repository
    writer = CheckpointWriter(
        repository, StoreDirectory(state), settings.history, settings.checkpoints
    )
    for store in stores:
        taken(settings, state, store)
        nothing = Arrivals(store.partition, Position(1, 0), [], np.arange(0), empty_rows())
        store.apply(nothing)
        writer.take(store, lambda: None)
    return stores


def test_summaries_of_a_checkpoint_reach_users_that_are_still_the_same(
    ours: Settings, histories: Path, bundle: Path, tmp_path: Path
) -> None:
    stores = checkpointed(ours, histories, tmp_path)
    owed = [mark.user_id for store in stores for mark in store.dirty_marks()]
    assert len(owed) == 24
    deleted = stores[0].dirty_marks()[0].user_id
    deletion = Deletion(deleted, 1, 4_000_000_000_000)
    stores[0].apply(Arrivals(0, Position(2, 0), [], np.arange(0), empty_rows(), [deletion]))

    version = Compressor(load_bundle(bundle)).bundle_version
    plan = plan_summaries(ours, bundle_version=version, again=False)
    made = make(plan)
    assert (made.users, made.summaries) == (24, 24)
    assert plan_summaries(ours, bundle_version=version, again=False).partitions == ()
    assert len(plan_summaries(ours, bundle_version=version, again=True).partitions) == 3
    before = [stored_histories(store.database) for store in stores]
    for store in stores:
        assert taken(ours, tmp_path / "state", store) == [plan.name]
        assert taken(ours, tmp_path / "state", store) == []
    assert [stored_histories(store.database) for store in stores] == before
    for user in owed:
        store = stores[partition_of(user, NUM_PARTITIONS)]
        stored = store.read_user(user, version)
        if user == deleted:
            assert stored is None
            continue
        assert stored is not None
        assert stored.summary is not None
        assert stored.summary.boundary == stored.meta.lifecycle_boundary
    for store in stores:
        store.close()


def test_a_file_with_ids_is_read_in_parts(histories: Path, tmp_path: Path) -> None:
    sharding, shards = Sharding(NUM_PARTITIONS, 2), range(6)
    table = pyarrow.parquet.read_table(histories / "a.parquet")
    with_ids, without = tmp_path / "with.parquet", tmp_path / "without.parquet"
    pyarrow.parquet.write_table(table, with_ids, row_group_size=100)
    pyarrow.parquet.write_table(table.drop_columns("event_id"), without, row_group_size=100)
    parts = event_log_parts(with_ids, 250)
    assert [part.num_rows for part in parts] == [200, 200, 200]
    assert [part.num_rows for part in event_log_parts(without, 250)] == [600]
    whole = split_parts([LogPart(with_ids, 600)], sharding, shards)
    for one, other in zip(whole, split_parts(parts, sharding, shards), strict=True):
        assert sorted(one.user_ids) == sorted(other.user_ids)
        assert np.array_equal(np.sort(one.rows), np.sort(other.rows))


def test_mistakes_are_named(ours: Settings, config: Path, histories: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInteraction, match="no .parquet or .csv file"):
        plan_histories(ours, tmp_path / "empty", bundle_version=None)
    with pytest.raises(NotFound, match="no checkpoints"):
        plan_summaries(ours, bundle_version="v1", again=False)
    nowhere = replace(ours.backfills, uri=str(tmp_path / "nowhere"))
    with pytest.raises(RepositoryUnavailable, match="backfills.uri"):
        plan_histories(replace(ours, backfills=nowhere), histories, bundle_version=None)
    with pytest.raises(SettingsError, match=r"\[backfills\]"):
        plan_histories(
            replace(ours, backfills=replace(nowhere, uri=None)), histories, bundle_version=None
        )
    (histories / "d.parquet").write_text("no")
    done = call("store", "backfill", str(histories), "--config", str(config))
    assert done.code == 1
    assert "d.parquet: cannot be read" in done.stderr


def test_without_ray_the_extra_is_named(
    ours: Settings, histories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    plan = plan_histories(ours, histories, bundle_version=None)
    with pytest.raises(Exception, match=r"gemstream\[backfill\]"):
        run_plan(plan, None, None, lambda *_: None)
