"""Summaries of one bundle: rolled forward chunk by chunk, merged from parts, relieved of what must be forgotten."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from model.accumulator_codec import AccumulatorLayout
from model.accumulators import Accumulators, TopKeys, exp_score
from model.bundle import Bundle
from model.errors import RescanNeeded, SummaryError
from model.features import to_tensors
from model.summary_size import check_summary_size
from state.interaction import Rows
from state.item_statistics import bounded, empty_statistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics, encode_statistics
from state.summary import Summary

_SCORE_TOLERANCE = 1e-4
"""Relative; float32 projections of one item differ by some 1e-6 with the shape of the batch it is in."""


class Compressor:
    """The additive summaries of one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        """The bundle's network does the work. Raises ModelConfigError where its summaries would be too large to store."""
        self.bundle_version = bundle.version
        self.network = bundle.network
        self._max_items = bundle.network.config.repeats.max_items
        check_summary_size(bundle.network.config)
        self._layout = AccumulatorLayout.of(
            bundle.network.config.layer, bundle.network.config.lifecycle
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
        statistics = self._rolled_statistics(base, chunks)
        return replace(self._summary(sums, count, end_boundary, now_ms), item_statistics=statistics)

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
        sums = self._unpack(one)[0] + self._unpack(other)[0]
        older, newer = sorted((one, other), key=lambda part: part.boundary)
        return replace(
            self._summary(sums, count, boundary, now_ms),
            item_statistics=self._merged_statistics(older, newer),
        )

    @torch.inference_mode()
    def forget(self, summary: Summary, rows: Rows, now_ms: int) -> Summary:
        """As if `rows`, interactions that `summary` holds, had never been seen; the boundary stays.

        First and last times cannot be subtracted: the result has no item statistics until the history is compressed anew.

        Raises SummaryError when there are more rows than the summary counts, or it is of another bundle or layout, and
        RescanNeeded when a row is, or may be, among the keys that delta `top_r` keeps: what took its place then is lost.
        """
        sums, count = self._unpack(summary)
        left = count - len(rows)
        if left < 0:
            raise SummaryError(
                f"{len(rows)} interactions shall be forgotten, the summary counts {count}; forget what it holds, once"
            )
        statistics = b"" if len(rows) else summary.item_statistics
        if left == 0:
            sums, statistics = self._layout.empty(), encode_statistics(empty_statistics())
        elif len(rows):
            vectors = self._vectors(rows)
            gone = self.network.lifecycle.accumulate(vectors, dtype=torch.float64)
            top = sums.top and self._without(sums.top, self.network.lifecycle.scores(vectors))
            sums = Accumulators(sums.state - gone.state, top)
        forgot = self._summary(sums, left, summary.boundary, now_ms)
        return replace(forgot, item_statistics=statistics)

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

    def _rolled_statistics(self, base: Summary | None, chunks: Sequence[Rows]) -> bytes:
        """Bounded after each chunk, so that the grouping of chunks changes nothing.

        A base without them stays so: what was dropped from its chunks would be missing without a trace.
        """
        if base is not None and not base.item_statistics:
            return b""
        statistics = decode_statistics(base.item_statistics) if base else empty_statistics()
        for chunk in chunks:
            statistics = merge_statistics(statistics, statistics_of(chunk))
            statistics = bounded(statistics, self._max_items)
        return encode_statistics(statistics)

    def _merged_statistics(self, older: Summary, newer: Summary) -> bytes:
        if not (older.item_statistics and newer.item_statistics):
            return b""
        parts = (decode_statistics(part.item_statistics) for part in (older, newer))
        return encode_statistics(bounded(merge_statistics(*parts), self._max_items))

    def _unpack(self, base: Summary | None) -> tuple[Accumulators, int]:
        if base is None:
            return self._layout.empty(), 0
        if base.bundle_version != self.bundle_version:
            raise SummaryError(
                f"the summary is of bundle {base.bundle_version}, the compressor of {self.bundle_version}; "
                "compress the history again from its start"
            )
        return self._layout.decode(base.accumulators), base.count
