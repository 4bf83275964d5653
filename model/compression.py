"""Chunks to accumulators to tokens, and to item statistics: a user's lifecycle segment, rolled forward chunk by chunk.

Bytes of `Summary.accumulators`:

offset  size  field
0       4     "GMQ1": magic and layout version
4       2     layers, little-endian
6       2     heads
8       2     head width C
10      n     layers * heads * C * C little-endian float64: Z = sum_t phi(K x_t)^T (V x_t)
"""

import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.bundle import Bundle
from model.errors import SummaryError
from model.features import to_tensors
from state.interaction import Rows
from state.item_statistics import bounded, empty_statistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics, encode_statistics
from state.summary import Summary

_MAGIC = b"GMQ1"
_HEADER = struct.Struct("<4sHHH")


class Compressor:
    """Rolls summaries of one bundle forward."""

    def __init__(self, bundle: Bundle) -> None:
        """The bundle's network does the work."""
        self.bundle_version = bundle.version
        self._network = bundle.network
        layer, lifecycle = bundle.network.config.layer, bundle.network.config.lifecycle
        head_width = layer.width // layer.num_heads
        self._shape = (lifecycle.num_layers, layer.num_heads, head_width, head_width)

    @torch.inference_mode()
    def roll(
        self, base: Summary | None, chunks: Sequence[Rows], end_boundary: int, now_ms: int
    ) -> Summary:
        """Add `chunks`, oldest first, to `base`; the new summary covers [0, end_boundary).

        Each chunk's contribution is computed by itself and added in order, in float64, so that the result does not
        depend on how chunks are grouped into calls. Costs the chunks, not the history. Raises SummaryError when `base`
        is of another bundle or layout.
        """
        state, count = self._unpack(base)
        for chunk in chunks:
            if len(chunk):
                state = state + self._contribution(chunk)
                count += len(chunk)
        tokens = self._network.lifecycle.tokens(state[None], torch.tensor([count]))[0]
        return Summary(
            bundle_version=self.bundle_version,
            boundary=end_boundary,
            count=count,
            accumulators=_HEADER.pack(_MAGIC, *self._shape[:3]) + state.numpy().tobytes(),
            tokens=tokens.numpy().astype(np.float32),
            built_at_ms=now_ms,
            item_statistics=self._item_statistics(base, chunks),
        )

    def _item_statistics(self, base: Summary | None, chunks: Sequence[Rows]) -> bytes:
        """Bounded after each chunk, so that the grouping of chunks changes nothing.

        A base without them stays so: what was dropped from its chunks would be missing without a trace.
        """
        if base is not None and not base.item_statistics:
            return b""
        statistics = decode_statistics(base.item_statistics) if base else empty_statistics()
        for chunk in chunks:
            statistics = merge_statistics(statistics, statistics_of(chunk))
            statistics = bounded(statistics, self._network.config.repeats.max_items)
        return encode_statistics(statistics)

    def _contribution(self, chunk: Rows) -> Tensor:
        items = to_tensors(chunk, self._network.config.features)
        return self._network.lifecycle.accumulate_exactly(self._network.features(items))

    def _unpack(self, base: Summary | None) -> tuple[Tensor, int]:
        if base is None:
            return torch.zeros(self._shape, dtype=torch.float64), 0
        if base.bundle_version != self.bundle_version:
            raise SummaryError(
                f"the summary is of bundle {base.bundle_version}, the compressor of {self.bundle_version}; "
                "compress the history again from its start"
            )
        data = base.accumulators
        expected = (_MAGIC, *self._shape[:3])
        num_bytes = _HEADER.size + 8 * int(np.prod(self._shape))
        if len(data) != num_bytes or _HEADER.unpack_from(data) != expected:
            raise SummaryError(
                f"accumulators have {len(data)} bytes and header {data[: _HEADER.size]!r}; "
                f"expected are {num_bytes} bytes and header {expected}"
            )
        state = np.frombuffer(data, "<f8", offset=_HEADER.size).reshape(self._shape)
        return torch.from_numpy(state.copy()), base.count
