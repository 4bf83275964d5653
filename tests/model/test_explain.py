"""What items came from: held to the decoder's own states, to slow sums, and to what leaving a stream out does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from model.bundle import Bundle
from model.compression import Compressor
from model.decoder import DecoderBlock
from model.explain import trace_decoder
from model.layers import Segment
from model.network import Network
from model.query import ItemFilter, Query
from model.recommender import Recommender
from model.user_context import UserContext
from state.interaction import empty_rows
from state.summary import Summary
from state.user_delta import split_state
from state.user_state import UserState
from tests.model.plain_context import plain_mixture
from tests.model.test_recommender import state_of
from tests.model.whole_context import whole_context
from tests.model.worlds import START_MS, make_rows


@pytest.fixture(scope="module")
def recommender(bundle: Bundle) -> Recommender:
    return Recommender(bundle, beam_width=8)


def decoder_blocks(network: Network) -> list[DecoderBlock]:
    return list(network.decoder.blocks)  # type: ignore[arg-type]


def encoded(recommender: Recommender, state: UserState) -> UserContext:
    return recommender.encode(split_state(state, recommender.history))[0]


@pytest.fixture(scope="module")
def summary(bundle: Bundle) -> Summary:
    return Compressor(bundle).roll(None, [make_rows(8, seed=3)], 8, now_ms=START_MS)


@pytest.mark.parametrize("num_rows", [0, 3, 19])
@torch.inference_mode()
def test_the_walk_is_the_decoders(
    recommender: Recommender, summary: Summary, num_rows: int
) -> None:
    network, rows = recommender.bundle.network, make_rows(num_rows) if num_rows else empty_rows()
    context = whole_context(recommender.bundle, state_of(rows, summary))
    codes = torch.from_numpy(recommender.bundle.catalogue.sids_SD[:5, :-1].copy())[None]
    trace = trace_decoder(network, context, codes)
    torch.testing.assert_close(trace.states[None], network.decode(context, codes))


@torch.inference_mode()
def test_shares_are_the_slow_sums(recommender: Recommender) -> None:
    """Norms by numpy of what the decoder's own branches give."""
    network = recommender.bundle.network
    context = whole_context(recommender.bundle, state_of(make_rows(19)))
    codes = torch.from_numpy(recommender.bundle.catalogue.sids_SD[:2, :-1].copy())[None]
    seen: dict[str, list[torch.Tensor]] = {"recent": [], "mid_term": [], "lifecycle": []}
    hooks = [
        getattr(block, name).register_forward_hook(
            lambda _, __, update, name=name: seen[name].append(update[0])
        )
        for block in decoder_blocks(network)
        for name in seen
    ]
    network.decode(context, codes)
    for hook in hooks:
        hook.remove()
    trace = trace_decoder(network, context, codes)
    assert not seen["lifecycle"]
    num_codes = codes.shape[-1]
    for item in range(2):
        states = [0, *range(1 + item * num_codes, 1 + (item + 1) * num_codes)]
        shares = []
        for recent, mid_term in zip(seen["recent"], seen["mid_term"], strict=True):
            for state in states:
                sizes = [float(np.linalg.norm(one[state].numpy())) for one in (recent, mid_term)]
                shares.append(sizes[0] / sum(sizes))
        assert float(trace.shares[item, 0]) == pytest.approx(np.mean(shares), abs=1e-5)
        assert float(trace.shares[item].sum()) == pytest.approx(1, abs=1e-5)


