"""A million SIDs from a random network over a live trie: not one that the catalogue does not hold."""

from dataclasses import replace

import numpy as np
import torch

from model.beam_search import beam_search
from model.decoder import Context
from model.layers import LayerConfig, Segment
from model.network import Network
from model.trie import Trie
from tests.model.worlds import SMALL

NUM_CODES, NUM_LEVELS, NUM_SIDS = 24, 3, 3_000
REQUESTS, BEAMS, ROUNDS = 64, 1_000, 16


@torch.inference_mode()
def test_a_million_sids_none_invalid() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    live = np.sort(random.choice(NUM_CODES**NUM_LEVELS, NUM_SIDS, replace=False))
    sids = np.stack(np.unravel_index(live, (NUM_CODES,) * NUM_LEVELS), 1)
    trie = Trie(sids, random.integers(0, 50, NUM_SIDS))
    layer = LayerConfig(width=8, num_heads=1, ffn_width=8)
    config = replace(SMALL.network, layer=layer, num_blocks=1)
    network = Network(config, SMALL.history, NUM_LEVELS, NUM_CODES).eval()
    mask = torch.ones(REQUESTS, 2, dtype=torch.bool)
    generated = 0
    for _ in range(ROUNDS):
        context = Context(*(Segment(3 * torch.randn(REQUESTS, 2, 8), mask) for _ in range(3)))
        generated += count_valid(network, context, trie, live)
    assert generated >= 1_000_000


def count_valid(network: Network, context: Context, trie: Trie, live: np.ndarray) -> int:
    """How many SIDs a search generates; all of them must be live and distinct within their request."""

    def score_next(codes: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        states = network.decode(context, codes)
        return network.logits(states[:, :, -1], codes.shape[-1])

    beams = beam_search(score_next, trie, REQUESTS, BEAMS)
    assert bool((beams.log_probs > -torch.inf).all())
    numbers = np.ravel_multi_index(
        beams.codes.numpy().transpose(2, 0, 1), (NUM_CODES,) * NUM_LEVELS
    )
    assert np.isin(numbers, live).all()
    assert (np.diff(np.sort(numbers, 1), axis=1) > 0).all()
    return numbers.size
