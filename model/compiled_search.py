"""The beam search of model/beam_search.py as machine code, for beams without a cap; that one is its slow twin.

Only children that exist are scored, and of those that are forced none.

Shapes: B requests, W beams, O of them asked for, P codes so far, H width, K codes per level, C children of all beams,
N candidates for repetition, S SIDs, I items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.beam_search import Beams
from model.repeats import RepeatMixture
from model.trie import Level, Trie
from state.compiled import compiled, compiled_sums

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FEW = 256
"""Up to so many beams, the best are kept in order while candidates pass by; for more, all are sorted."""
_LEAST_SHARE = 1e-30
_NOTHING: Floats32 = np.zeros((0, 0), np.float32)


class _Children(NamedTuple):
    """Of the beams of one request; children of a node are neighbours."""

    first: Integers
    """[W]: each beam's first child, a node."""
    starts: Integers
    """[W + 1]: where each beam's children begin among all."""


class _Scored(NamedTuple):
    """What says logits: a beam's row of values, at the code or multiplied with the code's vector."""

    rows: Integers
    """[W]; -1 for beams that need none."""
    values: Floats32
    """[O, K], or [O, H] where there are vectors."""
    vectors: Floats32
    """[K, H], or empty."""


class BlockedItems(NamedTuple):
    """What may not be recommended: a node whose items are all blocked is no beam, and does not count as dropped."""

    masks: Sequence[Mask | None]
    """Per request [I]; None: all may be."""
    item_starts: Integers
    """[S + 1]: where each SID's items begin."""


class States(Protocol):
    """Who computes what predicts codes; model.scorer.Scorer is one."""

    @property
    def first_logits(self) -> Tensor:
        """[B, 1, K]: of the first code."""
        ...

    def next_states(self, codes_BOP: Tensor, parents_BO: Tensor) -> Tensor:
        """[B, O, H] for prefixes, and the beams of the call before that they continue."""
        ...

    def code_vectors(self, level: int) -> Tensor:
        """[K, H]: a code's logit is its product with a state."""
        ...


@dataclass(frozen=True)
class _Found:
    """The beams of one request; all fields are [W], best first."""

    nodes: Integers
    codes: Integers
    """[W, P]"""
    parents: Integers
    """Places among the beams before."""
    log_probs: Floats
    """By which they compete."""
    generator: Floats
    """By the codes alone."""
    dropped: float
    """No prefix outside has a larger log-probability."""


def compiled_beam_search(
    states: States,
    trie: Trie,
    num_requests: int,
    beam_width: int,
    mixture: RepeatMixture | None = None,
    blocked: BlockedItems | None = None,
) -> Beams:
    """As beam_search. What ties with the last beam may be another SID."""
    nothing = np.zeros(1, np.int64)
    root = _Found(nothing, nothing[:, None][:, :0], nothing, np.zeros(1), np.zeros(1), -np.inf)
    found = [root] * num_requests
    mixed = None if mixture is None else [_Mixed.of(mixture, row) for row in range(num_requests)]
    for number in range(trie.num_levels):
        level = trie.level(number)
        scored = _scored(states, trie, number, found)
        for row, beams in enumerate(found):
            children = _children(level, beams.nodes)
            log_probs = totals = _child_log_probs(
                children, level.codes, level.log_share, beams.generator, scored[row]
            )
            if mixed is not None:
                totals = mixed[row].totals(level, children, log_probs)
            if blocked is not None and (mask := blocked.masks[row]) is not None:
                totals = _without(children, totals, level.first_sid, blocked.item_starts, mask)
            found[row] = _best_children(beams, level, children, totals, log_probs, beam_width)
    return _joined(found, trie)


def _children(level: Level, nodes: Integers) -> _Children:
    first = level.first_child[nodes]
    starts = np.zeros(len(nodes) + 1, np.int64)
    np.cumsum(level.first_child[nodes + 1] - first, out=starts[1:])
    return _Children(first, starts)


