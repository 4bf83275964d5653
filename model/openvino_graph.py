"""The fused decoder as a graph of OpenVINO's operators, built from its weights for fixed sizes.

The same walk as FusedDecoder.forward, which tests hold it to. Built by hand since tracing takes seconds at every start.

Shapes: B contexts, W beams, L blocks, S = 3 streams, N keys of a stream, P codes of a sequence from BOS on, H width,
A heads, C = H / A, F feed-forward width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from torch import Tensor

from model.engine_config import Precision
from model.fused_decoder import EPSILON, FusedBlock, FusedDecoder

Node = Any
"""A node's output; OpenVINO has no narrower type for what its operators take."""


def build_graph(
    fused: FusedDecoder, shapes: Sequence[Sequence[int]], precision: Precision
) -> ov.Model:
    """A model with the inputs of FusedDecoder.forward, of these shapes, and its outputs.

    States and mask are float32; keys and values come in and go out in `precision`, as they are kept.
    """
    kept_type = {"fp32": ov.Type.f32, "bf16": ov.Type.bf16}[precision]
    types = [ov.Type.f32, kept_type, ov.Type.f32, *[kept_type] * (len(shapes) - 3)]
    inputs = [ops.parameter(list(shape), one) for shape, one in zip(shapes, types, strict=True)]
    x_BWH, own, mask_P, bos, *memory = inputs[0], *(_float(one) for one in inputs[1:])
    streams, masks, present_BS = memory[:3], memory[3:6], memory[6]
    batch, width, _ = shapes[0]
    present = _reshape(
        ops.broadcast(
            ops.unsqueeze(ops.transpose(present_BS, _ints(1, 0)), _ints(2)),
            _ints(len(streams), batch, width),
        ),
        len(streams),
        batch * width,
        1,
    )
    masks = [ops.unsqueeze(mask, _ints(1, 2)) for mask in masks]
    kept = []
    for i, block in enumerate(fused.fused_blocks()):
        walk = _Block(block, batch, width)
        x_BWH, key_value = walk.attend_to_codes(x_BWH, _at(bos, i, 1), _at(own, i, 0), mask_P)
        of_block = [_at(stream, i, 1) for stream in streams]
        x_BWH = walk.attend_to_streams(x_BWH, of_block, masks, present)
        kept.append(ops.unsqueeze(key_value, _ints(0)))
    states = ops.multiply(_rms(x_BWH), _weights(fused.norm_H))
    kept_out = ops.convert(ops.concat(kept, 0), kept_type)
    return ov.Model([states, kept_out], inputs, "fused_decoder")


