"""The slow twin of contexts and generation: the whole history through the network's own modules, at every call."""

import numpy as np
import torch
from torch import Tensor

from model.beam_search import Beams, Limits, beam_search
from model.bundle import Bundle
from model.decoder import Context
from model.features import to_tensors
from model.layers import Segment
from model.query import Mask, Query
from model.ranking import rank_items
from model.repeat_features import repeat_candidates
from model.repeats import RepeatMixture
from state.item_statistics import ItemStatistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics
from state.summary import Summary
from state.user_state import UserState


def own_summary(bundle: Bundle, state: UserState) -> Summary | None:
    summary = state.summary
    return summary if summary and summary.bundle_version == bundle.version else None


@torch.inference_mode()
def plain_context(bundle: Bundle, state: UserState) -> Context:
    network, num_recent = bundle.network, len(state.recent(bundle.history))
    vectors = network.features(to_tensors(state.rows, network.config.features).unsqueeze())
    num_mid_term = len(state.rows) - num_recent
    summary = own_summary(bundle, state)
    tokens = torch.zeros(1, 0, network.config.layer.width)
    if summary is not None:
        tokens = torch.from_numpy(summary.tokens.copy())[None]
    present = torch.tensor([summary is not None])
    return network.encode(
        real(vectors[:, num_mid_term:]), real(vectors[:, :num_mid_term]), tokens, present
    )


def plain_statistics(bundle: Bundle, state: UserState) -> ItemStatistics:
    newer, summary = statistics_of(state.rows), own_summary(bundle, state)
    if summary is None or not summary.item_statistics:
        return newer
    return merge_statistics(decode_statistics(summary.item_statistics), newer)


@torch.inference_mode()
def plain_mixture(bundle: Bundle, state: UserState, blocked: Mask | None = None) -> RepeatMixture:
    network = bundle.network
    candidates = repeat_candidates(
        [plain_statistics(bundle, state)],
        bundle.catalogue,
        network.config.features.item_buckets,
        network.config.repeats.max_items,
    )
    bos = network.decode(plain_context(bundle, state), torch.zeros(1, 1, 0, dtype=torch.int64))
    evidence = network.repeat_evidence(candidates, bos[:, 0, 0])
    return evidence.mixture(None if blocked is None else torch.from_numpy(blocked)[evidence.items])


@torch.inference_mode()
def plain_beams(
    bundle: Bundle, state: UserState, width: int, mixture: RepeatMixture, limits: Limits
) -> Beams:
    network, context = bundle.network, plain_context(bundle, state)

    def score_next(codes: Tensor, _: Tensor) -> Tensor:
        return network.logits(network.decode(context, codes)[:, :, -1], codes.shape[-1])

    return beam_search(
        score_next, bundle.trie, 1, min(width, bundle.trie.num_sids), mixture, limits
    )


def plain_answer(bundle: Bundle, state: UserState, query: Query, width: int) -> dict[int, float]:
    """Item ids and scores of one search of that width, best first."""
    blocked = query.filter.blocked(bundle.catalogue)
    mixture = plain_mixture(bundle, state, blocked)
    nodes = None
    if blocked is not None:
        sids = torch.from_numpy(bundle.catalogue.blocked_sids(blocked))
        nodes = [level[None] for level in bundle.trie.blocked_nodes(sids)]
    beams = plain_beams(bundle, state, width, mixture, Limits(blocked=nodes))
    ranked = rank_items(beams, mixture, bundle.catalogue, blocked)
    ids = bundle.catalogue.item_ids
    return {int(ids[i]): score for i, score in ranked[: query.k] if score > -np.inf}


def real(vectors: Tensor) -> Segment:
    return Segment(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))
