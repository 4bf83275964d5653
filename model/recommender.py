"""User state in, recommended items out: encode the context, search SIDs, turn buckets into items."""

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.beam_search import Beams, beam_search
from model.bundle import Bundle
from model.catalogue import CatalogueItem
from model.decoder import Context
from model.errors import ModelConfigError
from model.features import to_tensors
from model.layers import Segment
from model.ranking import rank_items
from model.repeats import RepeatMixture, repeat_rows
from state.summary import Summary
from state.user_state import UserState

_WIDENING = 4
"""How much wider the next search is when exclusions left too few items."""


@dataclass(frozen=True)
class Recommended:
    """One recommended item."""

    item: CatalogueItem
    score: float
    """Log-probability of the item: of its SID, and within a bucket of its share; of `popular`, log share of events."""
    sid: tuple[int, ...]


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

    @torch.inference_mode()
    def recommend(
        self,
        state: UserState,
        k: int,
        exclude: AbstractSet[int] = frozenset(),
        beam_width: int | None = None,
    ) -> list[Recommended]:
        """The `k` best items for a user, best first; fewer only when the catalogue without `exclude` holds fewer.

        When exclusions, a small beam or diversity leave too few, the search is repeated wider, up to the whole catalogue.
        """
        width = self.beam_width if beam_width is None else beam_width
        if k < 1 or width < 1:
            raise ModelConfigError(f"k is {k} and beam_width {width}; both must be at least 1")
        num_sids, per_code = self.bundle.trie.num_sids, self._max_per_first_code
        context = self._context(state)
        mixture = self._repeat_mixture(state, context, exclude)
        while True:
            beams = self._search(context, mixture, min(width, num_sids), per_code)
            ranked = rank_items(beams, mixture, self.bundle.catalogue, exclude)
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

    def popular(self, k: int, exclude: AbstractSet[int] = frozenset()) -> list[Recommended]:
        """The `k` most frequent items that are not excluded, for users of whom nothing is known."""
        found: list[Recommended] = []
        for index in self._by_popularity:
            if len(found) >= k:
                break
            if int(self.bundle.catalogue.item_ids[index]) not in exclude:
                found.append(self._recommended(int(index), float(self._log_share[index])))
        return found

    def _context(self, state: UserState) -> Context:
        network, rows = self.bundle.network, state.rows
        recent_len = len(state.recent(self.bundle.history))
        vectors_1NH = network.features(to_tensors(rows, network.config.features).unsqueeze())
        mid_term_len = len(rows) - recent_len
        tokens_1EH, present_1 = self._tokens(state.summary)
        return network.encode(
            _all_real(vectors_1NH[:, mid_term_len:]),
            _all_real(vectors_1NH[:, :mid_term_len]),
            tokens_1EH,
            present_1,
        )

    def _tokens(self, summary: Summary | None) -> tuple[Tensor, Tensor]:
        if summary is None or summary.bundle_version != self.bundle.version or not summary.count:
            width = self.bundle.network.config.layer.width
            return torch.zeros(1, 0, width), torch.zeros(1, dtype=torch.bool)
        return torch.from_numpy(summary.tokens.copy())[None], torch.ones(1, dtype=torch.bool)

    def _repeat_mixture(
        self, state: UserState, context: Context, exclude: AbstractSet[int] = frozenset()
    ) -> RepeatMixture:
        """Excluded items are no candidates: beams are not spent on them, and the gate leaves more to the generator."""
        catalogue, network = self.bundle.catalogue, self.bundle.network
        items = catalogue.find(state.rows["item_id"])
        excluded = np.isin(state.rows["item_id"], np.fromiter(exclude, np.uint64, len(exclude)))
        items[excluded] = -1
        rows = repeat_rows([(state.rows, items)], np.ones((1, len(items)), np.bool_), catalogue)
        bos = network.decode(context, torch.zeros(1, 1, 0, dtype=torch.int64))
        return network.repeat_mixture(rows, context, bos)

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
