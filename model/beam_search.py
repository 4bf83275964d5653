"""Exact constrained beam search over the trie: every code sequence it holds is the prefix of a catalogue SID.

Shapes: B requests, W beams, P codes so far, C children, K codes per level.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.repeats import RepeatMixture
from model.trie import Trie

ScoreNext = Callable[[Tensor], Tensor]
"""Prefixes [B, W, P] to logits of the next level [B, W, K]."""


@dataclass(frozen=True)
class Beams:
    """The best SIDs of each request, best first; what is left over when SIDs are few has log_probs -inf."""

    sids: Tensor
    """[B, W]: SID numbers of the trie."""
    codes: Tensor
    """[B, W, D]"""
    log_probs: Tensor
    """[B, W]: log-probability of the whole SID."""
    generator_log_probs: Tensor
    """[B, W]: the generator's alone; the same without a mixture."""


def beam_search(
    score_next: ScoreNext,
    trie: Trie,
    num_requests: int,
    beam_width: int,
    mixture: RepeatMixture | None = None,
) -> Beams:
    """The `beam_width` best SIDs per request; exact as soon as no level has more nodes than beams.

    Beams compete by log P(prefix): the generator's, or with a `mixture` generator and repeats together.
    """
    nodes = torch.zeros(num_requests, 1, dtype=torch.int64)
    codes = torch.zeros(num_requests, 1, 0, dtype=torch.int64)
    generator = torch.zeros(num_requests, 1)
    log_probs = generator
    for level in range(trie.num_levels):
        children, child_log_probs = trie.child_log_probs(level, nodes, score_next(codes))
        child_nodes = children.nodes.flatten(1)
        totals = candidates = (generator[..., None] + child_log_probs).flatten(1)
        if mixture is not None:
            row_nodes = trie.nodes_of(mixture.sids, level)
            share = mixture.share_of_nodes(row_nodes, trie.num_nodes(level)).gather(1, child_nodes)
            totals = mixture.mix(candidates, share).masked_fill(
                candidates == -torch.inf, -torch.inf
            )
        log_probs, chosen = totals.topk(min(beam_width, totals.shape[1]), dim=1)
        generator = candidates.gather(1, chosen)
        nodes = child_nodes.gather(1, chosen)
        parents = (chosen // children.codes.shape[-1])[..., None].expand(-1, -1, level)
        next_codes = children.codes.flatten(1).gather(1, chosen)
        codes = torch.cat([codes.gather(1, parents), next_codes[..., None]], -1)
    return Beams(nodes, codes, log_probs, generator)
