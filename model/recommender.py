"""User state in, recommended items out: encode the context, search SIDs, turn buckets into items."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from model.beam_search import Limits, beam_search, blocked_nodes
from model.bundle import Bundle
from model.catalogue import Catalogue
from model.catalogue_view import CatalogueView
from model.compiled_search import BlockedItems, compiled_beam_search
from model.context_encoder import ContextEncoder
from model.engine import Engine, TorchEngine
from model.errors import ModelConfigError
from model.explain import explain
from model.fused_decoder import FusedDecoder, Memory
from model.next_item import NextItems
from model.popularity import Popularity
from model.primer import empty_memory
from model.query import Explanation, ItemFilter, ItemIds, Mask, Query, Recommended
from model.ranking import rank_items
from model.repeat_mixtures import RepeatMixtures
from model.repeats import RepeatMixture
from model.scorer import Scorer
from model.searched import Searched, SearchedCatalogue
from model.user_context import Reused, UserContext
from state.interaction import INTERACTION
from state.segments import HistoryConfig
from state.user_delta import UserSegments, split_state
from state.user_state import UserMeta, UserState

_WIDENING = 4
"""How much wider the next search is when exclusions left too few items."""


def _plain_engine(fused: FusedDecoder, memory: Memory, num_earlier: int) -> Engine:
    return TorchEngine(fused)


def _go_on() -> None:
    """Nobody has anything against going on."""


@dataclass(frozen=True, kw_only=True)
class _Request:
    """One search of one request."""

    place: int
    context: UserContext
    k: int
    width: int
    per_code: int | None
    blocked: Mask | None
    mixture: RepeatMixture

    def wider(self) -> "_Request":
        """The next one, when this found too little: with more beams, and more per code where beams were not what it lacked."""
        per_code, beam_was_wide = self.per_code, self.width >= _WIDENING * self.k
        if per_code is not None and beam_was_wide:
            per_code *= _WIDENING
        width = max(self.width * _WIDENING, self.k)
        return replace(self, width=width, per_code=per_code)


class Recommender:
    """Recommends from one bundle and a catalogue that may change. Deterministic; one thread generates."""

    def __init__(
        self,
        bundle: Bundle,
        beam_width: int = 32,
        *,
        max_per_first_code: int | None = None,
        exact: bool = False,
        engine: Callable[[FusedDecoder, Memory, int], Engine] = _plain_engine,
    ) -> None:
        """`beam_width`: SIDs that a search keeps, unless a call says otherwise.

        `max_per_first_code`: diversity, items of an answer that share their first code; more of them where the answer
        would otherwise be short. `exact`: search ever wider until no other
        item can be better; costs what it costs. `engine` makes what runs the decoder, from it, one context's memory and the places for earlier codes. Raises ModelConfigError for sizes below one and for both at once.
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
        fused = FusedDecoder(bundle.network.decoder).eval()
        self._engine = engine(fused, empty_memory(bundle), max(0, bundle.network.num_levels - 2))
        self._encoder = ContextEncoder(bundle, fused, self._engine.precision, self._engine.device)
        self.beam_width = beam_width
        self._max_per_first_code, self._exact = max_per_first_code, exact
        view = CatalogueView.of(bundle.catalogue, bundle.trie)
        self._catalogue = SearchedCatalogue(bundle.network, view, bundle.transitions)
        self._mixtures = RepeatMixtures(bundle.network)

    @property
    def bundle_version(self) -> str:
        """Whose summaries it reads."""
        return self.bundle.version

    @property
    def engine_name(self) -> str:
        """What runs its decoder."""
        return self._engine.name

    @property
    def history(self) -> HistoryConfig:
        """How it cuts histories."""
        return self.bundle.history

    @property
    def view(self) -> CatalogueView:
        """What is searched."""
        return self._catalogue.now.view

    def prepare(self, view: CatalogueView) -> None:
        """Make ready what `swap` to the view's catalogue needs. Takes its time, in any thread, while requests are answered."""
        self._catalogue.prepare(view)

    def swap(self, view: CatalogueView) -> None:
        """Search another catalogue from the next batch on; requests under way keep theirs. At once after `prepare`."""
        self._catalogue.swap(view)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Search for nobody: what is compiled, or loaded, when it is first used is there afterwards."""
        nobody = self.encode_state(UserState("", UserMeta(), np.zeros(0, INTERACTION), None))
        filters = (ItemFilter(), ItemFilter(exclude_ids=self.view.catalogue.item_ids[:1]))
        searched = self._catalogue.now
        for one in filters:
            request = self._request(0, nobody, Query(k=1, filter=one), searched.view)
            next_items = searched.scorer.score([nobody])
            self._search([request], searched, _joined([request], next_items), _go_on)

    def set_popularity(
        self, item_ids: ItemIds, counts: npt.NDArray[np.float64], total: float = 0.0
    ) -> None:
        """How often all users took items lately, from the next batch on; no items: as at the training's end.

        The counts are decayed to now with `popularity_half_life_s` of the bundle's repeats; `total` is that of all items,
        those that are too light to be named included. From any thread.
        """
        item_buckets = self.bundle.network.config.features.item_buckets
        popularity = Popularity.of(item_ids, counts, total, item_buckets)
        self._mixtures.set_popularity(popularity)
        self._catalogue.set_popularity(popularity)

    def recommend(self, state: UserState, query: Query) -> list[Recommended]:
        """The best items for a user of whom nothing is cached; as `answer`."""
        return self.answer([self.encode_state(state)], [query])[0]

    def encode_state(self, state: UserState) -> UserContext:
        """The context of a user of whom nothing is cached."""
        return self.encode(split_state(state, self.history))[0]

    def encode(
        self, user: UserSegments, previous: UserContext | None = None
    ) -> tuple[UserContext, Reused]:
        """A user's context, from an earlier one where there is one; and what was taken over."""
        return self._encoder.encode(user, previous)

    @torch.inference_mode()
    def answer(
        self,
        contexts: Sequence[UserContext],
        queries: Sequence[Query],
        check: Callable[[], None] = _go_on,
    ) -> list[list[Recommended]]:
        """Per request the `k` best items, best first; fewer only when no more of the catalogue may be recommended.

        When a small beam or diversity leaves too few, the search is repeated wider, up to the whole catalogue. `check` is
        called before every step; what it raises ends the work.
        """
        searched = self._catalogue.now
        requests = [
            self._request(i, context, query, searched.view)
            for i, (context, query) in enumerate(zip(contexts, queries, strict=True))
        ]
        next_items = searched.scorer.score(contexts)
        answers: list[list[Recommended]] = [[] for _ in requests]
        while requests:
            wider = []
            for group in _alike(requests):
                mixture = _joined(group, next_items)
                found_by = self._search(group, searched, mixture, check)
                for request, found in zip(group, found_by, strict=True):
                    if found is None:
                        wider.append(request.wider())
                    else:
                        answers[request.place] = found
            requests = wider
        return answers

    def _request(
        self, place: int, context: UserContext, query: Query, view: CatalogueView
    ) -> _Request:
        blocked = view.blocked(query.filter)
        mixture = self._mixtures.of(
            context, view.catalogue, blocked, repeats=query.repeats, time_ms=query.time_ms
        )
        return _Request(
            place=place,
            context=context,
            k=query.k,
            width=query.beam_width or self.beam_width,
            per_code=self._max_per_first_code,
            blocked=blocked,
            mixture=mixture,
        )

    def _search(
        self,
        group: Sequence[_Request],
        searched: Searched,
        mixture: RepeatMixture,
        check: Callable[[], None],
    ) -> list[list[Recommended] | None]:
        """Per request of the same width its answer; None where a wider search might find more or better ones."""
        catalogue, trie, per_code = searched.view.catalogue, searched.prior.trie, group[0].per_code
        log_shares_N = searched.prior.log_shares
        contexts = [request.context for request in group]
        scorer = Scorer(self.bundle.network, self._engine, contexts, check)
        width = min(group[0].width, trie.num_sids)
        if per_code is None:
            blocked = BlockedItems([one.blocked for one in group], catalogue.bucket_starts)
            beams = compiled_beam_search(scorer, trie, len(group), width, mixture, blocked)
        else:
            masks = [one.blocked for one in group]
            limits = Limits(per_code, blocked_nodes(masks, trie, catalogue))
            beams = beam_search(scorer.score_next, trie, len(group), width, mixture, limits)
        answers: list[list[Recommended] | None] = []
        for row, request in enumerate(group):
            ranked = rank_items(beams, mixture, catalogue, log_shares_N, request.blocked, row)
            found = ranked if per_code is None else _diverse(ranked, per_code, catalogue)
            dropped = float(beams.dropped_log_probs[row])
            widest = width == trie.num_sids and (per_code is None or per_code >= width)
            complete = widest or (dropped == -np.inf and len(found) == len(ranked))
            k = request.k
            if complete or (len(found) >= k and self._settled(found[k - 1][1], dropped)):
                answers.append(_recommended(catalogue, found[:k]))
            else:
                answers.append(None)
        return answers

    def _settled(self, last_log_prob: float, dropped: float) -> bool:
        """An item is no more probable than its SID, so what lies above all that was dropped stays where it is."""
        return not self._exact or last_log_prob >= dropped

    def popular(self, query: Query) -> list[Recommended]:
        """The `query.k` most frequent items that may be recommended, for users of whom nothing is known."""
        view = self.view
        found = view.popular(query.k, view.blocked(query.filter))
        return _recommended(view.catalogue, found)

    def pick(
        self, item_ids: ItemIds, scores: npt.NDArray[np.float64], query: Query
    ) -> list[Recommended]:
        """At most `query.k` of the items named, in their order: those that are known and may be recommended."""
        view = self.view
        blocked, places = view.blocked(query.filter), view.catalogue.find(item_ids)
        fine = places >= 0 if blocked is None else (places >= 0) & ~blocked[places]
        taken = np.flatnonzero(fine)[: query.k]
        found = zip(places[taken].tolist(), scores[taken].tolist(), strict=True)
        return _recommended(view.catalogue, list(found))

    def explain(
        self, context: UserContext, query: Query, found: Sequence[Recommended]
    ) -> list[Explanation]:
        """What each item of the answer to `query` came from; one more pass of the decoder over its SIDs."""
        searched, mid_term = self._catalogue.now, context.user.state.mid_term(self.history)
        view = searched.view
        mixture = self._request(0, context, query, view).mixture
        mixture = replace(mixture, next_items=searched.scorer.score([context]))
        bundle = replace(self.bundle, catalogue=view.catalogue, trie=view.trie)
        return explain(bundle, self._encoder.as_context(context), mid_term, mixture, found)


