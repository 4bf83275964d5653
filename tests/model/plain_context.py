"""The slow twin of contexts and generation: the whole history through the network's own modules, at every call."""

import numpy as np
import torch
from torch import Tensor

from model.beam_search import Beams, Limits, beam_search
from model.bundle import Bundle
from model.code_recency import FirstCodes
from model.query import Mask, Query
from model.ranking import rank_items
from model.repeat_features import repeat_candidates
from model.repeats import RepeatMixture
from state.item_statistics import ItemStatistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics
from state.user_state import UserState
from tests.model.whole_context import whole_context


def plain_statistics(bundle: Bundle, state: UserState) -> ItemStatistics:
    newer, summary = statistics_of(state.rows), state.summary
    if summary is None or summary.bundle_version != bundle.version or not summary.item_statistics:
        return newer
    return merge_statistics(decode_statistics(summary.item_statistics), newer)


@torch.inference_mode()
def plain_mixture(
    bundle: Bundle,
    state: UserState,
    blocked: Mask | None = None,
    *,
    repeats: bool = True,
    time_ms: int | None = None,
) -> RepeatMixture:
    network = bundle.network
    candidates = repeat_candidates(
        [plain_statistics(bundle, state)],
        bundle.catalogue,
        network.config.features,
        network.config.repeats.max_candidates,
        network.config.repeats.max_popular_candidates,
        None if time_ms is None else [time_ms],
    )
    bos = network.decode(whole_context(bundle, state), torch.zeros(1, 1, 0, dtype=torch.int64))
    evidence = network.repeat_evidence(candidates, bos[:, 0, 0])
    had = set(plain_statistics(bundle, state).items["item_id"].tolist())
    allowed = [
        [
            index >= 0
            and (repeats or bundle.catalogue.item_ids[index] not in had)
            and (blocked is None or not blocked[index])
            for index in row
        ]
        for row in evidence.items.tolist()
    ]
    mixture = evidence.mixture(~torch.tensor(allowed, dtype=torch.bool).view(evidence.items.shape))
    return mixture.favouring(network.config.repeats)


@torch.inference_mode()
def plain_beams(
    bundle: Bundle, state: UserState, width: int, mixture: RepeatMixture, limits: Limits
) -> Beams:
    network, context = bundle.network, whole_context(bundle, state)
    first = FirstCodes(bundle.catalogue)
    counts_1RK = first.log_counts(first.of(state.rows["item_id"]))[None]

    def score_next(codes: Tensor, _: Tensor) -> Tensor:
        states = network.decode(context, codes)[:, :, -1]
        return network.next_logits(states, codes.shape[-1], counts_1RK)

    return beam_search(
        score_next, bundle.trie, 1, min(width, bundle.trie.num_sids), mixture, limits
    )


def plain_answer(bundle: Bundle, state: UserState, query: Query, width: int) -> dict[int, float]:
    """Item ids and scores of one search of that width, best first."""
    blocked = query.filter.blocked(bundle.catalogue)
    mixture = plain_mixture(bundle, state, blocked, repeats=query.repeats, time_ms=query.time_ms)
    nodes = None
    if blocked is not None:
        sids = torch.from_numpy(bundle.catalogue.blocked_sids(blocked))
        nodes = [level[None] for level in bundle.trie.blocked_nodes(sids)]
    beams = plain_beams(bundle, state, width, mixture, Limits(blocked=nodes))
    ranked = rank_items(
        beams, mixture, bundle.catalogue, bundle.catalogue.log_share_in_bucket, blocked
    )
    ids = bundle.catalogue.item_ids
    return {int(ids[i]): score for i, score in ranked[: query.k] if score > -np.inf}