def _scored(states: States, trie: Trie, number: int, found: Sequence[_Found]) -> list[_Scored]:
    """Per request. On the last level beams with a single child need nothing; before it they do: later codes attend to them."""
    if not number:
        return [
            _Scored(np.zeros(1, np.int64), logits_1K, _NOTHING)
            for logits_1K in states.first_logits.numpy()
        ]
    asked = [_asked(trie, number, beams) for beams in found]
    most = max(len(places) for places in asked)
    rows = [np.full(len(beams.nodes), -1) for beams in found]
    if not most:
        return [_Scored(row, _NOTHING, _NOTHING) for row in rows]
    codes = np.zeros((len(found), most, number), np.int64)
    parents = np.zeros((len(found), most), np.int64)
    for request, (places, beams) in enumerate(zip(asked, found, strict=True)):
        codes[request, : len(places)] = beams.codes[places]
        parents[request, : len(places)] = beams.parents[places]
        rows[request][places] = np.arange(len(places))
    states_BOH = states.next_states(torch.from_numpy(codes), torch.from_numpy(parents)).numpy()
    vectors_KH = states.code_vectors(number).numpy()
    return [_Scored(row, one, vectors_KH) for row, one in zip(rows, states_BOH, strict=True)]


def _asked(trie: Trie, number: int, beams: _Found) -> Integers:
    """Places of the beams whose states are needed."""
    if number < trie.num_levels - 1:
        return np.arange(len(beams.nodes))
    first_child = trie.level(number).first_child
    return np.flatnonzero(first_child[beams.nodes + 1] - first_child[beams.nodes] > 1)


@dataclass(frozen=True)
class _Mixed:
    """What beside the codes says how probable SIDs are, for one request."""

    log_generator: float
    log_repeat: float
    sids: Integers
    """[N] in order."""
    shares: Floats32
    """[N]"""
    next_weight: float
    """0: items are not scored beside codes."""
    next_before: Floats
    """[S + 1]: P_next of all SIDs before each."""

    @staticmethod
    def of(mixture: RepeatMixture, row: int) -> "_Mixed":
        sids, shares = mixture.share_by_sid[row]
        weight, before = 0.0, np.zeros(1)
        if mixture.next_items is not None:
            weight = float(mixture.next_items.weight[row])
            before = mixture.next_items.before_sids(row)
        log_generator, log_repeat = mixture.log_generator[row], mixture.log_repeat[row]
        return _Mixed(float(log_generator), float(log_repeat), sids, shares, weight, before)

    def totals(self, level: Level, children: _Children, log_probs: Floats) -> Floats:
        """[C]: log P of the children's prefixes, everything together."""
        if self.next_weight:
            log_probs = _mix_next(
                children, level.first_sid, log_probs, self.next_before, self.next_weight
            )
        repeated = level.paths[self.sids]
        return _mix_repeats(
            children, log_probs, repeated, self.shares, self.log_generator, self.log_repeat
        )


def _best_children(
    beams: _Found,
    level: Level,
    children: _Children,
    totals: Floats,
    log_probs: Floats,
    beam_width: int,
) -> _Found:
    """The beams of the next level."""
    if beam_width < _FEW:
        best = _best(totals, beam_width + 1)
    else:
        best = np.argsort(-totals, kind="stable")[: beam_width + 1]
    dropped = beams.dropped
    if len(best) > beam_width:
        dropped = max(dropped, float(totals[best[beam_width]]))
        best = best[:beam_width]
    best = best[totals[best] > -np.inf]
    parents = np.searchsorted(children.starts, best, side="right") - 1
    nodes = children.first[parents] + best - children.starts[parents]
    codes = np.column_stack([beams.codes[parents], level.codes[nodes]])
    return _Found(nodes, codes, parents, totals[best], log_probs[best], dropped)


def _joined(found: Sequence[_Found], trie: Trie) -> Beams:
    """Side by side, filled up to the most that a request has."""
    width = max(len(beams.nodes) for beams in found)
    shape = (len(found), width)
    sids, codes = np.zeros(shape, np.int64), np.zeros((*shape, trie.num_levels), np.int64)
    log_probs, generator = (np.full(shape, -np.inf, np.float32) for _ in range(2))
    for row, beams in enumerate(found):
        here = slice(len(beams.nodes))
        sids[row, here], codes[row, here] = beams.nodes, beams.codes
        log_probs[row, here], generator[row, here] = beams.log_probs, beams.generator
    dropped = np.array([beams.dropped for beams in found], np.float32)
    return Beams(*map(torch.from_numpy, (sids, codes, log_probs, generator, dropped)))


