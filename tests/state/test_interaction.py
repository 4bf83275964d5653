"""Identities of events."""

import numpy as np

from state.interaction import hash_event
from tests.state.builders import START_MS


def test_short_ids_at_near_times_do_not_collide() -> None:
    hashes = [hash_event(str(number), START_MS + number) for number in range(200_000)]
    assert len(np.unique(np.array(hashes, np.uint64))) == 200_000


def test_the_same_id_at_another_time_is_another_event() -> None:
    assert hash_event("e", START_MS) == hash_event("e", START_MS)
    assert hash_event("e", START_MS) != hash_event("e", START_MS + 1)
