"""Identities of events."""

import numpy as np

from state.interaction import hash_event, hash_events
from tests.state.builders import START_MS


def test_short_ids_at_near_times_do_not_collide() -> None:
    hashes = [hash_event(str(number), START_MS + number) for number in range(200_000)]
    assert len(np.unique(np.array(hashes, np.uint64))) == 200_000


def test_the_same_id_at_another_time_is_another_event() -> None:
    assert hash_event("e", START_MS) == hash_event("e", START_MS)
    assert hash_event("e", START_MS) != hash_event("e", START_MS + 1)


def test_many_hashes_are_those_of_each_and_never_0() -> None:
    event_ids = ["", "e", "e\0", "eight-by", "eight-byt", "é" * 64, "e"]
    times = [START_MS + number for number in range(len(event_ids))]
    hashes = hash_events(event_ids, times).tolist()
    assert hashes == list(map(hash_event, event_ids, times))
    assert len(set(hashes)) == len(hashes)
    assert 0 not in hashes
    assert hash_events([], []).tolist() == []
