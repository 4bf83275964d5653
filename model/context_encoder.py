"""Users to contexts, as little as possible: what stays valid of an earlier context is taken over.

Sealed chunks are encoded once, the summary's tokens once per summary, recent interactions and the open chunk once per
state version. Shapes: M mid-term interactions, K selected, N keys, L blocks, H width, A heads, C = H / A, G I indexer keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from model.bundle import Bundle
from model.decoder import DecoderBlock
from model.features import to_tensors
from model.fused_decoder import FusedDecoder, Memory, additive, project
from model.user_context import Reused, SealedChunks, UserContext
from state.interaction import Rows
from state.item_statistics import ItemStatistics, empty_statistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics
from state.summary import Summary
from state.user_delta import UserSegments


class ContextEncoder:
    """Encodes users for one bundle. Not thread-safe with others that change its bundle's network; nobody does."""

    def __init__(self, bundle: Bundle, fused: FusedDecoder) -> None:
        """`fused` holds the network's decoder."""
        self._network = bundle.network
        self._history = bundle.history
        self._version = bundle.version
        self._fused = fused
        self._blocks: list[DecoderBlock] = list(bundle.network.decoder.blocks)  # type: ignore[arg-type]

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
            vectors_NH = self._mid_term(user.chunks[position])
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

    def _mid_term(self, rows: Rows) -> Tensor:
        """[N, H]: rows that begin with a chunk, encoded."""
        mask = torch.ones(1, len(rows), dtype=torch.bool)
        vectors: Tensor = self._network.mid_term(self._vectors(rows), mask).vectors
        return vectors[0]

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
        return torch.stack(
            [project(block.lifecycle.attention, encoded.vectors) for block in self._blocks], 1
        )

    def _prime(
        self, sealed: SealedChunks, tail: Rows, lifecycle: Tensor | None
    ) -> tuple[Memory, Tensor]:
        """BOS through all blocks: it selects what all codes of the request attend to. Returns its final state, too."""
        network, config = self._network, self._network.config
        num_open = max(0, len(tail) - self._history.recent_len)
        open_rows, recent_rows = tail[:num_open], tail[num_open:]
        open_NH = self._mid_term(open_rows)
        open_keys_LNI = self._indexer_keys(open_NH)
        recent = network.recent(
            self._vectors(recent_rows), torch.ones(1, len(recent_rows), dtype=torch.bool)
        )
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
        x_11H = network.bos_H[None, None]
        kept, streams = [], []
        for i, block in enumerate(self._blocks):
            own = project(block.self_attention, block.self_norm(x_11H))
            kept.append(own[:, :, :, 0])
            x_11H = x_11H + block.self_attention.out(own[:, 1, :, 0].flatten(1))[:, None]
            keys_MI = (sealed.indexer_keys[i], open_keys_LNI[i])
            selected_KH = self._select(block, x_11H, keys_MI, (sealed.vectors, open_NH))
            of_block = [
                _padded(project(block.recent.attention, recent.vectors), sizes[0]),
                _padded(project(block.mid_term.attention, selected_KH[None]), sizes[1]),
                self._lifecycle_of_block(lifecycle, i, sizes[2]),
            ]
            x_11H = self._fused.fused_blocks()[i].attend_to_streams(
                x_11H, of_block, masks, present_1S
            )
            streams.append(of_block)
        joined = [torch.stack(parts, 1) for parts in zip(*streams, strict=True)]
        memory = Memory(
            torch.stack(kept, 1),
            (joined[0], joined[1], joined[2]),
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

    def _lifecycle_of_block(self, lifecycle: Tensor | None, block: int, size: int) -> Tensor:
        if lifecycle is not None:
            return _padded(lifecycle[:, block], size)
        layer = self._network.config.layer
        heads = layer.num_heads
        return torch.zeros(1, 2, heads, size, layer.width // heads)


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
    """[B, 2, A, N, C] to N = `size`."""
    return functional.pad(projected, (0, 0, 0, size - projected.shape[3]))
