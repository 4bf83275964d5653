"""User state in, recommended items out: encode the context, search SIDs, turn buckets into items."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.beam_search import Beams, beam_search
from model.bundle import Bundle
from model.decoder import Context
from model.errors import ModelConfigError
from model.features import to_tensors
from model.layers import Segment
from model.query import ItemIds, Mask, Query, Recommended
from model.ranking import rank_items
from model.repeat_features import repeat_candidates
from model.repeats import RepeatMixture
from state.item_statistics import ItemStatistics, merge_statistics, statistics_of
from state.item_statistics_codec import decode_statistics
from state.segments import HistoryConfig
from state.summary import Summary
from state.user_state import UserState

_WIDENING = 4
"""How much wider the next search is when exclusions left too few items."""


class Recommender:
    """Recommends from one bundle. Deterministic; holds no state of its own between calls."""

    def __init__(
        self,
        bundle: Bundle,
        beam_width: int = 32,
        *,
        max_per_first_code: int | None = None,
        exact: bool = False,
    ) -> None:
        """`beam_width`: SIDs that a search keeps, unless a call says otherwise.

        `max_per_first_code`: diversity, items of an answer that share their first code; more of them where the answer
        would otherwise be short. `exact`: search ever wider until no other
        item can be better; costs what it costs. Raises ModelConfigError for sizes below one and for both at once.
        """
        if beam_width < 1 or (max_per_first_code is not None and max_per_first_code < 1):
            raise ModelConfigError(
                f"beam_width is {beam_width} and max_per_first_code {max_per_first_code}; each must be at least 1"
            )
        if exact and max_per_first_code is not None:
            raise ModelConfigError(
                "exact and max_per_first_code are both set: the best items and diverse ones exclude one another; drop one"
            )
        self.bundle = bundle
        self.beam_width = beam_width
        self._max_per_first_code, self._exact = max_per_first_code, exact
        self._by_popularity = bundle.catalogue.by_popularity()
        self._log_share = np.log(
            np.maximum(bundle.catalogue.counts, 1) / bundle.catalogue.counts.sum()
        )

    @property
    def bundle_version(self) -> str:
        """Whose summaries it reads."""
        return self.bundle.version

    @property
    def history(self) -> HistoryConfig:
        """How it cuts histories."""
        return self.bundle.history

    @torch.inference_mode()
    def recommend(self, state: UserState, query: Query) -> list[Recommended]:
        """The `query.k` best items for a user, best first; fewer only when no more of the catalogue may be recommended.

        When a small beam or diversity leaves too few, the search is repeated wider, up to the whole catalogue.
        """
        k, width = query.k, query.beam_width or self.beam_width
        num_sids, per_code = self.bundle.trie.num_sids, self._max_per_first_code
        blocked = query.filter.blocked(self.bundle.catalogue)
        context = self._context(state)
        mixture = self._repeat_mixture(state, context, blocked, repeats=query.repeats)
        while True:
            beams = self._search(context, mixture, min(width, num_sids), per_code)
            ranked = rank_items(beams, mixture, self.bundle.catalogue, blocked)
            found = ranked if per_code is None else self._diverse(ranked, per_code)
            dropped = float(beams.dropped_log_probs[0])
            nothing_left = dropped == -np.inf and len(found) == len(ranked)
            if nothing_left or (len(found) >= k and self._settled(found[k - 1][1], dropped)):
                return [self._recommended(index, log_prob) for index, log_prob in found[:k]]
            width *= _WIDENING
            per_code = per_code and per_code * _WIDENING

    def _diverse(self, ranked: list[tuple[int, float]], per_code: int) -> list[tuple[int, float]]:
        """The first `per_code` items of every first code, in their order."""
        taken: Counter[int] = Counter()
        found = []
        for index, log_prob in ranked:
            first_code = self.bundle.catalogue.sid_of_item(index)[0]
            taken[first_code] += 1
            if taken[first_code] <= per_code:
                found.append((index, log_prob))
        return found

    def _settled(self, last_log_prob: float, dropped: float) -> bool:
        """An item is no more probable than its SID, so what lies above all that was dropped stays where it is."""
        return not self._exact or last_log_prob >= dropped

    def popular(self, query: Query) -> list[Recommended]:
        """The `query.k` most frequent items that may be recommended, for users of whom nothing is known."""
        blocked, best = query.filter.blocked(self.bundle.catalogue), self._by_popularity
        if blocked is not None:
            best = best[~blocked[best]]
        return [
            self._recommended(int(index), float(self._log_share[index]))
            for index in best[: query.k]
        ]

    def pick(
        self, item_ids: ItemIds, scores: npt.NDArray[np.float64], query: Query
    ) -> list[Recommended]:
        """At most `query.k` of the items named, in their order: those that are known and may be recommended."""
        catalogue = self.bundle.catalogue
        blocked, places = query.filter.blocked(catalogue), catalogue.find(item_ids)
        fine = places >= 0 if blocked is None else (places >= 0) & ~blocked[places]
        return [
            self._recommended(int(places[i]), float(scores[i]))
            for i in np.flatnonzero(fine)[: query.k]
        ]

    def _context(self, state: UserState) -> Context:
        network, rows = self.bundle.network, state.rows
        recent_len = len(state.recent(self.bundle.history))
        vectors_1NH = network.features(to_tensors(rows, network.config.features).unsqueeze())
        mid_term_len = len(rows) - recent_len
        tokens_1EH, present_1 = self._tokens(self._own(state.summary))
        return network.encode(
            _all_real(vectors_1NH[:, mid_term_len:]),
            _all_real(vectors_1NH[:, :mid_term_len]),
            tokens_1EH,
            present_1,
        )

    def _own(self, summary: Summary | None) -> Summary | None:
        """A summary means something under the bundle that it was made for alone."""
        return summary if summary and summary.bundle_version == self.bundle.version else None

    def _tokens(self, summary: Summary | None) -> tuple[Tensor, Tensor]:
        if summary is None or not summary.count:
            width = self.bundle.network.config.layer.width
            return torch.zeros(1, 0, width), torch.zeros(1, dtype=torch.bool)
        return torch.from_numpy(summary.tokens.copy())[None], torch.ones(1, dtype=torch.bool)

    def _repeat_mixture(
        self,
        state: UserState,
        context: Context,
        blocked: Mask | None = None,
        *,
        repeats: bool = True,
    ) -> RepeatMixture:
        """Blocked items are no candidates: beams are not spent on them, and the gate leaves more to the generator."""
        network = self.bundle.network
        candidates = repeat_candidates(
            [self._statistics(state)],
            self.bundle.catalogue,
            network.config.features.item_buckets,
            network.config.repeats.max_items if repeats else 0,
            blocked,
        )
        bos = network.decode(context, torch.zeros(1, 1, 0, dtype=torch.int64))
        return network.repeat_mixture(candidates, bos)

    def _statistics(self, state: UserState) -> ItemStatistics:
        """Of the whole history: what the summary says of the lifecycle segment, and the rows at hand."""
        newer, summary = statistics_of(state.rows), self._own(state.summary)
        if summary is None or not summary.item_statistics:
            return newer
        return merge_statistics(decode_statistics(summary.item_statistics), newer)

    def _search(
        self, context: Context, mixture: RepeatMixture, beam_width: int, per_code: int | None
    ) -> Beams:
        network = self.bundle.network

        def score_next(codes_1WP: Tensor) -> Tensor:
            states = network.decode(context, codes_1WP)
            return network.logits(states[:, :, -1], codes_1WP.shape[-1])

        return beam_search(score_next, self.bundle.trie, 1, beam_width, mixture, per_code)

    def _recommended(self, index: int, score: float) -> Recommended:
        catalogue = self.bundle.catalogue
        return Recommended(catalogue.item(index), score, catalogue.sid_of_item(index))


def _all_real(vectors_1NH: Tensor) -> Segment:
    return Segment(vectors_1NH, torch.ones(vectors_1NH.shape[:2], dtype=torch.bool))
