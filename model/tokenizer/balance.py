"""Assignment to codes with limited room: in each round the items that would lose most by waiting are let in first.

Shapes: N items, D levels, K codes, V vector width.
"""

import torch
from torch import Tensor

from model.tokenizer.tokenizer import split


def bounded_codes(vectors_NV: Tensor, centroids_KV: Tensor, capacity: int) -> Tensor:
    """[N] codes, none more often than `capacity`; `capacity` times K is at least N.

    Every round each waiting item asks for its nearest code with room. A code takes those first whose next best is
    farthest behind. A round fills a code or is the last, so there are at most K.
    """
    codes_N = torch.empty(len(vectors_NV), dtype=torch.int64)
    room_K = torch.full((len(centroids_KV),), capacity)
    waiting = torch.arange(len(vectors_NV))
    while len(waiting):
        wanted, regret = _wanted(vectors_NV, waiting, centroids_KV, room_K > 0)
        order = torch.argsort(regret, descending=True, stable=True)
        order = order[torch.argsort(wanted[order], stable=True)]
        waiting, wanted = waiting[order], wanted[order]
        asked_K = torch.bincount(wanted, minlength=len(room_K))
        rank = torch.arange(len(wanted)) - (asked_K.cumsum(0) - asked_K)[wanted]
        taken = rank < room_K[wanted]
        codes_N[waiting[taken]] = wanted[taken]
        room_K -= torch.bincount(wanted[taken], minlength=len(room_K))
        waiting = waiting[~taken]
    return codes_N


def _wanted(
    vectors_NV: Tensor, waiting: Tensor, centroids_KV: Tensor, has_room_K: Tensor
) -> tuple[Tensor, Tensor]:
    """The nearest code with room, and by how much it is better than the next, of each waiting item."""
    offsets_K = (centroids_KV.square().sum(1) / -2).masked_fill(~has_room_K, -torch.inf)
    wanted, regret = [], []
    for items in split(waiting):
        scores = torch.addmm(offsets_K, vectors_NV[items], centroids_KV.T)
        best = scores.max(1)
        scores.scatter_(1, best.indices[:, None], -torch.inf)
        wanted.append(best.indices)
        regret.append(best.values - scores.amax(1))
    return torch.cat(wanted), torch.cat(regret)


def bounded_last_codes(
    codes_ND: Tensor, residual_NV: Tensor, centroids_KV: Tensor, max_bucket: int
) -> None:
    """Change last codes in place so that no SID holds more than `max_bucket` items.

    `residual_NV` is what the levels before the last leave over. A prefix with more than K times `max_bucket` items
    spreads them evenly.
    """
    prefixes = torch.zeros(len(codes_ND), dtype=torch.int64)
    if codes_ND.shape[1] > 1:
        prefixes = torch.unique(codes_ND[:, :-1], dim=0, return_inverse=True)[1]
    sids = prefixes * len(centroids_KV) + codes_ND[:, -1]
    found, sizes = torch.unique(sids, return_counts=True)
    crowded = torch.unique(found[sizes > max_bucket] // len(centroids_KV))
    by_prefix = torch.argsort(prefixes, stable=True)
    sizes_P = torch.bincount(prefixes)
    ends_P = sizes_P.cumsum(0)
    for prefix in crowded.tolist():
        end, size = int(ends_P[prefix]), int(sizes_P[prefix])
        items = by_prefix[end - size : end]
        capacity = max(max_bucket, -(-size // len(centroids_KV)))
        codes_ND[items, -1] = bounded_codes(residual_NV[items], centroids_KV, capacity)
