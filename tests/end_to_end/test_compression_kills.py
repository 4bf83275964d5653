"""Workers, broker and owner killed at random: every summary ends at its boundary and is what one pass over it gives.

`GEMSTREAM_KILLS_S=180 pytest tests/end_to_end/test_compression_kills.py -s` goes on for longer.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model.bundle import load_bundle
from model.compression import Compressor
from services.local_kafka import start_kafka
from state.chunk_codec import decode_rows
from state.inspection import users_of
from state.keys import user_prefix
from state.user_records import read_chunks, scan_user
from state.user_store import UserStore
from tests.end_to_end.compression_kills import Chaos
from tests.end_to_end.test_main_job import stores_of

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KILLS_S = float(os.environ.get("GEMSTREAM_KILLS_S", "40"))
NUM_USERS = max(16, int(KILLS_S / 4))


@pytest.fixture
def chaos(tmp_path: Path, bundle: Path) -> Iterator[Chaos]:
    broker = start_kafka(tmp_path / "kafka")
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chaos = Chaos(tmp_path, broker, bundle, NUM_USERS, seed)
    yield chaos
    chaos.stop()
    broker.stop()
    print(chaos.logs())


@pytest.mark.timeout(KILLS_S + 240)
def test_every_summary_ends_at_its_boundary(chaos: Chaos, bundle: Path) -> None:
    chaos.run(KILLS_S)
    print(chaos.num_events, "events;", dict(chaos.happened))
    chaos.settle()
    chaos.stop()
    compressor, checked = Compressor(load_bundle(bundle)), 0
    stores = stores_of(chaos.owner)
    for partition in range(chaos.topics.num_partitions):
        store = stores.open(partition)
        assert store.dirty_marks() == []
        for user in users_of(store.database):
            checked += assert_summary_is_one_pass(store, user, compressor)
    stores.close_all()
    assert checked > NUM_USERS / 2


def assert_summary_is_one_pass(store: UserStore, user: str, compressor: Compressor) -> bool:
    """Whether there was anything to compress."""
    stored = store.read_user(user, compressor.bundle_version)
    assert stored is not None
    boundary = stored.meta.lifecycle_boundary
    if not boundary:
        return False
    assert stored.summary is not None
    assert stored.summary.boundary == boundary
    prefix = user_prefix(user.encode())
    chunks = read_chunks(scan_user(store.database, prefix), prefix, 0, boundary)
    expected = compressor.roll(None, [decode_rows(chunk) for chunk in chunks], boundary, 0)
    assert stored.summary.count == expected.count == boundary
    np.testing.assert_array_equal(stored.summary.tokens, expected.tokens)
    assert stored.summary.item_statistics == expected.item_statistics
    return True
