"""Contexts that grow by what is new, and the fused decoder on them, against the whole history at every call."""

import gc
from dataclasses import replace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.bundle import Bundle
from model.catalogue import CatalogueItem
from model.compression import Compressor
from model.decoder import Context
from model.engine import TorchEngine
from model.fused_decoder import FusedDecoder
from model.layers import Segment
from model.lifecycle import LifecycleConfig
from model.mid_term import MidTermConfig
from model.network import Network
from model.query import ItemFilter, Query
from model.recommender import Recommender
from model.scorer import Scorer
from model.trie import Trie
from model.user_context import Reused, UserContext
from state.chunk_codec import decode_rows
from state.key_value_store import MemoryStore
from state.user_delta import UserSegments, apply_delta, decode_delta
from state.user_store import UserStore
from tests.model.plain_context import plain_answer
from tests.model.whole_context import whole_context
from tests.model.worlds import NUM_ITEMS
from tests.state.builders import arrive, make_rows
from tests.state.test_forget import Entry, arrivals_of
from tests.state.test_forget_properties import growing, logs

polls = st.lists(
    st.tuples(st.integers(1, 40), st.booleans(), st.booleans()), min_size=1, max_size=12
)
"""How many entries of the log, whether a summary is rolled on, whether somebody asks."""


def read(store: UserStore, version: str, previous: UserSegments | None) -> UserSegments | None:
    stored = store.read_user("ann", version, previous.known if previous else None)
    return None if stored is None else apply_delta(previous, decode_delta("ann", stored))


def roll_on(store: UserStore, compressor: Compressor) -> None:
    rolled = store.read_rolled("ann", compressor.bundle_version, 2)
    if rolled is not None and rolled.chunks:
        chunks = [decode_rows(chunk) for chunk in rolled.chunks]
        summary = compressor.roll(rolled.summary, chunks, rolled.end_boundary, now_ms=1)
        store.put_summary("ann", summary, rolled.base_boundary, rolled.epoch)


def assert_close(found: list[Any], expected: dict[int, float]) -> None:
    """The same scores in the same order; items whose scores are closer than rounding may have changed places."""
    scores = [one.score for one in found]
    np.testing.assert_allclose(scores, list(expected.values()), atol=2e-4)
    for one in found:
        assert one.item.item_id not in expected or one.score == pytest.approx(
            expected[one.item.item_id], abs=2e-4
        )


@settings(deadline=None, max_examples=25)
@given(logs, polls, st.integers(1, 30), st.integers(0, 9))
def test_cached_contexts_answer_like_whole_histories(
    bundle: Bundle, log: list[Entry], steps: list[tuple[int, bool, bool]], k: int, num_excluded: int
) -> None:
    """Events, forgets, deletions, boundary moves and requests, in any order."""
    check_cached_contexts(bundle, log, steps, k, num_excluded)


@settings(deadline=None, max_examples=25)
@given(logs, polls, st.integers(1, 30), st.integers(0, 9))
def test_so_do_those_that_hold_first_codes(
    recency: Bundle,
    log: list[Entry],
    steps: list[tuple[int, bool, bool]],
    k: int,
    num_excluded: int,
) -> None:
    check_cached_contexts(recency, log, steps, k, num_excluded)


def check_cached_contexts(
    bundle: Bundle, log: list[Entry], steps: list[tuple[int, bool, bool]], k: int, num_excluded: int
) -> None:
    recommender, compressor = Recommender(bundle), Compressor(bundle)
    everything, log = len(bundle.catalogue), growing(log)
    excluded = frozenset(range(1, 1 + num_excluded))
    query = Query(k=k, beam_width=everything, filter=ItemFilter(exclude=excluded))
    store = UserStore(MemoryStore(), bundle.history, 0)
    user: UserSegments | None = None
    context: UserContext | None = None
    start = 0
    for size, rolls, asks in [*steps, (len(log), True, True)]:
        store.apply(arrivals_of(log, start, start + size))
        start += size
        if rolls:
            roll_on(store, compressor)
        user = read(store, bundle.version, user) if asks else user
        if not asks or user is None:
            continue
        context, _ = recommender.encode(user, context)
        found = recommender.answer([context], [query])[0]
        assert_close(found, plain_answer(bundle, user.state, query, everything))


def grown(bundle: Bundle, num_rows: int) -> tuple[UserStore, UserSegments]:
    store = UserStore(MemoryStore(), bundle.history, 0)
    store.apply(arrive(make_rows([1 + i % NUM_ITEMS for i in range(num_rows)])))
    user = read(store, bundle.version, None)
    assert user is not None
    return store, user


def test_only_what_is_new_is_encoded(bundle: Bundle) -> None:
    recommender, compressor = Recommender(bundle), Compressor(bundle)
    store, _ = grown(bundle, 40)
    roll_on(store, compressor)
    roll_on(store, compressor)
    roll_on(store, compressor)
    user = read(store, bundle.version, None)
    assert user is not None
    context, reused = recommender.encode(user)
    num_chunks = len(user.chunks)
    assert num_chunks >= 2
    assert reused == Reused(chunks_encoded=num_chunks, summary_encoded=1)
    again, reused = recommender.encode(user, context)
    assert again is context
    assert reused == Reused(unchanged=True)
    newer = replace(user, meta=replace(user.meta, version=99), tail=user.tail[1:])
    context, reused = recommender.encode(newer, context)
    assert reused == Reused(chunks=num_chunks, summary=1)
    later = replace(newer.meta, version=100)
    moved = replace(newer, meta=later, chunks=dict(list(user.chunks.items())[1:]))
    context, reused = recommender.encode(moved, context)
    assert reused == Reused(chunks=num_chunks - 1, summary=1)
    other_epoch = replace(moved, meta=replace(moved.meta, epoch=7))
    _, reused = recommender.encode(other_epoch, context)
    assert reused == Reused(chunks_encoded=num_chunks - 1, summary_encoded=1)


