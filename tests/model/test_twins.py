"""The network against its numpy twin, in float64: recent encoder, one decoder block, the whole forward."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model.decoder import Context, DecoderBlock
from model.features import ItemTensors, to_tensors
from model.layers import Segment
from model.lifecycle import LifecycleConfig
from model.mid_term import MidTermConfig
from model.network import Network, NetworkConfig
from model.recent import Positions, RecentEncoder
from tests.model import numpy_network as twin
from tests.model.worlds import SMALL, make_rows

LAYER = SMALL.network.layer
NUM_HEADS, WIDTH = LAYER.num_heads, LAYER.width
RELU = MidTermConfig(top_k=3, indexer_heads=8, indexer_width=4, indexer_relu=True)
"""Heads enough that no two keys tie at a score of zero."""
CONFIGS: list[dict[str, Any]] = [
    {},
    {"residual": "literal"},
    {"codebooks": "tied"},
    {"tied_output": False, "mid_term": RELU},
    {"codebooks": "tied", "tied_output": False, "recent_layers": 2, "num_blocks": 3},
]


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def whole(vectors_NH: Tensor) -> Segment:
    return Segment(vectors_NH[None], torch.ones(1, len(vectors_NH), dtype=torch.bool))


@pytest.mark.parametrize("num_layers", [0, 1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", get_args(Positions))
def test_recent_encoder(num_layers: int, causal: bool, positions: Positions) -> None:
    encoder = RecentEncoder(LAYER, num_layers, max_len=8, causal=causal, positions=positions)
    encoder = encoder.double()
    if encoder.distances_LAR is not None:
        nn.init.normal_(encoder.distances_LAR)
    for num_items in (1, 5, 8):
        items = random(num_items, WIDTH)
        padded = torch.cat([torch.full((1, 3, WIDTH), 7.0), items[None]], 1)[:, -8:]
        mask = torch.arange(padded.shape[1])[None] >= padded.shape[1] - num_items
        with torch.no_grad():
            found = encoder(padded, mask).vectors[0, -num_items:]
        weights = twin.weights_of(encoder)
        expected = twin.recent(items.numpy(), weights, NUM_HEADS, causal=causal)
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_recent_encoder_sees_order_and_time() -> None:
    """The same items in another order, or at other times, are another context."""
    network = Network(SMALL.network, SMALL.history, 3, 6).eval()
    rows = make_rows(6)
    swapped, later = rows.copy(), rows.copy()
    swapped[:2] = rows[[1, 0]]
    later["event_time_ms"][0] += 40 * 86_400_000
    encoded = []
    for some in (rows, swapped, later):
        items = network.features(to_tensors(some, SMALL.network.features))
        encoded.append(network.recent(items[None], torch.ones(1, 6, dtype=torch.bool)).vectors)
    for other in encoded[1:]:
        assert not torch.allclose(encoded[0][:, 2:], other[:, 2:], atol=1e-4)


@pytest.mark.parametrize("residual", ["one", "literal"])
@pytest.mark.parametrize("select", [False, True])
def test_decoder_block(residual: Any, select: bool) -> None:
    mid_term = MidTermConfig(top_k=3, indexer_width=4)
    config = NetworkConfig(layer=LAYER, mid_term=mid_term, residual=residual)
    block = DecoderBlock(LAYER, mid_term, residual).double().eval()
    segments = {
        "recent": random(4, WIDTH, seed=1),
        "mid_term": random(7, WIDTH, seed=2),
        "lifecycle": random(2, WIDTH, seed=3),
    }
    states = random(3, WIDTH, seed=4)
    context = Context(**{name: whole(vectors) for name, vectors in segments.items()})
    with torch.no_grad():
        found = block(states[None], 1, context, select=select, trace=None)[0]
    arrays = {name: vectors.numpy() for name, vectors in segments.items()}
    expected = twin.block(states.numpy(), arrays, twin.weights_of(block), config, select)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_the_literal_residual_holds_the_states_three_times() -> None:
    mid_term = MidTermConfig()
    blocks = [DecoderBlock(LAYER, mid_term, residual).eval() for residual in ("one", "literal")]
    blocks[1].load_state_dict(blocks[0].state_dict())
    nothing = Segment(torch.zeros(1, 0, WIDTH), torch.zeros(1, 0, dtype=torch.bool))
    states = random(1, 3, WIDTH).float()
    with torch.no_grad():
        one, three = (
            block(states, 1, Context(nothing, nothing, nothing), select=True, trace=None)
            for block in blocks
        )
    torch.testing.assert_close(three, 3 * one)


@pytest.mark.parametrize("changes", CONFIGS)
@pytest.mark.parametrize("select", [False, True])
def test_whole_forward(changes: dict[str, Any], select: bool) -> None:
    """Rows in, logits out, for two beams over one padded context."""
    torch.manual_seed(0)
    config = replace(
        SMALL.network, lifecycle=LifecycleConfig(num_queries=3, num_encoder_layers=1), **changes
    )
    network = Network(config, SMALL.history, num_levels=3, codebook_size=6).double().eval()
    rows, tokens = make_rows(14), random(3, WIDTH)
    items = to_tensors(rows, config.features)
    with torch.no_grad():
        vectors = network.features(ItemTensors(items.ids, items.dense.double()))
        junk = torch.full((1, 2, WIDTH), 7.0, dtype=torch.float64)
        padded = torch.cat([vectors[None, :9], junk], 1)
        context = network.encode(
            whole(vectors[9:]),
            Segment(padded, torch.arange(11)[None] < 9),
            tokens[None],
            torch.ones(1, dtype=torch.bool),
        )
        beams = torch.tensor([[[1, 5], [4, 0]]])
        states = network.decode(context, beams, select=select)[0]
        found = torch.stack([network.logits(states[:, p], p) for p in range(3)], 1)
    weights = twin.weights_of(network)
    encoded = expected_context(rows, tokens, weights, config)
    for beam, codes in enumerate(beams[0].tolist()):
        expected = twin.decode(codes, encoded, weights, config, select)
        for p in range(3):
            logits = twin.logits(expected[p], p, weights, config)
            np.testing.assert_allclose(found[beam, p], logits, atol=1e-6)


def expected_context(
    rows: Any, tokens: Tensor, weights: twin.Weights, config: NetworkConfig
) -> dict[str, twin.Array]:
    features = twin.under(weights, "features")
    vectors = np.stack([twin.item_vector(row, features, config.features) for row in rows])
    mid_term, lifecycle = twin.under(weights, "mid_term"), twin.under(weights, "lifecycle")
    online = {n: w for n, w in lifecycle.items() if n.startswith("encoder.") or n == "norm.weight"}
    return {
        "recent": twin.recent(vectors[9:], twin.under(weights, "recent"), NUM_HEADS),
        "mid_term": twin.mid_term(vectors[:9], mid_term, NUM_HEADS, SMALL.history.chunk_len),
        "lifecycle": twin.encoder(tokens.numpy(), online, NUM_HEADS, "encoder"),
    }


def test_codebooks_start_from_the_tokenizer() -> None:
    vectors = torch.randn(3, 6, WIDTH)
    for changes in CONFIGS:
        network = Network(replace(SMALL.network, **changes), SMALL.history, 3, 6)
        network.set_codebooks(vectors)
        for level in range(3):
            start = vectors[0 if network.config.codebooks == "tied" else level]
            logits = network.logits(torch.eye(WIDTH)[None], level)
            torch.testing.assert_close(logits[0].T, start)
