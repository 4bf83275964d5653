"""Users to contexts, as little as possible: what stays valid of an earlier context is taken over.

Sealed chunks are encoded once, the summary's tokens once per summary, recent interactions and the open chunk once per
state version. Shapes: M mid-term interactions, K selected, N keys, L blocks, H width, A heads, C = H / A, G I indexer keys.
"""

import copy
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.bundle import Bundle
from model.code_recency import FirstCodes
from model.decoder import Context
from model.engine import DTYPES, HOST
from model.engine_config import Precision
from model.features import to_tensors
from model.fused_decoder import EPSILON, FusedDecoder
from model.layers import Segment
from model.primer import Primer
from model.user_context import Reused, SealedChunks, UserContext
from state.interaction import Rows
from state.item_statistics import ItemStatistics, empty_statistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics
from state.summary import Summary
from state.user_delta import UserSegments


class ContextEncoder:
    """Encodes users for one bundle. Not thread-safe with others that change its bundle's network; nobody does."""

    def __init__(
        self,
        bundle: Bundle,
        fused: FusedDecoder,
        precision: Precision = "fp32",
        device: torch.device = HOST,
    ) -> None:
        """`fused` holds the network's decoder; `precision` is of matrix products, and of what is kept.

        Encoding is done here; memory is kept on `device`, where the engine reads it.
        """
        network, dtype = bundle.network, DTYPES[precision]
        self._network = network
        self._history = bundle.history
        self._version = bundle.version
        self._dtype = dtype
        self._recent = _in_precision(network.recent, dtype)
        self._mid_term = _in_precision(network.mid_term, dtype)
        self._first_codes = FirstCodes(bundle.catalogue) if network.code_recency else None
        self._primer = Primer(bundle, fused, precision, device)

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
        newest = self._newest(user.tail)
        memory, bos_1H = self._primer.prime(sealed, newest, lifecycle)
        statistics = merge_statistics(older, statistics_of(user.tail))
        taken = set(sealed.positions) & set(previous.sealed.positions if previous else ())
        has_summary = int(lifecycle is not None)
        context = UserContext(
            user=user,
            sealed=sealed,
            lifecycle=lifecycle,
            newest=newest,
            older_statistics=older,
            statistics=statistics,
            memory=memory,
            bos=bos_1H,
            first_logits=self._network.next_logits(
                bos_1H[:, None], 0, self._code_counts(sealed, user.tail)
            ),
            max_candidates=self._max_candidates(statistics),
        )
        return context, Reused(
            chunks=len(taken),
            chunks_encoded=len(sealed.positions) - len(taken),
            summary=has_summary * same_summary,
            summary_encoded=has_summary * (not same_summary),
        )

    def _code_counts(self, sealed: SealedChunks, tail: Rows) -> Tensor | None:
        """[1, R, K]: of the mid-term and the recent segment."""
        if self._first_codes is None:
            return None
        nearer = np.concatenate([sealed.first_codes, self._codes_of(tail)])
        return self._first_codes.log_counts(nearer)[None]

    def _codes_of(self, rows: Rows) -> npt.NDArray[np.int64]:
        """First codes. The bundle's own items have them here, as in training; of later ones nothing was learned."""
        if self._first_codes is None:
            return np.zeros(0, np.int64)
        return self._first_codes.of(rows["item_id"])

    def _max_candidates(self, statistics: ItemStatistics) -> int:
        repeats = self._network.config.repeats
        had = min(len(statistics.items), repeats.max_candidates)
        return had + repeats.max_popular_candidates

    @torch.inference_mode()
    def as_context(self, context: UserContext) -> Context:
        """The same for the plain decoder: what all its interactions were encoded to."""
        mid_term = torch.cat([context.sealed.vectors, context.newest[0]])
        return Context(
            recent=_all_real(context.newest[1].float()),
            mid_term=_all_real(mid_term.float()),
            lifecycle=self._encoded_summary(context.user.summary),
        )

    def _sealed(self, user: UserSegments, previous: SealedChunks | None) -> SealedChunks:
        positions = tuple(user.chunks)
        if previous is not None and previous.positions == positions:
            return previous
        chunk_len, width = self._history.chunk_len, self._network.config.layer.width
        new = [p for p in positions if previous is None or p not in previous.positions]
        vectors, keys, codes, statistics = [], [], [], {}
        if previous is not None:
            kept = [i for i, p in enumerate(previous.positions) if p in user.chunks]
            if kept:  # neighbours: chunks leave at the old end alone
                rows = slice(kept[0] * chunk_len, (kept[-1] + 1) * chunk_len)
                vectors.append(previous.vectors[rows])
                keys.append(previous.indexer_keys[:, rows])
                codes.append(previous.first_codes[rows])
                statistics = {
                    previous.positions[i]: previous.statistics[previous.positions[i]] for i in kept
                }
        for position in new:
            vectors_NH = self._encode_chunks(user.chunks[position])
            vectors.append(vectors_NH)
            keys.append(self._primer.indexer_keys(vectors_NH))
            codes.append(self._codes_of(user.chunks[position]))
            statistics[position] = statistics_of(user.chunks[position])
        if not vectors:
            nothing_NH = torch.zeros(0, width, dtype=self._dtype)
            keys_LMI = self._primer.indexer_keys(nothing_NH)
            return SealedChunks((), nothing_NH, keys_LMI, np.zeros(0, np.int64), {})
        return SealedChunks(
            positions, torch.cat(vectors), torch.cat(keys, 1), np.concatenate(codes), statistics
        )

    def _vectors(self, rows: Rows) -> Tensor:
        """Item vectors [1, N, H]."""
        items = to_tensors(rows, self._network.config.features)
        vectors: Tensor = self._network.features(items.unsqueeze())
        return vectors

    def _encode_chunks(self, rows: Rows) -> Tensor:
        """[N, H]: rows that begin with a chunk, encoded."""
        mask = torch.ones(1, len(rows), dtype=torch.bool)
        encoded: Segment = self._mid_term(self._vectors(rows).to(self._dtype), mask)
        return encoded.vectors[0]

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
        encoded = self._encoded_summary(summary)
        return self._primer.project_lifecycle(encoded.vectors) if encoded.present else None

    def _encoded_summary(self, summary: Summary | None) -> Segment:
        own = self._own(summary)
        if own is None:
            return _all_real(torch.zeros(0, self._network.config.layer.width))
        tokens_1EH = torch.from_numpy(own.tokens.copy())[None]
        return self._network.lifecycle.encode(tokens_1EH, torch.ones(1, dtype=torch.bool))

    def _newest(self, tail: Rows) -> tuple[Tensor, Tensor]:
        """The open chunk's mid-term interactions and the recent ones, encoded: [M', H] and [R, H]."""
        num_open = max(0, len(tail) - self._history.recent_len)
        rows = tail[num_open:]
        real = torch.ones(1, len(rows), dtype=torch.bool)
        recent: Segment = self._recent(self._vectors(rows).to(self._dtype), real)
        return self._encode_chunks(tail[:num_open]), recent.vectors[0]


def _all_real(vectors_NH: Tensor) -> Segment:
    return Segment(vectors_NH[None], torch.ones(1, len(vectors_NH), dtype=torch.bool))


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


Module = TypeVar("Module", bound=nn.Module)


def _in_precision(module: Module, dtype: torch.dtype) -> Module:
    """A copy; norms keep float32's epsilon, as bfloat16's own would be felt."""
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if isinstance(part, nn.RMSNorm):
            part.eps = EPSILON
    return copied.to(dtype)
