"""Encoded segments to what the decoder attends to: keys and values of every block, and the BOS state that chose them.

Shapes: M mid-term interactions, K selected, R recent, N keys, L blocks, H width, A heads, C = H / A, G I indexer keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from model.bundle import Bundle
from model.decoder import DecoderBlock
from model.engine import DTYPES
from model.engine_config import Precision
from model.fused_decoder import FusedDecoder, Memory, additive, project
from model.user_context import SealedChunks


class Primer:
    """Does what one user's decoding needs once, whatever the number of beams."""

    def __init__(
        self, bundle: Bundle, fused: FusedDecoder, precision: Precision, device: torch.device
    ) -> None:
        """`fused` holds the network's decoder; `precision` is of matrix products, and of what is kept; `device` of memory."""
        config, network = bundle.network.config, bundle.network
        self._fused = fused
        self._dtype, self._device = DTYPES[precision], device
        self._bos_H = network.bos_H
        self._num_heads = config.layer.num_heads
        self._sizes = memory_sizes(bundle)
        self._blocks: list[DecoderBlock] = list(network.decoder.blocks)  # type: ignore[arg-type]
        branches = [(block.recent, block.mid_term, block.lifecycle) for block in self._blocks]
        weights = [[b.attention.to_key_value.weight.to(self._dtype) for b in of] for of in branches]
        self._recent_weights, _, self._lifecycle_weights = map(
            torch.cat, zip(*weights, strict=True)
        )
        self._mid_term_weights = [of_block[1] for of_block in weights]

    def indexer_keys(self, vectors_NH: Tensor) -> Tensor:
        """Of every block, [L, N, G I]."""
        vectors_NH = vectors_NH.float()
        keys_LNI = torch.stack([block.indexer.keys(vectors_NH) for block in self._blocks])
        return keys_LNI.to(self._dtype)

    def project_lifecycle(self, tokens_1EH: Tensor) -> Tensor:
        """[1, L, 2, A, E, C]: keys and values of encoded tokens in every block."""
        return self._project(self._lifecycle_weights, tokens_1EH)

    def prime(
        self, sealed: SealedChunks, newest: tuple[Tensor, Tensor], lifecycle: Tensor | None
    ) -> tuple[Memory, Tensor]:
        """BOS through all blocks: it selects what all codes of the request attend to. Returns its final state, too."""
        open_NH, recent_RH = newest
        open_keys_LNI = self.indexer_keys(open_NH)
        sizes = self._sizes
        num_mid_term = len(sealed.vectors) + len(open_NH)
        counts = (
            len(recent_RH),
            min(num_mid_term, sizes[1]),
            0 if lifecycle is None else lifecycle.shape[4],
        )
        masks = tuple(
            additive(torch.arange(size) < count)[None]
            for size, count in zip(sizes, counts, strict=True)
        )
        present_1S = torch.tensor([[float(count > 0) for count in counts]])
        recent_stream = _padded(self._project(self._recent_weights, recent_RH[None]), sizes[0])
        if lifecycle is None:
            lifecycle = _padded(recent_stream[..., :0, :], sizes[2])
        x_11H = self._bos_H[None, None]
        kept, mid_term = [], []
        for i, block in enumerate(self._blocks):
            own = project(block.self_attention, block.self_norm(x_11H))
            kept.append(own[:, :, :, 0])
            x_11H = x_11H + block.self_attention.out(own[:, 1, :, 0].flatten(1))[:, None]
            keys_MI = (sealed.indexer_keys[i], open_keys_LNI[i])
            selected_KH = self._select(block, x_11H, keys_MI, (sealed.vectors, open_NH))
            selected = self._project(self._mid_term_weights[i], selected_KH[None])[:, 0]
            mid_term.append(_padded(selected, sizes[1]))
            of_block = [one.float() for one in (recent_stream[:, i], mid_term[-1], lifecycle[:, i])]
            x_11H = self._fused.fused_blocks()[i].attend_to_streams(
                x_11H, of_block, masks, present_1S
            )
        memory = Memory(
            torch.stack(kept, 1),
            (recent_stream, torch.stack(mid_term, 1), lifecycle),
            (masks[0], masks[1], masks[2]),
            present_1S,
        ).to(self._dtype, self._device)
        return memory, self._fused.normed(x_11H)[:, 0]

    def _select(
        self, block: DecoderBlock, x_11H: Tensor, keys: Sequence[Tensor], vectors: Sequence[Tensor]
    ) -> Tensor:
        """[K, H]: the interactions that the block's indexer picks; all where there are no more than top-k."""
        top_k = block.indexer.config.top_k
        if sum(map(len, vectors)) <= top_k:
            return torch.cat(list(vectors))
        query = block.indexer_query(x_11H[:, 0])
        scores_M = torch.cat([block.indexer.score(query, part[None].float())[0] for part in keys])
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
        width, heads = weights.shape[1], self._num_heads
        both = vectors_1NH[0].to(self._dtype) @ weights.T
        num_blocks = len(weights) // (2 * width)
        parted = both.view(len(both), num_blocks, 2, heads, width // heads)
        return parted.permute(1, 2, 3, 0, 4).contiguous()[None]


def memory_sizes(bundle: Bundle) -> tuple[int, int, int]:
    """Keys of the three streams, the same for all users: shorter ones are filled up."""
    config = bundle.network.config
    return bundle.history.recent_len, config.mid_term.top_k, config.lifecycle.num_queries


def empty_memory(bundle: Bundle) -> Memory:
    """Of a user without any history: what the memory of all has the sizes of."""
    config, sizes = bundle.network.config, memory_sizes(bundle)
    blocks, heads = config.num_blocks, config.layer.num_heads
    head_width = config.layer.width // heads
    streams = [torch.zeros(1, blocks, 2, heads, size, head_width) for size in sizes]
    masks = [additive(torch.zeros(1, size, dtype=torch.bool)) for size in sizes]
    bos = torch.zeros(1, blocks, 2, heads, head_width)
    return Memory(
        bos, (streams[0], streams[1], streams[2]), (masks[0], masks[1], masks[2]), torch.zeros(1, 3)
    )


def _padded(projected: Tensor, size: int) -> Tensor:
    """[..., N, C] to N = `size`."""
    return functional.pad(projected, (0, 0, 0, size - projected.shape[-2]))
