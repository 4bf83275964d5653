"""Users to contexts, as little as possible: what stays valid of an earlier context is taken over.

Sealed chunks are encoded once, the summary's tokens once per summary, recent interactions and the open chunk once per
state version. Shapes: M mid-term interactions, K selected, N keys, L blocks, H width, A heads, C = H / A, G I indexer keys.
"""

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.bundle import Bundle
from model.decoder import DecoderBlock
from model.engine import DTYPES
from model.engine_config import Precision
from model.features import to_tensors
from model.fused_decoder import EPSILON, FusedDecoder, Memory, additive, project
from model.layers import Segment
from model.user_context import Reused, SealedChunks, UserContext
from state.interaction import Rows
from state.item_statistics import ItemStatistics, empty_statistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics
from state.summary import Summary
from state.user_delta import UserSegments


class ContextEncoder:
    """Encodes users for one bundle. Not thread-safe with others that change its bundle's network; nobody does."""

    def __init__(self, bundle: Bundle, fused: FusedDecoder, precision: Precision = "fp32") -> None:
        """`fused` holds the network's decoder; `precision` is of matrix products, what is kept is float32."""
        network, dtype = bundle.network, DTYPES[precision]
        self._network = network
        self._history = bundle.history
        self._version = bundle.version
        self._fused = fused
        self._blocks: list[DecoderBlock] = list(network.decoder.blocks)  # type: ignore[arg-type]
        self._dtype = dtype
        self._recent = _in_precision(network.recent, dtype)
        self._mid_term = _in_precision(network.mid_term, dtype)
        branches = [(block.recent, block.mid_term, block.lifecycle) for block in self._blocks]
        weights = [[b.attention.to_key_value.weight.to(dtype) for b in of] for of in branches]
        self._recent_weights, _, self._lifecycle_weights = map(
            torch.cat, zip(*weights, strict=True)
        )
        self._mid_term_weights = [of_block[1] for of_block in weights]

    @torch.inference_mode()
    def encode(
        self, user: UserSegments, previous: UserContext | None = None
    ) -> tuple[UserContext, Reused]:
        """The user's context; parts of `previous`, an earlier one of the same user, are taken over where they hold."""
        if previous is not None and not _comparable(previous.user, user):
            previous = None
        same_summary = previous is not None and _boundary(previous.user) == _boundary(user)
        if previous is not None and same_summary and previous.user.meta == user.meta:
            return previous, Reused(unchanged=True)
        sealed = self._sealed(user, previous.sealed if previous else None)
        if previous is not None and same_summary:
            lifecycle = previous.lifecycle
        else:
            lifecycle = self._lifecycle(user.summary)
        if previous and same_summary and sealed is previous.sealed:
            older = previous.older_statistics
        else:
            older = _merged([self._summary_statistics(user.summary), *sealed.statistics.values()])
        memory, bos_1H = self._prime(sealed, user.tail, lifecycle)
        taken = set(sealed.positions) & set(previous.sealed.positions if previous else ())
        has_summary = int(lifecycle is not None)
        context = UserContext(
            user=user,
            sealed=sealed,
            lifecycle=lifecycle,
            older_statistics=older,
            statistics=merge_statistics(older, statistics_of(user.tail)),
            memory=memory,
            bos=bos_1H,
        )
        return context, Reused(
            chunks=len(taken),
            chunks_encoded=len(sealed.positions) - len(taken),
            summary=has_summary * same_summary,
            summary_encoded=has_summary * (not same_summary),
        )

    def _sealed(self, user: UserSegments, previous: SealedChunks | None) -> SealedChunks:
        positions = tuple(user.chunks)
        if previous is not None and previous.positions == positions:
            return previous
        chunk_len, width = self._history.chunk_len, self._network.config.layer.width
        new = [p for p in positions if previous is None or p not in previous.positions]
        vectors, keys, statistics = [], [], {}
        if previous is not None:
            kept = [i for i, p in enumerate(previous.positions) if p in user.chunks]
            if kept:  # neighbours: chunks leave at the old end alone
                rows = slice(kept[0] * chunk_len, (kept[-1] + 1) * chunk_len)
                vectors.append(previous.vectors[rows])
                keys.append(previous.indexer_keys[:, rows])
                statistics = {
                    previous.positions[i]: previous.statistics[previous.positions[i]] for i in kept
                }
        for position in new:
            vectors_NH = self._encode_chunks(user.chunks[position])
            vectors.append(vectors_NH)
            keys.append(self._indexer_keys(vectors_NH))
            statistics[position] = statistics_of(user.chunks[position])
        if not vectors:
            nothing_NH = torch.zeros(0, width)
            return SealedChunks((), nothing_NH, self._indexer_keys(nothing_NH), {})
        return SealedChunks(positions, torch.cat(vectors), torch.cat(keys, 1), statistics)

    def _vectors(self, rows: Rows) -> Tensor:
        """Item vectors [1, N, H]."""
        items = to_tensors(rows, self._network.config.features)
        vectors: Tensor = self._network.features(items.unsqueeze())
        return vectors

    def _encode_chunks(self, rows: Rows) -> Tensor:
        """[N, H]: rows that begin with a chunk, encoded."""
        mask = torch.ones(1, len(rows), dtype=torch.bool)
        encoded: Segment = self._mid_term(self._vectors(rows).to(self._dtype), mask)
        return encoded.vectors[0].float()

    def _indexer_keys(self, vectors_NH: Tensor) -> Tensor:
        """Of every block, [L, N, G I]."""
        return torch.stack([block.indexer.keys(vectors_NH) for block in self._blocks])

    def _own(self, summary: Summary | None) -> Summary | None:
        """A summary means something under the bundle that it was made for alone."""
        usable = summary and summary.bundle_version == self._version and summary.count
        return summary if usable else None

    def _summary_statistics(self, summary: Summary | None) -> ItemStatistics:
        own = self._own(summary)
        return (
            decode_statistics(own.item_statistics)
            if own and own.item_statistics
            else empty_statistics()
        )

    def _lifecycle(self, summary: Summary | None) -> Tensor | None:
        own = self._own(summary)
        if own is None:
            return None
        tokens_1EH = torch.from_numpy(own.tokens.copy())[None]
        encoded = self._network.lifecycle.encode(tokens_1EH, torch.ones(1, dtype=torch.bool))
        return self._project(self._lifecycle_weights, encoded.vectors)

    def _prime(
        self, sealed: SealedChunks, tail: Rows, lifecycle: Tensor | None
    ) -> tuple[Memory, Tensor]:
        """BOS through all blocks: it selects what all codes of the request attend to. Returns its final state, too."""
        config = self._network.config
        num_open = max(0, len(tail) - self._history.recent_len)
        open_rows, recent_rows = tail[:num_open], tail[num_open:]
        open_NH = self._encode_chunks(open_rows)
        open_keys_LNI = self._indexer_keys(open_NH)
        real = torch.ones(1, len(recent_rows), dtype=torch.bool)
        recent: Segment = self._recent(self._vectors(recent_rows).to(self._dtype), real)
        num_mid_term = len(sealed.vectors) + len(open_NH)
        sizes = (self._history.recent_len, config.mid_term.top_k, config.lifecycle.num_queries)
        counts = (
            len(recent_rows),
            min(num_mid_term, config.mid_term.top_k),
            0 if lifecycle is None else lifecycle.shape[4],
        )
        masks = tuple(
            additive(torch.arange(size) < count)[None]
            for size, count in zip(sizes, counts, strict=True)
        )
        present_1S = torch.tensor([[float(count > 0) for count in counts]])
        recent_stream = _padded(self._project(self._recent_weights, recent.vectors), sizes[0])
        if lifecycle is None:
            lifecycle = _padded(recent_stream[..., :0, :], sizes[2])
        x_11H = self._network.bos_H[None, None]
        kept, mid_term = [], []
        for i, block in enumerate(self._blocks):
            own = project(block.self_attention, block.self_norm(x_11H))
            kept.append(own[:, :, :, 0])
            x_11H = x_11H + block.self_attention.out(own[:, 1, :, 0].flatten(1))[:, None]
            keys_MI = (sealed.indexer_keys[i], open_keys_LNI[i])
            selected_KH = self._select(block, x_11H, keys_MI, (sealed.vectors, open_NH))
            selected = self._project(self._mid_term_weights[i], selected_KH[None])[:, 0]
            mid_term.append(_padded(selected, sizes[1]))
            of_block = [recent_stream[:, i], mid_term[-1], lifecycle[:, i]]
            x_11H = self._fused.fused_blocks()[i].attend_to_streams(
                x_11H, of_block, masks, present_1S
            )
        memory = Memory(
            torch.stack(kept, 1),
            (recent_stream, torch.stack(mid_term, 1), lifecycle),
            (masks[0], masks[1], masks[2]),
            present_1S,
        )
        return memory, self._fused.normed(x_11H)[:, 0]

    def _select(
        self, block: DecoderBlock, x_11H: Tensor, keys: Sequence[Tensor], vectors: Sequence[Tensor]
    ) -> Tensor:
        """[K, H]: the interactions that the block's indexer picks; all where there are no more than top-k."""
        top_k = block.indexer.config.top_k
        if sum(map(len, vectors)) <= top_k:
            return torch.cat(list(vectors))
        query = block.indexer_query(x_11H[:, 0])
        scores_M = torch.cat([block.indexer.score(query, part[None])[0] for part in keys])
        chosen_K = scores_M.topk(top_k).indices
        num_sealed = len(vectors[0])
        if not num_sealed:
            return vectors[1][chosen_K]
        from_sealed = vectors[0][chosen_K.clamp(max=num_sealed - 1)]
        if not len(vectors[1]):
            return from_sealed
        from_open = vectors[1][(chosen_K - num_sealed).clamp(min=0)]
        return torch.where((chosen_K < num_sealed)[:, None], from_sealed, from_open)

    def _project(self, weights: Tensor, vectors_1NH: Tensor) -> Tensor:
        """[1, L', 2, A, N, C]: keys and values under stacked weights [L' 2 H, H]."""
        width, heads = weights.shape[1], self._network.config.layer.num_heads
        both = vectors_1NH[0].to(self._dtype) @ weights.T
        num_blocks = len(weights) // (2 * width)
        parted = both.view(len(both), num_blocks, 2, heads, width // heads).float()
        return parted.permute(1, 2, 3, 0, 4).contiguous()[None]


def _comparable(one: UserSegments, other: UserSegments) -> bool:
    return (one.meta.epoch, one.hole_end) == (other.meta.epoch, other.hole_end)


def _boundary(user: UserSegments) -> tuple[str, int]:
    summary = user.summary
    return (summary.bundle_version, summary.boundary) if summary else ("", 0)


def _merged(parts: Sequence[ItemStatistics]) -> ItemStatistics:
    merged = empty_statistics()
    for part in parts:
        merged = merge_statistics(merged, part)
    return merged


def _padded(projected: Tensor, size: int) -> Tensor:
    """[..., N, C] to N = `size`."""
    return functional.pad(projected, (0, 0, 0, size - projected.shape[-2]))


Module = TypeVar("Module", bound=nn.Module)


def _in_precision(module: Module, dtype: torch.dtype) -> Module:
    """A copy; norms keep float32's epsilon, as bfloat16's own would be felt."""
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if isinstance(part, nn.RMSNorm):
            part.eps = EPSILON
    return copied.to(dtype)


def empty_memory(bundle: Bundle) -> Memory:
    """Of a user without any history: what the memory of all has the sizes of."""
    config, history = bundle.network.config, bundle.history
    blocks, heads = config.num_blocks, config.layer.num_heads
    head_width = config.layer.width // heads
    sizes = (history.recent_len, config.mid_term.top_k, config.lifecycle.num_queries)
    streams = [torch.zeros(1, blocks, 2, heads, size, head_width) for size in sizes]
    masks = [additive(torch.zeros(1, size, dtype=torch.bool)) for size in sizes]
    bos = torch.zeros(1, blocks, 2, heads, head_width)
    return Memory(
        bos, (streams[0], streams[1], streams[2]), (masks[0], masks[1], masks[2]), torch.zeros(1, 3)
    )
