"""Checkpoints of a store with quarantined users: they say so, and never push out the last one without."""

import json

from state.bundle_rollout import put_changed_at
from state.checkpoint_manifest import Manifest
from state.key_value_store import Batch, KeyValueStore
from tests.state.checkpointing import (
    PARTITION,
    Machine,
    add,
    delete,
    wait_until_older_than_a_millisecond,
)

WHY = {"user-9": "chunk 3: a block of 3 interactions fails its checksum"}


def test_the_last_whole_one_stays_until_there_is_another(machine: Machine) -> None:
    store = machine.open()
    for _ in range(2):
        add(store, 50)
        machine.take(store)
    store.quarantine.add(WHY)
    for _ in range(5):
        add(store, 10)
        machine.take(store)
    assert machine.offsets() == [150, 140, 130, 100], "three, and the newest whole one"
    assert machine.take(store, prune=True, full=True).manifest.damaged_users == 1
    assert machine.offsets() == [150, 100]
    machine.repository.prune(PARTITION, 3, 0.001)
    wait_until_older_than_a_millisecond(machine)
    machine.repository.prune(PARTITION, 3, 0.001)
    assert machine.offsets() == [150, 100]
    delete(store, "user-9")
    assert machine.take(store).manifest.damaged_users == 0
    assert machine.take(store, prune=True).manifest.damaged_users == 0
    assert machine.offsets() == [151], "whole again"
    store.close()


def test_a_checkpoint_with_missing_files_is_not_the_last_whole_one(machine: Machine) -> None:
    store = machine.open()
    for _ in range(2):
        add(store, 50)
        newest = machine.take(store, full=True).manifest
    names = machine.repository.names(PARTITION)
    own = {file.sha256 for file in newest.files} - {
        file.sha256 for file in machine.repository.read(PARTITION, names[1]).files
    }
    for digest in own:
        machine.repository._storage.delete(f"interactions/{PARTITION:05d}/files/{digest}")
    machine.repository.prune(PARTITION, 1, 1e9)
    assert machine.offsets() == [100, 50], "which can be restored"
    store.close()


def test_quarantine_comes_with_the_checkpoint(machine: Machine, other: Machine) -> None:
    store = machine.open()
    add(store, 50)
    store.flush()
    machine.take(store)
    store.quarantine.add(WHY)
    add(store, 5)
    machine.take(store)
    store.close()
    other.restorer.before_open(PARTITION)
    database = other.open()
    # Nothing is wrong with him in truth, so that the mark does not outlive the opening.
    assert database.position() is not None
    assert not database.quarantine.users
    database.close()


def test_manifests_without_damage_are_read_by_earlier_releases(machine: Machine) -> None:
    store = machine.open()
    add(store, 50)
    whole = machine.take(store).manifest
    store.quarantine.add(WHY)
    damaged = machine.take(store).manifest
    store.close()
    documents = [json.loads(each.encode()) for each in (whole, damaged)]
    assert [document["format_version"] for document in documents] == [1, 2]
    assert "damaged_users" not in documents[0]
    for each in (whole, damaged):
        assert Manifest.decode(each.name, each.encode()) == each


def test_a_manifest_says_what_the_copy_holds_and_not_what_came_while_it_was_uploaded(
    machine: Machine,
) -> None:
    store = machine.open()
    add(store, 50)

    def meanwhile(live: KeyValueStore) -> Batch:
        batch = Batch()
        put_changed_at(batch, 1_000)
        return batch

    def change() -> None:
        if not store.quarantine.users:
            store.quarantine.add(WHY)
            store.change_bundles(meanwhile)

    copied = machine.take(store, change).manifest
    assert (copied.damaged_users, copied.bundles_changed_at_ms) == (0, 0)
    again = machine.take(store)
    assert again.is_new
    assert (again.manifest.damaged_users, again.manifest.bundles_changed_at_ms) == (1, 1_000)
    store.close()
