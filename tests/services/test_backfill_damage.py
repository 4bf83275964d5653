"""Damage in a backfill stops nobody and marks no live user; a damaged live user is left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from services.backfill_shards import fold_shard
from state import keys
from state.backfill_batch import BackfillBatch, Taken
from state.backfill_intake import BackfillIntake, read_progress
from state.backfill_repository import BackfillRepository
from state.errors import CorruptValue, DamagedCheckpoint
from state.key_value_store import Batch, Family, KeyValueStore
from state.object_storage import ObjectStorage
from state.store_check import check_store
from state.user_records import user_records
from state.user_store import UserStore
from tests.services.backfill_site import (
    ANN,
    BOB,
    EVE,
    HISTORIES,
    PARTITION,
    Site,
    all_pairs,
    interactions,
    meta_of,
    of_user,
)
from tests.state.builders import SMALL, make_rows, summary_at
from tests.state.checkpointing import open_rocks


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_damage_and_other_lengths_stop_nobody(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.publish(HISTORIES)
    (file,) = (site.path / "backfills").rglob("users-0000.sst")
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert site.take() == []
    assert "is not what was written" in caplog.text
    other = BackfillIntake(
        site.repository, site.directory, replace(SMALL, chunk_len=4), 8, open_rocks
    )
    assert other.take_new(site.store) == []
    assert "make it again with this configuration" in caplog.text
    missing = BackfillRepository(ObjectStorage(str(site.path / "nowhere"), "backfills"), "x")
    assert BackfillIntake(missing, site.directory, SMALL, 8, open_rocks).take_new(site.store) == []
    assert "backfills.uri" in caplog.text


def damage(database: KeyValueStore, user: str, kind: bytes = b"") -> None:
    """One bit of the first record of a kind."""
    prefix = keys.user_prefix(user.encode()) + kind
    key, value = next(database.scan(Family.USERS, prefix, keys.after(prefix)))
    batch = Batch()
    batch.put(Family.USERS, key, value[:-1] + bytes([value[-1] ^ 1]))
    database.write(batch)


def test_a_damaged_live_user_is_left_out_and_stops_nobody(site: Site) -> None:
    site.apply({"ann": make_rows([*range(100, 120)]), "bob": make_rows([*range(100, 120)])})
    damage(site.store.database, "ann")
    site.store.close()
    site.store = site.open()
    before = of_user(site.store.database, "ann")
    site.publish(HISTORIES)
    assert site.take() == ["histories-1"]
    assert list(site.store.quarantine.users) == ["ann"]
    assert of_user(site.store.database, "ann") == before
    assert meta_of(site.store, "bob").length == 20 + len(BOB)
    assert meta_of(site.store, "eve").length == len(EVE)
    assert {each.user for each in check_store(site.store.database, SMALL, PARTITION).damage} == {
        "ann"
    }


@pytest.mark.parametrize("kind", [keys.HEAD, keys.CHUNK, keys.SUMMARY])
@pytest.mark.parametrize("live", ["ann", "zoe"])
def test_a_damaged_backfill_marks_nobody(
    site: Site, live: str, kind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    site.apply({live: make_rows([*range(100, 120)], first_item=900)})
    before = all_pairs(site.store.database)

    def compress_and_damage(shard: UserStore) -> None:
        assert shard.put_summary("ann", summary_at(6), 0, 0)[0]
        damage(shard.database, "ann", kind)

    is_read = live == "ann" or kind != keys.CHUNK
    site.publish(HISTORIES, change=compress_and_damage)
    assert site.take() == ([] if is_read else ["histories-1"])
    assert not site.store.quarantine.users
    if is_read:
        assert all_pairs(site.store.database) == before
        assert read_progress(site.store.database) == {}
        assert "backfill histories-1 is left out: user 'ann' of the backfill: " in caplog.text


@pytest.mark.parametrize("kind", [keys.HEAD, keys.SUMMARY])
def test_damaged_summaries_mark_nobody(kind: bytes) -> None:
    shard, _ = fold_shard(interactions({"ann": ANN}), SMALL, PARTITION)
    assert shard.put_summary("ann", summary_at(6), 0, 0)[0]
    live, _ = fold_shard(interactions({"ann": ANN}), SMALL, PARTITION)
    damage(shard.database, "ann", kind)
    building = BackfillBatch(live.database, SMALL)
    with pytest.raises(DamagedCheckpoint, match="user 'ann' of the backfill"):
        building.add_summaries([(b"ann", user_records(shard.database, b"ann"))])
    assert building.damaged == {}


@pytest.mark.parametrize("kind", [keys.HEAD, keys.CHUNK, keys.SUMMARY])
def test_nothing_of_a_damaged_live_user_is_in_the_batch(kind: bytes) -> None:
    live, _ = fold_shard(interactions({"ann": ANN}), SMALL, PARTITION)
    assert live.put_summary("ann", summary_at(6), 0, 0)[0]
    records = user_records(live.database, b"ann")
    damage(live.database, "ann", kind)
    building = BackfillBatch(live.database, SMALL)
    building.add_histories([(b"ann", records)])
    assert list(building.damaged) == ["ann"]
    assert [family for family, _, _ in building.batch.puts] == [Family.SYSTEM], "how many there are"
    assert not building.batch.removed_ranges
    assert not building.batch.deletes
    assert building.taken == Taken()


def test_too_many_damaged_users_end_the_taking_before_its_progress_is_stored(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.apply({user: make_rows([*range(100, 120)]) for user in ("ann", "bob")})
    for user in ("ann", "bob"):
        damage(site.store.database, user)
    site.store.close()
    site.store = site.open()
    monkeypatch.setattr("state.quarantine.MAX_USERS", 1)
    site.publish(HISTORIES)
    for _ in range(2):
        with pytest.raises(CorruptValue, match="2 users are damaged"):
            site.take()
        assert read_progress(site.store.database) == {}
        assert not of_user(site.store.database, "eve")
