"""The usual Python trie, a dict from prefix to children, and the beam search over it: what the array trie replaces."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bench.recommend.world import SidCatalogue
from model.beam_search import ScoreNext

Prefix = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PythonTrie:
    """Children of every prefix: their codes, and the log of their share of the parent's events."""

    num_levels: int
    codes: dict[Prefix, list[int]]
    log_shares: dict[Prefix, list[float]]


@cache
def make_python_trie(catalogue: SidCatalogue) -> PythonTrie:
    """Of the same SIDs and shares as the array trie."""
    trie, num_levels = catalogue.trie, catalogue.trie.num_levels
    codes: dict[Prefix, list[int]] = {}
    log_shares: dict[Prefix, list[float]] = {}
    counts: dict[Prefix, int] = {}
    sids = [tuple(sid) for sid in trie.codes_of(torch.arange(trie.num_sids)).tolist()]
    for sid, count in zip(sids, catalogue.counts.clip(min=1).tolist(), strict=True):
        for length in range(num_levels + 1):
            if length and sid[:length] not in counts:
                codes.setdefault(sid[: length - 1], []).append(sid[length - 1])
            counts[sid[:length]] = counts.get(sid[:length], 0) + count
    for prefix, children in codes.items():
        of_children = torch.tensor([counts[(*prefix, code)] for code in children])
        log_shares[prefix] = (of_children / counts[prefix]).log().tolist()
    return PythonTrie(num_levels, codes, log_shares)


def python_beam_search(
    score_next: ScoreNext, trie: PythonTrie, beam_width: int
) -> tuple[list[Prefix], Tensor]:
    """The same beams as model.beam_search finds for one request, and their log-probabilities; no beam is empty.

    As Hugging Face does it: a mask over all codes for every beam, filled from the trie by a loop over beams.
    """
    beams: list[Prefix] = [()]
    log_probs, parents = torch.zeros(1), torch.zeros(1, 1, dtype=torch.int64)
    for level in range(trie.num_levels):
        prefixes = torch.tensor(beams, dtype=torch.int64).view(1, len(beams), level)
        logits_WK = score_next(prefixes, parents)[0]
        log_shares_WK = _log_shares(trie, beams, logits_WK)
        totals = (log_probs[:, None] + (logits_WK + log_shares_WK).log_softmax(-1)).flatten()
        log_probs, order = totals.topk(min(beam_width, int(totals.isfinite().sum())))
        num_codes = logits_WK.shape[-1]
        parents = order[None] // num_codes
        beams = [(*beams[i // num_codes], i % num_codes) for i in order.tolist()]
    return beams, log_probs


def _log_shares(trie: PythonTrie, beams: list[Prefix], logits_WK: Tensor) -> Tensor:
    """[W, K]: -inf where there is no child."""
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for row, prefix in enumerate(beams):
        children = trie.codes[prefix]
        rows += [row] * len(children)
        columns += children
        values += trie.log_shares[prefix]
    mask_WK = torch.full_like(logits_WK, -torch.inf)
    mask_WK[torch.tensor(rows), torch.tensor(columns)] = torch.tensor(values)
    return mask_WK
