"""The full-prefix trie of the catalogue's SIDs as sorted arrays: nodes of a level are numbered in SID order.

Shapes: S distinct SIDs, D levels, T moments, C the most children of any node on a level, ... any leading dimensions.
"""

import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from model.errors import CatalogueError


@dataclass(frozen=True)
class Children:
    """The children of some nodes, padded to C; each field is [..., C]."""

    nodes: Tensor
    codes: Tensor
    log_share: Tensor
    """log of the share of the parent's events that fell to this child."""
    real: Tensor


@dataclass(frozen=True)
class Level:
    """A level's nodes as arrays; N nodes, M on the level above."""

    first_child: npt.NDArray[np.int64]
    """[M + 1]: where the nodes of each node above begin."""
    codes: npt.NDArray[np.int64]
    """[N]"""
    log_share: npt.NDArray[np.float32]
    """[N]: as in Children, at the first moment."""
    first_sid: npt.NDArray[np.int64]
    """[N + 1]: where the SIDs below each begin."""
    paths: npt.NDArray[np.int64]
    """[S]: the node of every SID."""


class Trie:
    """Children of a node are neighbours: node i of level d owns nodes first_child[d][i] to first_child[d][i + 1]."""

    def __init__(self, sids_SD: npt.NDArray[np.int64], counts_S: npt.NDArray[np.int64]) -> None:
        """From distinct SIDs in lexicographic order and how often each was seen: one moment.

        Raises CatalogueError when there is none, or when they are not in order.
        """
        if sids_SD.ndim != 2 or not sids_SD.size:
            raise CatalogueError(f"a trie needs SIDs [S, D]; the array has shape {sids_SD.shape}")
        differs = sids_SD[1:] != sids_SD[:-1]
        first = differs.argmax(1)[:, None]
        steps = np.take_along_axis(np.diff(sids_SD, axis=0), first, 1)
        if np.any(steps <= 0):
            raise CatalogueError("SIDs must be distinct and in lexicographic order")
        self.num_sids, self.num_levels = sids_SD.shape
        self._codes: list[Tensor] = []
        self._log_share_TN: list[Tensor] = []
        self._moments_B: Tensor | None = None
        self._first_child: list[Tensor] = []
        self._max_children: list[int] = []
        self._num_codes = (sids_SD.max(0) + 1).tolist()
        self._first_sid: list[Tensor] = []
        self._build(sids_SD, differs)
        self._weigh(np.maximum(counts_S, 1).astype(np.float64)[None])

    def _build(
        self,
        sids_SD: npt.NDArray[np.int64],
        differs: npt.NDArray[np.bool_],
    ) -> None:
        self._sids_SD = torch.from_numpy(sids_SD.astype(np.int64))
        parent_starts = np.zeros(1, np.int64)
        paths = []
        for level in range(self.num_levels):
            new = np.concatenate([[True], differs[:, : level + 1].any(1)])
            starts = np.flatnonzero(new)
            paths.append(np.cumsum(new) - 1)
            first_child = np.append(np.searchsorted(starts, parent_starts), len(starts))
            num_children = np.diff(first_child)
            self._first_sid.append(torch.from_numpy(np.append(starts, self.num_sids)))
            self._codes.append(torch.from_numpy(sids_SD[starts, level].astype(np.int64)))
            self._first_child.append(torch.from_numpy(first_child))
            self._max_children.append(int(num_children.max()))
            parent_starts = starts
        self.paths_SD = torch.from_numpy(np.stack(paths, 1))
        """The node of every SID on every level; on the last, the SID's own number."""

    def _weigh(self, counts_TS: npt.NDArray[np.float64]) -> None:
        parent_counts = counts_TS.sum(1, keepdims=True)
        for first_sid, first_child in zip(self._first_sid, self._first_child, strict=True):
            counts = np.add.reduceat(counts_TS, first_sid[:-1].numpy(), 1)
            share = counts / np.repeat(parent_counts, np.diff(first_child.numpy()), 1)
            self._log_share_TN.append(torch.from_numpy(np.log(share).astype(np.float32)))
            parent_counts = counts

    def weighed(self, counts_TS: npt.NDArray[np.float64]) -> "Trie":
        """The same SIDs with other counts, all above 0, at each of T moments; in the host's memory."""
        trie = copy.copy(self)
        trie._log_share_TN = []
        trie._weigh(counts_TS)
        trie.__dict__.pop("_levels", None)
        return trie

    def at(self, moments_B: Tensor | None) -> "Trie":
        """With the shares of one moment for each request, the first dimension of `nodes`; None: the first for all."""
        trie = copy.copy(self)
        trie._moments_B = moments_B
        return trie

    def level(self, level: int) -> Level:
        """The arrays of a level, which must be in the host's memory."""
        return self._levels[level]

    @cached_property
    def _levels(self) -> list[Level]:
        shares = [log_share_TN[0] for log_share_TN in self._log_share_TN]
        parts = (self._first_child, self._codes, shares, self._first_sid, self.paths_SD.T)
        return [
            Level(*(of_level.numpy() for of_level in arrays)) for arrays in zip(*parts, strict=True)
        ]

    @property
    def device(self) -> torch.device:
        """Where its arrays lie."""
        return self._sids_SD.device

    def codes_of(self, sids: Tensor) -> Tensor:
        """Codes [..., D] of SID numbers [...]."""
        return self._sids_SD[sids]

    def nodes_of(self, sids: Tensor, level: int) -> Tensor:
        """Nodes [...] on `level` of SID numbers [...]; negative numbers give node 0."""
        return self.paths_SD[sids.clamp(min=0), level]

    def sids_below(self, level: int, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The first SID number below nodes [...] on `level`, and that behind the last: they are neighbours."""
        first = self._first_sid[level]
        return first[nodes], first[nodes + 1]

    def num_nodes(self, level: int) -> int:
        """Distinct prefixes of level + 1 codes."""
        return len(self._codes[level])

    def num_codes(self, level: int) -> int:
        """One more than the greatest code on `level`."""
        return self._num_codes[level]

    def blocked_nodes(self, blocked_S: Tensor) -> list[Tensor]:
        """Per level, which nodes [N] lead to blocked SIDs alone."""
        before = functional.pad((~blocked_S).cumsum(0), (1, 0))
        return [before[first[1:]] == before[first[:-1]] for first in self._first_sid]

    def is_forced(self, level: int, nodes: Tensor) -> Tensor:
        """[...]: whether `nodes` have a single child on `level`: it has all of their probability."""
        first_child = self._first_child[level]
        return first_child[nodes + 1] - first_child[nodes] == 1

    def children(self, level: int, nodes: Tensor) -> Children:
        """Children on `level` of `nodes` [...] of the level above; the root is node 0."""
        first, behind = self._first_child[level][nodes], self._first_child[level][nodes + 1]
        child = first[..., None] + torch.arange(self._max_children[level], device=nodes.device)
        real = child < behind[..., None]
        child = torch.where(real, child, first[..., None])
        moments = 0 if self._moments_B is None else self._moments_B.view(-1, *[1] * nodes.dim())
        log_share = self._log_share_TN[level][moments, child]
        return Children(child, self._codes[level][child], log_share, real)

    def child_log_probs(self, level: int, nodes: Tensor, logits: Tensor) -> tuple[Children, Tensor]:
        """Children of `nodes` [...] and their log-probabilities [..., C] under `logits` [..., K]; padding is -inf.

        softmax over the children that exist of logit + log share: a network that says nothing predicts popularity.
        """
        children = self.children(level, nodes)
        scores = logits.gather(-1, children.codes) + children.log_share
        return children, scores.masked_fill(~children.real, -torch.inf).log_softmax(-1)

    def child_log_prob(self, level: int, nodes: Tensor, targets: Tensor, logits: Tensor) -> Tensor:
        """The same for one child of each node: `targets` [...] are its children on `level`."""
        log_probs = self.child_log_probs(level, nodes, logits)[1]
        place = targets - self._first_child[level][nodes]
        return log_probs.gather(-1, place[..., None])[..., 0]
