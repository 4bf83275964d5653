"""What an item was generated from: one teacher-forced pass through the eager decoder, block by block.

Per state, the sizes (L2 norms) of the three branches' updates are made shares of one; per item they are averaged over
blocks and over the states that predict its codes. They share out what neither repeats nor the next item explain. Attention is averaged over heads, blocks and the same states. The
walk is the one of `DecoderBlock.forward`; a test holds the two together.

Shapes as in model/decoder.py: T items, P = D positions [BOS, codes but the last], Q states, M mid-term, K selected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from model.bundle import Bundle
from model.catalogue import Catalogue, CatalogueItem
from model.decoder import Context, DecoderBlock, as_sequences, share_bos
from model.layers import Segment
from model.network import Network
from model.query import AttendedInteraction, Explanation, Recommended
from model.repeats import RepeatMixture
from state.interaction import Rows

NUM_ATTENDED = 3


@dataclass(frozen=True)
class DecoderTrace:
    """What one pass over T code sequences did, for the first context."""

    shares: Tensor
    """[T, 3]: recent, mid-term, lifecycle; they sum to one, or are 0 where no stream is present."""
    attention: Tensor
    """[T, M]: sums to one, where there is a mid-term segment."""
    states: Tensor
    """[T, P, H]: the final ones, as `Network.decode` gives them."""


def explain(
    bundle: Bundle,
    context: Context,
    mid_term: Rows,
    mixture: RepeatMixture,
    found: Sequence[Recommended],
) -> list[Explanation]:
    """Of each item of an answer. `context` and `mixture` are those that it came from, `mid_term` the context's rows."""
    if not found:
        return []
    codes_1TP = torch.tensor([one.sid for one in found])[None, :, :-1]
    trace = trace_decoder(bundle.network, context, codes_1TP)
    repeats_T, next_T = _probability_shares(bundle.catalogue, mixture, found)
    shares_TS = trace.shares * (1 - repeats_T - next_T)[:, None]
    shares_TS[:, 0] += next_T  # the recent stream says it
    return [
        Explanation(
            recent=of_streams[0],
            mid_term=of_streams[1],
            lifecycle=of_streams[2],
            repeats=repeat,
            attended=_most_attended(bundle.catalogue, mid_term, attention_M),
        )
        for of_streams, repeat, attention_M in zip(
            shares_TS.tolist(), repeats_T.tolist(), trace.attention, strict=True
        )
    ]


@torch.inference_mode()
def trace_decoder(network: Network, context: Context, codes_1TP: Tensor) -> DecoderTrace:
    """Decode code sequences against one context and note what each branch did."""
    num_sequences = codes_1TP.shape[1]
    bos = network.bos_H.expand(1, num_sequences, 1, -1)
    states_BQH = share_bos(torch.cat([bos, network.embed(codes_1TP)], 2))
    num_states, num_keys = states_BQH.shape[1], context.mid_term.vectors.shape[1]
    shares_QS, attention_QM = torch.zeros(num_states, 3), torch.zeros(num_states, num_keys)
    blocks = [cast("DecoderBlock", block) for block in network.decoder.blocks]
    for block in blocks:
        states_BQH = _attend_to_self(block, states_BQH, num_sequences)
        selected, chosen_K = _select(block, states_BQH, context.mid_term)
        updates = [
            branch(states_BQH, segment)
            if segment.vectors.shape[1]
            else torch.zeros_like(states_BQH)
            for branch, segment in (
                (block.recent, context.recent),
                (block.mid_term, selected),
                (block.lifecycle, context.lifecycle),
            )
        ]
        sizes_QS = torch.stack([update[0].norm(dim=-1) for update in updates], -1)
        shares_QS += sizes_QS / sizes_QS.sum(-1, keepdim=True).clamp(min=1e-20) / len(blocks)
        if selected.mask.any():
            logits_AQK = block.mid_term.logits(states_BQH, selected)[0]
            attention_QM[:, chosen_K] += logits_AQK.softmax(-1).mean(0) / len(blocks)
        states_BQH = block.residual_weight * states_BQH + sum(updates)
    states_TPH = as_sequences(network.decoder.norm(states_BQH), num_sequences)[0]
    return DecoderTrace(
        as_sequences(shares_QS[None], num_sequences)[0].mean(1),
        as_sequences(attention_QM[None], num_sequences)[0].mean(1),
        states_TPH,
    )


def _attend_to_self(block: DecoderBlock, states_BQH: Tensor, num_sequences: int) -> Tensor:
    sequences = as_sequences(block.self_norm(states_BQH), num_sequences).flatten(0, 1)
    attended = block.self_attention(sequences, sequences, None, causal=True)
    return states_BQH + share_bos(attended.view(1, num_sequences, *attended.shape[1:]))


def _select(block: DecoderBlock, states_BQH: Tensor, segment: Segment) -> tuple[Segment, Tensor]:
    """The mid-term segment cut down to the indexer's top-k, and which places of it these are."""
    num_keys = segment.mask.shape[1]
    if num_keys <= block.indexer.config.top_k:
        return segment, torch.arange(num_keys)
    query_BH = block.indexer_query(states_BQH[:, 0])
    places = Segment(torch.arange(num_keys, dtype=torch.float64)[None, :, None], segment.mask)
    scores_BM = block.indexer(query_BH, segment.vectors)
    chosen_K = block.indexer.select(scores_BM, places)[1].vectors[0, :, 0].long()
    return Segment(segment.vectors[:, chosen_K], segment.mask[:, chosen_K]), chosen_K


def _probability_shares(
    catalogue: Catalogue, mixture: RepeatMixture, found: Sequence[Recommended]
) -> tuple[Tensor, Tensor]:
    """[T] each, of P(item): g P_repeat(item) where the history holds it, and (1 - g) a P_next(item)."""
    ids = np.array([one.item.item_id for one in found], np.uint64)
    items_T = torch.from_numpy(catalogue.find(ids))
    scores_T = torch.tensor([one.score for one in found], dtype=torch.float64)
    same_TN = (items_T[:, None] == mixture.items[0]) & ~mixture.new[0]
    log_repeat_T = (same_TN * mixture.shares[0].double()).sum(-1).log() + mixture.log_repeat[0]
    repeats_T = (log_repeat_T - scores_T).exp().clamp(max=1)
    if mixture.next_items is None:
        return repeats_T, torch.zeros_like(repeats_T)
    log_next_T = mixture.log_generator[0] + mixture.next_items.log_share_of(0, items_T)
    next_T = (log_next_T - scores_T).exp() * (items_T >= 0)
    return repeats_T, next_T.minimum(1 - repeats_T)


def _most_attended(
    catalogue: Catalogue, mid_term: Rows, attention_M: Tensor
) -> tuple[AttendedInteraction, ...]:
    """Rows are left-aligned among the keys: padding comes last."""
    best, order = attention_M[: len(mid_term)].topk(min(NUM_ATTENDED, len(mid_term)))
    chosen = mid_term[order.numpy()]
    known = catalogue.find(chosen["item_id"])
    return tuple(
        AttendedInteraction(
            catalogue.item(int(index))
            if index >= 0
            else CatalogueItem(int(row["item_id"]), int(row["author_id"]), int(row["tag"])),
            int(row["event_time_ms"]),
            weight,
        )
        for row, index, weight in zip(chosen, known, best.tolist(), strict=True)
        if weight > 0
    )