@torch.inference_mode()
def test_attention_is_the_slow_sum(recommender: Recommender) -> None:
    """Softmax by loops over the keys that each block's branch was given, found again by their vectors."""
    network = recommender.bundle.network
    context = whole_context(recommender.bundle, state_of(make_rows(19)))
    codes = torch.from_numpy(recommender.bundle.catalogue.sids_SD[:1, :-1].copy())[None]
    keys = context.mid_term.vectors[0]
    expected = np.zeros(len(keys))
    blocks = decoder_blocks(network)

    def note(branch: Any, given: tuple[torch.Tensor, Segment], _: torch.Tensor) -> None:
        states, segment = given
        heads = branch.attention.num_heads
        queries = branch.attention.to_query(branch.query_norm(states))[0].view(
            -1, heads, 16 // heads
        )
        selected = branch.attention.to_key_value(segment.vectors)[0, :, :16].view(
            -1, heads, 16 // heads
        )
        places = [int((keys == vector).all(1).nonzero()[0, 0]) for vector in segment.vectors[0]]
        for query in queries:
            for head in range(heads):
                logits = (selected[:, head] @ query[head]).numpy() / np.sqrt(16 // heads)
                weights = np.exp(logits - logits.max())
                expected[places] += weights / weights.sum() / heads / len(queries) / len(blocks)

    hooks = [block.mid_term.register_forward_hook(note) for block in blocks]
    network.decode(context, codes)
    for hook in hooks:
        hook.remove()
    trace = trace_decoder(network, context, codes)
    assert (expected > 0).sum() < len(keys)
    assert trace.attention[0].numpy() == pytest.approx(expected, abs=1e-5)
    assert float(trace.attention.sum()) == pytest.approx(1, abs=1e-5)


def test_explanations_of_an_answer(recommender: Recommender, summary: Summary) -> None:
    state, query = state_of(make_rows(19), summary), Query(k=6)
    found = recommender.recommend(state, query)
    explained = recommender.explain(encoded(recommender, state), query, found)
    mid_term = state.mid_term(recommender.history)
    assert len(explained) == 6
    for one in explained:
        shares = (one.recent, one.mid_term, one.lifecycle, one.repeats)
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert all(share >= 0 for share in shares)
        weights = [each.attention for each in one.attended]
        assert 1 <= len(weights) <= 3
        assert weights == sorted(weights, reverse=True)
        for each in one.attended:
            same = mid_term["event_time_ms"] == each.event_time_ms
            assert each.item.item_id in mid_term["item_id"][same]
    assert recommender.recommend(state, query) == found
    assert recommender.explain(encoded(recommender, state), query, []) == []


def test_a_stream_that_is_absent_has_no_share(recommender: Recommender, summary: Summary) -> None:
    query = Query(k=3)
    for state, absent in (
        (state_of(make_rows(3)), {"mid_term", "lifecycle"}),
        (state_of(make_rows(19)), {"lifecycle"}),
        (state_of(empty_rows(), replace(summary, item_statistics=b"")), {"recent", "mid_term"}),
        (state_of(empty_rows()), {"recent", "mid_term", "lifecycle", "repeats"}),
    ):
        for one in recommender.explain(
            encoded(recommender, state), query, recommender.recommend(state, query)
        ):
            zero = {name for name in ("recent", "mid_term", "lifecycle") if getattr(one, name) == 0}
            assert zero == absent - {"repeats"}
            assert bool(one.attended) == ("mid_term" not in absent)


def test_the_repeat_share_is_what_the_item_owes_to_repeats(
    bundle: Bundle, recommender: Recommender
) -> None:
    """By definition: how much of exp(score) goes when the repeat path alone is taken from the mixture."""
    rows = make_rows(12)
    state = state_of(rows)
    query = Query(k=len(bundle.catalogue), beam_width=1_000)
    found = recommender.recommend(state, query)
    mixture = plain_mixture(bundle, state)
    generator = float(mixture.log_generator.exp())
    alone = {
        one.item.item_id: one.score
        for one in recommender.recommend(state, replace(query, repeats=False))
    }
    explained = recommender.explain(encoded(recommender, state), query, found)
    for one, why in zip(found, explained, strict=True):
        rest = generator * np.exp(alone[one.item.item_id])
        assert why.repeats == pytest.approx(1 - rest / np.exp(one.score), abs=1e-4)
        assert (why.repeats > 0) == (one.item.item_id in rows["item_id"])


def test_without_repeats_or_with_them_excluded_there_is_no_repeat_share(
    recommender: Recommender,
) -> None:
    rows = make_rows(12)
    state = state_of(rows)
    for query in (
        Query(k=5, repeats=False),
        Query(k=5, filter=ItemFilter(exclude_ids=np.unique(rows["item_id"]))),
    ):
        found = recommender.recommend(state, query)
        assert {
            one.repeats for one in recommender.explain(encoded(recommender, state), query, found)
        } == {0.0}
