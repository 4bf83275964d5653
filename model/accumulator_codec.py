"""Bytes of `Summary.accumulators`.

Without kept keys (delta `self` or `none`):

offset  size  field
0       4     "GMQ1": magic and layout version
4       2     layers L, little-endian, as everything here
6       2     heads A
8       2     head width C
10      n     L * A * C * C float64: Z = sum_t phi(K x_t)^T (V x_t)

With kept keys (delta `top_r`):

offset  size  field
0       4     "GMQ2"
4       10    L, A, C, queries E, kept keys per query R: 2 bytes each
14      n     float64: Z as above; L * A * E masses; L * A * E * R scores, -inf where nothing is kept
...     n     float32: L * A * E * R * C numbers of keys, then as many of values
"""

import struct
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from model.accumulators import Accumulators, from_tensors
from model.errors import SummaryError
from model.layers import LayerConfig
from model.lifecycle import LifecycleConfig

_PLAIN, _WITH_KEYS = (b"GMQ1", struct.Struct("<4s3H")), (b"GMQ2", struct.Struct("<4s5H"))


@dataclass(frozen=True)
class AccumulatorLayout:
    """The sizes of one bundle's accumulators; `kept` is 0 unless delta is `top_r`."""

    layers: int
    heads: int
    head_width: int
    queries: int
    kept: int

    @staticmethod
    def of(layer: LayerConfig, lifecycle: LifecycleConfig) -> "AccumulatorLayout":
        """That of a network's lifecycle stream."""
        return AccumulatorLayout(
            layers=lifecycle.num_layers,
            heads=layer.num_heads,
            head_width=layer.width // layer.num_heads,
            queries=lifecycle.num_queries,
            kept=lifecycle.top_r if lifecycle.delta == "top_r" else 0,
        )

    @property
    def num_bytes(self) -> int:
        """What `encode` gives, whatever the sums."""
        return len(self._header()) + self._num_payload_bytes

    @property
    def _num_payload_bytes(self) -> int:
        return sum(prod(shape) * int(dtype[2:]) for shape, dtype in self._parts())

    def empty(self) -> Accumulators:
        """Of no interaction."""
        parts = self._read(bytes(self._num_payload_bytes), 0)
        if self.kept:
            parts[2].fill_(-torch.inf)
        return from_tensors(parts)

    def encode(self, sums: Accumulators) -> bytes:
        """[1, L, ...] to bytes."""
        parts = zip(sums.tensors(), self._parts(), strict=True)
        return self._header() + b"".join(
            tensor.numpy().astype(dtype).tobytes() for tensor, (_, dtype) in parts
        )

    def decode(self, data: bytes) -> Accumulators:
        """Inverse of `encode`. Raises SummaryError for another layout."""
        header, num_bytes = self._header(), self.num_bytes
        if len(data) != num_bytes or data[: len(header)] != header:
            raise SummaryError(
                f"accumulators have {len(data)} bytes and header {data[: len(header)]!r}; expected are {num_bytes} "
                f"bytes and header {header!r}; compress the history again from its start"
            )
        return from_tensors(self._read(data, len(header)))

    def _header(self) -> bytes:
        sizes = (self.layers, self.heads, self.head_width)
        if not self.kept:
            return _PLAIN[1].pack(_PLAIN[0], *sizes)
        return _WITH_KEYS[1].pack(_WITH_KEYS[0], *sizes, self.queries, self.kept)

    def _parts(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each tensor, in the order of the bytes."""
        lead = (1, self.layers, self.heads)
        parts: list[tuple[tuple[int, ...], str]] = [
            ((*lead, self.head_width, self.head_width), "<f8")
        ]
        if self.kept:
            slots = (*lead, self.queries, self.kept)
            vectors = (*slots, self.head_width)
            parts += [(slots[:-1], "<f8"), (slots, "<f8"), (vectors, "<f4"), (vectors, "<f4")]
        return parts

    def _read(self, data: bytes, offset: int) -> list[Tensor]:
        tensors = []
        for shape, dtype in self._parts():
            part = np.frombuffer(data, dtype, prod(shape), offset)
            tensors.append(torch.from_numpy(part.reshape(shape).copy()))
            offset += part.nbytes
        return tensors