def _diverse(
    ranked: list[tuple[int, float]], per_code: int, catalogue: Catalogue
) -> list[tuple[int, float]]:
    """The first `per_code` items of every first code, in their order."""
    taken: Counter[int] = Counter()
    found = []
    for index, log_prob in ranked:
        first_code = catalogue.sid_of_item(index)[0]
        taken[first_code] += 1
        if taken[first_code] <= per_code:
            found.append((index, log_prob))
    return found


def _recommended(catalogue: Catalogue, found: Sequence[tuple[int, float]]) -> list[Recommended]:
    """From places in the catalogue and scores."""
    items = catalogue.items([index for index, _ in found])
    return [
        Recommended(item, score, catalogue.sid_of_item(index))
        for item, (index, score) in zip(items, found, strict=True)
    ]


def _alike(requests: Sequence[_Request]) -> list[list[_Request]]:
    """Requests that one search can serve."""
    groups: dict[tuple[int, int | None], list[_Request]] = {}
    for request in requests:
        groups.setdefault((request.width, request.per_code), []).append(request)
    return list(groups.values())


def _joined(group: Sequence[_Request], next_items: NextItems | None) -> RepeatMixture:
    """Their mixtures side by side; `next_items` of all requests, made once however often a search widens."""
    mixture = RepeatMixture.join([request.mixture for request in group])
    if next_items is None:
        return mixture
    places = [request.place for request in group]
    return replace(mixture, next_items=next_items.of_contexts(places))
