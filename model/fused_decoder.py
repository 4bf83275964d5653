"""The decoder for generation: context projected once, one step per code level, as few and as large operators as possible.

The same mathematics as model/decoder.py, which is its slow twin: norms are folded into the projections behind them, the
three branches share their products, and keys and values of what a code attends to are kept.

Shapes: B contexts, W beams, L blocks, S = 3 streams, N keys of a stream, P codes of a sequence from BOS on, H width, A heads, C = H / A,
F feed-forward width.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.decoder import Decoder, DecoderBlock, StreamBranch
from model.layers import Attention

EPSILON = float(torch.finfo(torch.float32).eps)
_NEVER = -1e9


@dataclass(frozen=True)
class Memory:
    """What the codes of some contexts attend to, projected for every block; all contexts have the same sizes."""

    bos: Tensor
    """[B, L, 2, A, C]: self-attention's key and value of BOS."""
    streams: tuple[Tensor, Tensor, Tensor]
    """[B, L, 2, A, N, C]: keys and values of the recent, the selected mid-term and the lifecycle interactions."""
    masks: tuple[Tensor, Tensor, Tensor]
    """[B, N]: added to attention's logits; 0 where there is an interaction."""
    present: Tensor
    """[B, S]: 1 where a stream holds anything."""

    @staticmethod
    def join(memories: Sequence["Memory"]) -> "Memory":
        """Contexts side by side."""
        if len(memories) == 1:
            return memories[0]
        return Memory._of(
            [torch.cat(parts) for parts in zip(*(m.tensors for m in memories), strict=True)]
        )

    def part(self, contexts: slice) -> "Memory":
        """Some of the contexts."""
        parts = [tensor[contexts] for tensor in self.tensors]
        return Memory._of(parts)

    def to(self, dtype: torch.dtype, device: torch.device) -> "Memory":
        """In another precision, elsewhere."""
        if (self.bos.dtype, self.bos.device) == (dtype, device):
            return self
        return Memory._of([tensor.to(device, dtype) for tensor in self.tensors])

    @staticmethod
    def _of(parts: Sequence[Tensor]) -> "Memory":
        streams, masks = (parts[1], parts[2], parts[3]), (parts[4], parts[5], parts[6])
        return Memory(parts[0], streams, masks, parts[7])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of it, in the order of the fields."""
        return (self.bos, *self.streams, *self.masks, self.present)


class FusedBlock(nn.Module):
    """One decoder block with joined weights."""

    def __init__(self, block: DecoderBlock) -> None:
        """Weights are copied: a later change of the block's does not reach this one."""
        super().__init__()
        branches: list[StreamBranch] = [block.recent, block.mid_term, block.lifecycle]
        own = block.self_attention
        self.num_heads = own.num_heads
        self.residual_weight = block.residual_weight
        joined_HQ = torch.cat([own.to_query.weight, own.to_key_value.weight])
        self.to_query_key_value = _linear(joined_HQ * block.self_norm.weight)
        self.self_out = _linear(own.out.weight)
        self.to_queries = _linear(
            torch.cat([b.attention.to_query.weight * b.query_norm.weight for b in branches])
        )
        self.out_SHH = _frozen(torch.stack([b.attention.out.weight.T for b in branches]))
        self.inner_SHF = _frozen(
            torch.stack([(b.ffn.inner.weight * b.ffn_norm.weight).T for b in branches])
        )
        self.outer = _linear(torch.cat([b.ffn.outer.weight for b in branches], 1))

    def attend_to_codes(
        self, x_BWH: Tensor, bos_B2AC: Tensor, own: Tensor, mask_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Self-attention over BOS, earlier codes and the code itself, P in all; `mask` is added to the logits.

        `own` [B, W, P - 2, 2, A, C] are keys and values of earlier codes. Returns the states and the code's own key and
        value [B, W, 2, A, C].
        """
        batch, width, _ = x_BWH.shape
        projected = self.to_query_key_value(_normed(x_BWH)).view(
            batch, width, 3, self.num_heads, -1
        )
        query, key_value = projected[:, :, 0], projected[:, :, 1:]
        first = bos_B2AC[:, None, None].expand(batch, width, 1, *bos_B2AC.shape[1:])
        keys, values = torch.cat([first, own, key_value[:, :, None]], 2).unbind(3)
        logits_BWPA = (query[:, :, None] * keys).sum(-1) * query.shape[-1] ** -0.5
        weights = (logits_BWPA + mask_P[:, None]).softmax(2)
        mixed = (weights[..., None] * values).sum(2)
        return x_BWH + self.self_out(mixed.flatten(2)), key_value

    def attend_to_streams(
        self, x_BWH: Tensor, streams: Sequence[Tensor], masks: Sequence[Tensor], present_BS: Tensor
    ) -> Tensor:
        """The three branches at once; `streams` are keys and values [B, 2, A, N, C] of this block."""
        batch, width, hidden = x_BWH.shape
        queries = self.to_queries(_normed(x_BWH)).view(batch, width, 3, self.num_heads, -1)
        mixed = [
            functional.scaled_dot_product_attention(
                queries[:, :, i].transpose(1, 2),
                stream[:, 0],
                stream[:, 1],
                attn_mask=mask[:, None, None],
            )
            for i, (stream, mask) in enumerate(zip(streams, masks, strict=True))
        ]
        rows_SNH = torch.stack(mixed).transpose(2, 3).reshape(3, batch * width, hidden)
        present_SN1 = present_BS.T[:, :, None].expand(3, batch, width).reshape(3, -1, 1)
        attended_SNH = torch.bmm(rows_SNH, self.out_SHH) * present_SN1
        x_NH = x_BWH.reshape(-1, hidden)
        gate, up = torch.bmm(_normed(x_NH + attended_SNH), self.inner_SHF).chunk(2, -1)
        inner_SNF = functional.silu(gate) * up * present_SN1
        update = attended_SNH.sum(0) + self.outer(inner_SNF.transpose(0, 1).flatten(1))
        return (self.residual_weight * x_NH + update).view(batch, width, hidden)


class FusedDecoder(nn.Module):
    """One step of all blocks: codes in, states that predict the next level out."""

    def __init__(self, decoder: Decoder) -> None:
        """Weights are copied."""
        super().__init__()
        self.blocks = nn.ModuleList(FusedBlock(block) for block in decoder.blocks)  # type: ignore[arg-type]
        self.norm_H = _frozen(decoder.norm.weight)

    def forward(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, *memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Embedded codes [B, W, H] and keys and values of earlier ones, `own` [L, B, W, P - 2, 2, A, C].

        `mask` [P] hides places of `own` that hold nothing; `memory` is a Memory's `tensors`. Returns states [B, W, H] and
        the codes' own keys and values [L, B, W, 2, A, C].
        """
        bos, streams, masks, present_BS = memory[0], memory[1:4], memory[4:7], memory[7]
        kept = []
        for i, block in enumerate(self.fused_blocks()):
            x_BWH, key_value = block.attend_to_codes(x_BWH, bos[:, i], own[i], mask_P)
            of_block = [stream[:, i] for stream in streams]
            x_BWH = block.attend_to_streams(x_BWH, of_block, masks, present_BS)
            kept.append(key_value)
        return self.normed(x_BWH), torch.stack(kept)

    def copied_to(self, dtype: torch.dtype, device: torch.device) -> "FusedDecoder":
        """A copy with weights of another precision, elsewhere."""
        return copy.deepcopy(self).to(device, dtype)

    def fused_blocks(self) -> list[FusedBlock]:
        """The blocks, first to last."""
        return list(self.blocks)  # type: ignore[arg-type]

    def normed(self, x: Tensor) -> Tensor:
        """The final norm."""
        return _normed(x) * self.norm_H


def project(attention: Attention, vectors_BNH: Tensor) -> Tensor:
    """[B, 2, A, N, C]: a branch's keys and values of encoded vectors."""
    batch, num_keys, width = vectors_BNH.shape
    heads = attention.num_heads
    both = attention.to_key_value(vectors_BNH).view(batch, num_keys, 2, heads, width // heads)
    return both.permute(0, 2, 3, 1, 4)


def additive(mask_BN: Tensor) -> Tensor:
    """0 where true, else so little that softmax leaves nothing."""
    return torch.zeros(mask_BN.shape).masked_fill_(~mask_BN, _NEVER)


def _normed(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], eps=EPSILON)


def _linear(weight_OI: Tensor) -> nn.Linear:
    linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0], bias=False, device="meta")
    linear.weight = _frozen(weight_OI)
    return linear


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone().contiguous(), requires_grad=False)