class _Block:
    """One block's walk."""

    def __init__(self, block: FusedBlock, batch: int, width: int) -> None:
        self._block = block
        self._batch, self._width = batch, width
        self._heads = block.num_heads
        self._hidden = block.self_out.weight.shape[0]
        self._scale = _number((self._hidden // self._heads) ** -0.5)

    def attend_to_codes(
        self, x_BWH: Node, bos_B2AC: Node, own: Node, mask_P: Node
    ) -> tuple[Node, Node]:
        batch, width, heads = self._batch, self._width, self._heads
        head_width = self._hidden // heads
        projected = _linear(_rms(x_BWH), self._block.to_query_key_value.weight)
        projected = _reshape(projected, batch, width, 3, heads, head_width)
        query, key, value = _split(projected, 2, 3)
        key_value = ops.concat([key, value], 2)
        first = ops.broadcast(
            ops.unsqueeze(bos_B2AC, _ints(1, 2)), _ints(batch, width, 1, 2, heads, head_width)
        )
        joined = ops.concat([first, own, ops.unsqueeze(key_value, _ints(2))], 2)
        keys, values = (ops.squeeze(part, _ints(3)) for part in _split(joined, 3, 2))
        met_BWPA = ops.reduce_sum(ops.multiply(query, keys), _ints(4))
        logits = ops.add(ops.multiply(met_BWPA, self._scale), ops.unsqueeze(mask_P, _ints(1)))
        weights = ops.unsqueeze(ops.softmax(logits, 2), _ints(4))
        mixed = ops.reduce_sum(ops.multiply(weights, values), _ints(2))
        mixed_BWH = _reshape(mixed, batch, width, self._hidden)
        return ops.add(x_BWH, _linear(mixed_BWH, self._block.self_out.weight)), key_value

    def attend_to_streams(
        self, x_BWH: Node, streams: Sequence[Node], masks: Sequence[Node], present: Node
    ) -> Node:
        batch, width, block = self._batch, self._width, self._block
        num_rows, num_streams = batch * width, len(streams)
        queries = _linear(_rms(x_BWH), block.to_queries.weight)
        queries = _reshape(queries, batch, width, num_streams, self._heads, -1)
        queries_SBAWC = _split(ops.transpose(queries, _ints(2, 0, 3, 1, 4)), 0, num_streams)
        mixed = [
            self._attend(ops.squeeze(query, _ints(0)), stream, mask)
            for query, stream, mask in zip(queries_SBAWC, streams, masks, strict=True)
        ]
        mixed_SBAWC = ops.concat([ops.unsqueeze(one, _ints(0)) for one in mixed], 0)
        rows_SNH = _reshape(
            ops.transpose(mixed_SBAWC, _ints(0, 1, 3, 2, 4)), num_streams, num_rows, self._hidden
        )
        attended = ops.matmul(rows_SNH, _weights(block.out_SHH), False, False)
        attended_SNH = ops.multiply(attended, present)
        x_NH = _reshape(x_BWH, num_rows, self._hidden)
        inner = ops.matmul(
            _rms(ops.add(x_NH, attended_SNH)), _weights(block.inner_SHF), False, False
        )
        gate, up = _split(inner, 2, 2)
        inner_SNF = ops.multiply(ops.multiply(ops.swish(gate), up), present)
        inner_NF = _reshape(ops.transpose(inner_SNF, _ints(1, 0, 2)), num_rows, -1)
        update = ops.add(
            ops.reduce_sum(attended_SNH, _ints(0)), _linear(inner_NF, block.outer.weight)
        )
        states = ops.add(ops.multiply(x_NH, _number(block.residual_weight)), update)
        return _reshape(states, batch, width, self._hidden)

    def _attend(self, query_BAWC: Node, key_value_B2ANC: Node, mask: Node) -> Node:
        key, value = (ops.squeeze(part, _ints(1)) for part in _split(key_value_B2ANC, 1, 2))
        met = ops.matmul(query_BAWC, key, False, True)
        weights = ops.softmax(ops.add(ops.multiply(met, self._scale), mask), 3)
        return ops.matmul(weights, value, False, False)


def _float(x: Node) -> Node:
    """The graph is written in float32; where it runs in bf16, nothing is converted."""
    return ops.convert(x, np.float32)


def _rms(x: Node) -> Node:
    mean = ops.reduce_mean(ops.multiply(x, x), _ints(-1), True)
    return ops.multiply(x, ops.power(ops.add(mean, _number(EPSILON)), _number(-0.5)))


def _linear(x: Node, weight_OI: Tensor) -> Node:
    return ops.matmul(x, _weights(weight_OI), False, True)


def _split(x: Node, axis: int, parts: int) -> list[Node]:
    return list(ops.split(x, ops.constant(axis, np.int64), parts).outputs())


def _at(x: Node, index: int, axis: int) -> Node:
    return ops.gather(x, ops.constant(index, np.int64), ops.constant(axis, np.int64))


def _reshape(x: Node, *shape: int) -> Node:
    return ops.reshape(x, _ints(*shape), False)


def _weights(tensor: Tensor) -> Node:
    return ops.constant(np.ascontiguousarray(tensor.detach().numpy()))


def _number(value: float) -> Node:
    return ops.constant(np.float32(value))


def _ints(*values: int) -> Node:
    return ops.constant(np.array(values, np.int64))
