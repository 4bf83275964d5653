"""Exact constrained beam search over the trie: every code sequence it holds is the prefix of a catalogue SID.

Shapes: B requests, W beams, P codes so far, C children, K codes per level.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.query import Mask
from model.repeats import RepeatMixture
from model.trie import Trie

ScoreNext = Callable[[Tensor, Tensor], Tensor]
"""Prefixes [B, W, P] to logits of the next level [B, W, K].

The second argument [B, W] tells which beam of the call before each prefix continues; zeros at first.
"""


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
    """[B, W]: by the codes alone; the same without a mixture."""
    dropped_log_probs: Tensor
    """[B]: no SID outside the beams has a larger log-probability; -inf where none was left out."""


@dataclass(frozen=True)
class Limits:
    """What beams may be."""

    max_per_first_code: int | None = None
    """At most so many beams of a request share their first code; what that costs counts as dropped."""
    blocked: Sequence[Tensor] | None = None
    """Per level, the nodes [B, nodes] that no beam may take; they do not count as dropped."""


NO_LIMITS = Limits()


def blocked_nodes(
    blocked: Sequence[Mask | None], trie: Trie, catalogue: Catalogue
) -> list[Tensor] | None:
    """Per level [B, nodes], from the items that each request may not get; None where no request blocks any."""
    if all(mask is None for mask in blocked):
        return None
    nothing = np.zeros(len(catalogue), np.bool_)
    sids = [catalogue.blocked_sids(nothing if mask is None else mask) for mask in blocked]
    rows = [trie.blocked_nodes(torch.from_numpy(blocked_S)) for blocked_S in sids]
    return [torch.stack(level) for level in zip(*rows, strict=True)]


def beam_search(
    score_next: ScoreNext,
    trie: Trie,
    num_requests: int,
    beam_width: int,
    mixture: RepeatMixture | None = None,
    limits: Limits = NO_LIMITS,
) -> Beams:
    """The `beam_width` best SIDs per request, as far as greedy pruning finds them.

    Beams compete by log P(prefix): the generator's, or with a `mixture` generator and repeats together. It bounds all
    SIDs with that prefix, so beams no worse than `dropped_log_probs` are proven to be the best that `limits` allow.
    """
    per_code, blocked = limits.max_per_first_code, limits.blocked
    nodes = torch.zeros(num_requests, 1, dtype=torch.int64, device=trie.device)
    codes, parents = nodes.new_zeros(num_requests, 1, 0), nodes
    log_probs = generator = torch.zeros(num_requests, 1, device=trie.device)
    dropped = generator.new_full((num_requests,), -torch.inf)
    for level in range(trie.num_levels):
        logits = _logits(score_next, trie, nodes, codes, parents)
        children, child_log_probs = trie.child_log_probs(level, nodes, logits)
        child_nodes = children.nodes.flatten(1)
        totals = candidates = (generator[..., None] + child_log_probs).flatten(1)
        if mixture is not None:
            totals = _with_repeats(mixture, trie, level, child_nodes, candidates)
        if blocked is not None:
            totals = totals.masked_fill(blocked[level].gather(1, child_nodes), -torch.inf)
        if per_code is not None and level:
            first_codes = codes[..., :1].expand(-1, -1, children.codes.shape[-1]).flatten(1)
            beyond = _places_in_group(totals, first_codes) >= per_code
            dropped = dropped.maximum(totals.masked_fill(~beyond, -torch.inf).amax(1))
            totals = totals.masked_fill(beyond, -torch.inf)
        best, order = totals.topk(min(beam_width + 1, totals.shape[1]), dim=1)
        if best.shape[1] > beam_width:
            dropped = dropped.maximum(best[:, -1])
        log_probs, chosen = best[:, :beam_width], order[:, :beam_width]
        generator = candidates.gather(1, chosen).masked_fill(log_probs == -torch.inf, -torch.inf)
        nodes = child_nodes.gather(1, chosen)
        parents = chosen // children.codes.shape[-1]
        next_codes = children.codes.flatten(1).gather(1, chosen)
        earlier = codes.gather(1, parents[..., None].expand(-1, -1, level))
        codes = torch.cat([earlier, next_codes[..., None]], -1)
    return Beams(nodes, codes, log_probs, generator, dropped)


def _logits(
    score_next: ScoreNext, trie: Trie, nodes: Tensor, codes: Tensor, parents: Tensor
) -> Tensor:
    """[B, W, K] of the next level.

    On the last level those of a node with a single child say nothing: they are 0, and not asked for where no request
    needs the place. Before it they have to be: later codes attend to what is computed for these.
    """
    batch, width, level = codes.shape
    if not 0 < level == trie.num_levels - 1:
        return score_next(codes, parents)
    is_open_BW = ~trie.is_forced(level, nodes)
    most = int(is_open_BW.sum(1).max())
    if most == width:
        return score_next(codes, parents)
    if not most:
        return torch.zeros((), device=nodes.device).expand(batch, width, trie.num_codes(level))
    asked_BO = is_open_BW.byte().topk(most, dim=1).indices
    asked_codes = codes.gather(1, asked_BO[..., None].expand(-1, -1, level))
    asked = score_next(asked_codes, parents.gather(1, asked_BO))
    logits = asked.new_zeros(batch, width, asked.shape[-1])
    return logits.scatter_(1, asked_BO[..., None].expand_as(asked), asked)


def _with_repeats(
    mixture: RepeatMixture, trie: Trie, level: int, child_nodes: Tensor, candidates: Tensor
) -> Tensor:
    """[B, N]: log P of the candidates' prefixes, generator and repeats together; padding stays -inf."""
    generated = candidates
    if mixture.next_items is not None:
        generated = mixture.next_items.mix_nodes(trie, level, child_nodes, candidates)
    row_nodes = trie.nodes_of(mixture.sids, level)
    share = mixture.share_of_nodes(row_nodes, trie.num_nodes(level)).gather(1, child_nodes)
    return mixture.mix(generated, share).masked_fill(candidates == -torch.inf, -torch.inf)


def _places_in_group(totals_BN: Tensor, groups_BN: Tensor) -> Tensor:
    """[B, N]: how many of the same group precede each, best first."""
    best_first = totals_BN.argsort(dim=1, descending=True, stable=True)
    by_group = groups_BN.gather(1, best_first).argsort(dim=1, stable=True)
    order = best_first.gather(1, by_group)
    groups = groups_BN.gather(1, order)
    places = torch.arange(order.shape[1], device=order.device) - torch.searchsorted(groups, groups)
    return torch.empty_like(places).scatter_(1, order, places)
