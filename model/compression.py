"""Summaries of one bundle: rolled forward chunk by chunk, merged from parts, relieved of what must be forgotten."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.accumulator_codec import AccumulatorLayout
from model.accumulators import Accumulators, TopKeys, exp_score
from model.bundle import Bundle
from model.errors import RescanNeeded, SummaryError
from model.features import to_tensors
from state.interaction import Rows
from state.summary import Summary

_SCORE_TOLERANCE = 1e-4
"""Relative; float32 projections of one item differ by some 1e-6 with the shape of the batch it is in."""


class Compressor:
    """The additive summaries of one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        """The bundle's network does the work."""
        self.bundle_version = bundle.version
        self.network = bundle.network
        layer, lifecycle = bundle.network.config.layer, bundle.network.config.lifecycle
        self._layout = AccumulatorLayout(
            layers=lifecycle.num_layers,
            heads=layer.num_heads,
            head_width=layer.width // layer.num_heads,
            queries=lifecycle.num_queries,
            kept=lifecycle.top_r if lifecycle.delta == "top_r" else 0,
        )

    @torch.inference_mode()
    def roll(
        self, base: Summary | None, chunks: Sequence[Rows], end_boundary: int, now_ms: int
    ) -> Summary:
        """Add `chunks`, oldest first, to `base`; the new summary covers [0, end_boundary).

        Each chunk goes through the network by itself and is added in order, in float64, so that the result does not
        depend on how chunks are grouped into calls. Costs the chunks, not the history. Raises SummaryError when `base`
        is of another bundle or layout.
        """
        sums, count = self._unpack(base)
        for chunk in chunks:
            if len(chunk):
                sums = sums + self.network.lifecycle.accumulate(
                    self._vectors(chunk), dtype=torch.float64
                )
                count += len(chunk)
        return self._summary(sums, count, end_boundary, now_ms)

    @torch.inference_mode()
    def merge(self, one: Summary, other: Summary, now_ms: int) -> Summary:
        """The summary of both, for parts of a history that were compressed apart (a part is rolled from None).

        It ends where the later one ends. Raises SummaryError when one is of another bundle or layout, or when both
        together count more interactions than lie before that end: they overlap.
        """
        boundary, count = max(one.boundary, other.boundary), one.count + other.count
        if count > boundary:
            raise SummaryError(
                f"summaries of {one.count} and {other.count} interactions cannot both lie before position {boundary}: "
                "they overlap; merge parts that share no chunk"
            )
        return self._summary(self._unpack(one)[0] + self._unpack(other)[0], count, boundary, now_ms)

    @torch.inference_mode()
    def forget(self, summary: Summary, rows: Rows, now_ms: int) -> Summary:
        """As if `rows`, interactions that `summary` holds, had never been seen; the boundary stays.

        Raises SummaryError when there are more rows than the summary counts, or it is of another bundle or layout, and
        RescanNeeded when a row is, or may be, among the keys that delta `top_r` keeps: what took its place then is lost.
        """
        sums, count = self._unpack(summary)
        left = count - len(rows)
        if left < 0:
            raise SummaryError(
                f"{len(rows)} interactions shall be forgotten, the summary counts {count}; forget what it holds, once"
            )
        if left == 0:
            sums = self._layout.empty()
        elif len(rows):
            vectors = self._vectors(rows)
            gone = self.network.lifecycle.accumulate(vectors, dtype=torch.float64)
            top = sums.top and self._without(sums.top, self.network.lifecycle.scores(vectors))
            sums = Accumulators(sums.state - gone.state, top)
        return self._summary(sums, left, summary.boundary, now_ms)

    @staticmethod
    def _without(top: TopKeys, scores_BLANE: Tensor) -> TopKeys:
        kept = int(top.may_keep(scores_BLANE, _SCORE_TOLERANCE).sum())
        if kept:
            raise RescanNeeded(
                f"{kept} of {scores_BLANE.shape[-2]} interactions to be forgotten are among the {top.scores.shape[-1]} "
                "best keys of a query, which cannot be subtracted; compress the history again from its start, without them"
            )
        return TopKeys(top.mass - exp_score(scores_BLANE).sum(-2), top.scores, top.keys, top.values)

    def _vectors(self, rows: Rows) -> Tensor:
        """[1, N, H]: what the lifecycle sums up."""
        items = to_tensors(rows, self.network.config.features)
        return self.network.features(items.unsqueeze())

    def _summary(self, sums: Accumulators, count: int, boundary: int, now_ms: int) -> Summary:
        tokens = self.network.lifecycle.tokens(sums, torch.tensor([count]))[0]
        return Summary(
            bundle_version=self.bundle_version,
            boundary=boundary,
            count=count,
            accumulators=self._layout.encode(sums),
            tokens=tokens.numpy().astype(np.float32),
            built_at_ms=now_ms,
        )

    def _unpack(self, base: Summary | None) -> tuple[Accumulators, int]:
        if base is None:
            return self._layout.empty(), 0
        if base.bundle_version != self.bundle_version:
            raise SummaryError(
                f"the summary is of bundle {base.bundle_version}, the compressor of {self.bundle_version}; "
                "compress the history again from its start"
            )
        return self._layout.decode(base.accumulators), base.count
