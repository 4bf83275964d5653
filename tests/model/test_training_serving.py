"""Training cuts a history exactly as serving does: on random logs, at any cut, however the log came in."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from model.bundle import Bundle
from model.features import ItemTensors, to_tensors
from model.training.batches import BatchBuilder
from model.training.histories import build_histories
from model.training.replay import replay
from state.arrivals import Arrivals, Position
from state.chunk_codec import decode_rows
from state.event_log import EventLog
from state.interaction import Rows, empty_rows, hash_events, join_rows
from state.key_value_store import MemoryStore
from state.segments import HistoryConfig
from state.user_store import UserStore
from tests.model.worlds import SMALL, make_rows

NUM_USERS, MAX_TIME = 3, 12


@dataclass
class Log:
    """Times in small numbers: many ties, and many ids that come twice."""

    events: EventLog
    history: HistoryConfig
    polls: list[int]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    num_rows = draw(st.integers(20, 90))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = make_rows(num_rows, int(random.integers(2**32)))
    rows["item_id"] = random.integers(1, 4, num_rows)
    for name in ("author_id", "tag", "play_time_ms", "duration_ms", "kinds"):
        rows[name] = 0
    rows["event_time_ms"] = rows["event_time_ms"][0] + np.sort(
        random.integers(0, draw(st.integers(3, MAX_TIME)), num_rows)
    )
    ids = [str(i) for i in random.integers(0, draw(st.integers(5, 500)), num_rows)]
    users = random.integers(0, NUM_USERS, num_rows)
    users[:NUM_USERS] = range(NUM_USERS)
    rows["event_hash"] = hash_events(ids, rows["event_time_ms"])
    recent_len, chunk_len = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    mid_term_len = recent_len + chunk_len + draw(st.integers(0, 6))
    history = HistoryConfig(
        recent_len=recent_len,
        mid_term_len=mid_term_len,
        chunk_len=chunk_len,
        max_history=mid_term_len + chunk_len + draw(st.integers(0, 20)),
    )
    names = [f"user-{i}" for i in range(NUM_USERS)]
    polls = sorted(draw(st.sets(st.integers(1, num_rows - 1), max_size=4)))
    return Log(EventLog(names, users.astype(np.int64), ids, rows), history, polls)


def served(log: Log, user: int, until_ms: int) -> tuple[Rows, Rows, Rows]:
    """Lifecycle, mid-term and recent of a user, from a store that saw what happened before `until_ms`."""
    events, store = log.events, UserStore(MemoryStore(), log.history, 0)
    num_seen = int(np.searchsorted(events.rows["event_time_ms"], until_ms))
    for start, end in pairwise([0, *(p for p in log.polls if p < num_seen), num_seen]):
        users = [events.user_ids[i].encode() for i in events.user_index[start:end]]
        rows = events.rows[start:end].copy()
        store.apply(Arrivals(0, Position(end, 0), users, np.arange(start, end), rows))
    name = events.user_ids[user]
    stored = store.read_user(name, "bundle")
    rolled = store.read_rolled(name, "bundle", 1_000)
    if stored is None or rolled is None:
        return empty_rows(), empty_rows(), empty_rows()
    state = stored.decode(name)
    older = join_rows([empty_rows(), *map(decode_rows, rolled.chunks)])
    return older, state.mid_term(log.history), state.recent(log.history)


@settings(max_examples=30, deadline=None)
@given(log=logs())
def test_training_contexts_are_what_a_store_serves(bundle: Bundle, log: Log) -> None:
    features = SMALL.network.features
    replayed = replay(log.events, log.history)
    try:
        histories = build_histories(replayed)
    except Exception as error:  # nobody has three baskets
        assert "three baskets" in str(error)  # noqa: PT017
        return
    builder = BatchBuilder(histories, bundle.catalogue, SMALL.network, log.history, 1_000)
    for cut in [*histories.train_cuts, *histories.held_out_cuts]:
        segments = served(log, int(histories.users[cut]), int(histories.rows["event_time_ms"][cut]))
        batch = builder.build(np.array([cut]), 1, 1, None)
        assert batch.lengths == [len(rows) for rows in segments]
        assert bool(batch.mask.all())
        expected = to_tensors(join_rows(segments), features)
        context = ItemTensors(batch.items.ids[0], batch.items.dense[0])
        assert torch.equal(context.ids, expected.ids)
        assert torch.equal(context.dense, expected.dense)


def test_an_ordinary_log_is_taken_as_it_is(event_log: EventLog) -> None:
    assert replay(event_log, SMALL.history) is event_log