def test_requests_of_any_length_share_a_batch(bundle: Bundle) -> None:
    """Histories of none to many, with and without filters, repeats off, other widths: each as by itself."""
    recommender = Recommender(bundle, beam_width=6)
    contexts, queries = [], []
    for i, length in enumerate((1, 9, 25, 60, 3)):
        store, _ = grown(bundle, length)
        roll_on(store, Compressor(bundle))
        user = read(store, bundle.version, None)
        assert user is not None
        contexts.append(recommender.encode(user)[0])
        only = ItemFilter(allow_tags={1, 2}) if i % 2 else ItemFilter()
        queries.append(
            Query(k=4 + 3 * i, filter=only, repeats=i != 2, beam_width=9 if i == 4 else None)
        )
    together = recommender.answer(contexts, queries)
    for context, query, found in zip(contexts, queries, together, strict=True):
        (alone,) = recommender.answer([context], [query])
        assert [one.item for one in found] == [one.item for one in alone]
        np.testing.assert_allclose(
            [one.score for one in found], [one.score for one in alone], atol=1e-4
        )
        if query.filter.allow_tags:
            assert {one.item.tag for one in found} <= {1, 2}


def test_a_replaced_catalogue_goes_though_users_stay(bundle: Bundle) -> None:
    recommender = Recommender(bundle)
    contexts = [recommender.encode(grown(bundle, length)[1])[0] for length in (1, 9, 25)]
    view, gone = recommender.view, []
    for number, context in enumerate(contexts):
        item, sid = CatalogueItem(9_000 + number), np.array([bundle.catalogue.sid_of_item(0)])
        catalogue = bundle.catalogue.with_items([item], sid)
        trie = Trie(catalogue.sids_SD, catalogue.sid_counts_S)
        recommender.swap(replace(view, catalogue=catalogue, trie=trie))
        gone.append(ref(catalogue))
        del catalogue
        assert recommender.answer([context], [Query(k=3)])[0]
    recommender.swap(view)
    assert all(recommender.answer(contexts[:1], [Query(k=3)]))
    gc.collect()
    assert [catalogue() for catalogue in gone] == [None] * 3
    assert all(recommender.answer(contexts, [Query(k=3)] * 3))


def test_what_is_kept_for_repeats_is_counted(bundle: Bundle) -> None:
    """Before it is there: a cache asks when it puts a user in."""
    context, _ = Recommender(bundle).encode(grown(bundle, 20)[1])
    without = replace(context, max_candidates=0).num_bytes
    num_bytes = context.num_bytes
    Recommender(bundle).answer([context], [Query(k=3)])
    assert context.evidence is not None
    evidence, mixture = context.evidence.evidence, context.evidence.mixture
    (by_item,) = mixture.share_by_item
    parts = (evidence.items, evidence.sids, evidence.scores, evidence.new, mixture.shares, *by_item)
    assert num_bytes - without >= sum(part.nbytes for part in parts) > 0
    assert context.num_bytes == num_bytes


def test_work_ends_when_nobody_waits(bundle: Bundle) -> None:
    recommender = Recommender(bundle)
    context, _ = recommender.encode(grown(bundle, 9)[1])
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        recommender.answer([context], [Query(k=3)], check)
    assert calls == 2


CONFIGS: list[dict[str, Any]] = [
    {},
    {"residual": "literal"},
    {"codebooks": "tied", "tied_output": False},
    {"num_blocks": 3, "recent_layers": 2},
    {"mid_term": MidTermConfig(top_k=4, indexer_heads=8, indexer_width=4, indexer_relu=True)},
    {"lifecycle": LifecycleConfig(num_queries=5, num_encoder_layers=0)},
]


@pytest.mark.parametrize("changes", CONFIGS)
@pytest.mark.parametrize("num_levels", [1, 2, 3, 5])
def test_steps_are_the_decoder(bundle: Bundle, changes: dict[str, Any], num_levels: int) -> None:
    """Logits of every level, beams reordered in between, against the decoder on whole prefixes."""
    torch.manual_seed(1)
    config = replace(bundle.network.config, **changes)
    network = Network(config, bundle.history, num_levels, 6).eval().requires_grad_(False)
    other = replace(bundle, network=network)
    store, _ = grown(bundle, 45)
    user = read(store, bundle.version, None)
    assert user is not None
    recommender = Recommender(other)
    context, _ = recommender.encode(user)
    plain = whole_context(other, user.state)
    engine = TorchEngine(FusedDecoder(network.decoder))
    scorer = Scorer(network, engine, [context, context], lambda: None)
    generator = torch.Generator().manual_seed(2)
    codes, parents = torch.zeros(2, 1, 0, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)
    for level in range(num_levels):
        found = scorer.score_next(codes, parents)
        expected = network.decode(_twice(plain), codes)[:, :, -1]
        torch.testing.assert_close(found, network.logits(expected, level), atol=2e-4, rtol=1e-4)
        parents = torch.randint(0, codes.shape[1], (2, 4), generator=generator)
        earlier = codes.gather(1, parents[..., None].expand(-1, -1, level))
        codes = torch.cat([earlier, torch.randint(0, 6, (2, 4, 1), generator=generator)], -1)


def _twice(context: Context) -> Context:
    def twice(segment: Segment) -> Segment:
        return Segment(_doubled(segment.vectors), _doubled(segment.mask))

    return Context(twice(context.recent), twice(context.mid_term), twice(context.lifecycle))


def _doubled(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor])
