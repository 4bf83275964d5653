"""What is compared as an engine: a context in, beams out. A further one is a function and a line in ENGINES."""

from collections.abc import Callable

import torch
from torch import Tensor

from model.beam_search import Beams, ScoreNext, beam_search
from model.decoder import Context
from model.network import Network
from model.trie import Trie

Engine = Callable[[Context], Beams]
EngineMaker = Callable[[Network, Trie, int], Engine]
"""From network, trie and beam width; may take its time: making an engine is not measured."""


def eager(network: Network, trie: Trie, beam_width: int) -> Engine:
    """The network's plain modules, one prefix length after the other."""

    @torch.inference_mode()
    def search(context: Context) -> Beams:
        return beam_search(eager_scores(network, context), trie, 1, beam_width)

    return search


def eager_scores(network: Network, context: Context) -> ScoreNext:
    """The logits of the next level for any prefixes."""

    def score_next(codes_1WP: Tensor, _: Tensor) -> Tensor:
        states = network.decode(context, codes_1WP)
        return network.logits(states[:, :, -1], codes_1WP.shape[-1])

    return score_next


ENGINES: dict[str, EngineMaker] = {"eager": eager}
"""Headline figures are the last one's."""

EAGER, SERVED = next(iter(ENGINES)), list(ENGINES)[-1]