@compiled_sums
def _product(state_H: Floats32, vector_H: Floats32) -> np.float32:
    total = np.float32(0)
    for i in range(len(state_H)):
        total += state_H[i] * vector_H[i]
    return total


@compiled
def _child_log_probs(
    children: _Children,
    codes: Integers,
    log_share: Floats32,
    generator: Floats,
    scored: _Scored,
) -> Floats:
    """[C]: log P of the prefixes that end with each child, by the codes."""
    log_probs = np.empty(children.starts[-1])
    for beam in range(len(generator)):
        start, end = children.starts[beam], children.starts[beam + 1]
        if end - start == 1:
            log_probs[start] = generator[beam]
            continue
        values, greatest = scored.values[scored.rows[beam]], -np.inf
        node = children.first[beam]
        for place in range(start, end):
            code = codes[node]
            logit = _product(values, scored.vectors[code]) if len(scored.vectors) else values[code]
            log_probs[place] = np.float64(logit) + np.float64(log_share[node])
            greatest = max(greatest, log_probs[place])
            node += 1
        total = 0.0
        for place in range(start, end):
            total += np.exp(log_probs[place] - greatest)
        offset = generator[beam] - greatest - np.log(total)
        for place in range(start, end):
            log_probs[place] += offset
    return log_probs


@compiled
def _mix_next(
    children: _Children, first_sid: Integers, log_probs: Floats, before: Floats, weight: float
) -> Floats:
    """log((1 - a) P_codes + a P_next) of every child."""
    mixed = np.empty(len(log_probs))
    for beam in range(len(children.first)):
        node = children.first[beam]
        for place in range(children.starts[beam], children.starts[beam + 1]):
            share = max(before[first_sid[node + 1]] - before[first_sid[node]], 0.0)
            mixed[place] = np.log((1 - weight) * np.exp(log_probs[place]) + weight * share)
            node += 1
    return mixed


@compiled
def _mix_repeats(
    children: _Children,
    log_probs: Floats,
    repeated: Integers,
    shares: Floats32,
    log_generator: float,
    log_repeat: float,
) -> Floats:
    """log((1 - g) P + g P_repeat) of every child; `repeated` are the nodes [N] that `shares` fall to, in order."""
    mixed = np.empty(len(log_probs))
    for beam in range(len(children.first)):
        node = children.first[beam]
        candidate = np.searchsorted(repeated, node)
        for place in range(children.starts[beam], children.starts[beam + 1]):
            share = 0.0
            while candidate < len(repeated) and repeated[candidate] == node:
                share += shares[candidate]
                candidate += 1
            one = log_generator + log_probs[place]
            other = log_repeat + np.log(max(share, _LEAST_SHARE))
            greater = max(one, other)
            mixed[place] = greater + np.log1p(np.exp(min(one, other) - greater))
            node += 1
    return mixed


@compiled
def _without(
    children: _Children, totals: Floats, first_sid: Integers, item_starts: Integers, blocked: Mask
) -> Floats:
    """-inf where all items of a child are blocked; most often its first one tells."""
    left = totals.copy()
    for beam in range(len(children.first)):
        node = children.first[beam]
        for place in range(children.starts[beam], children.starts[beam + 1]):
            item, end = item_starts[first_sid[node]], item_starts[first_sid[node + 1]]
            while item < end and blocked[item]:
                item += 1
            if item == end:
                left[place] = -np.inf
            node += 1
    return left


@compiled
def _best(totals: Floats, most: int) -> Integers:
    """Places of the `most` greatest, greatest first; of equal ones the earlier first."""
    kept = np.empty(min(most, len(totals)), np.int64)
    num = 0
    for place in range(len(totals)):
        total = totals[place]
        if num == len(kept) and total <= totals[kept[num - 1]]:
            continue
        at = num if num < len(kept) else num - 1
        num = at + 1
        while at > 0 and totals[kept[at - 1]] < total:
            kept[at] = kept[at - 1]
            at -= 1
        kept[at] = place
    return kept
