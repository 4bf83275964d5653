"""What requests search: a catalogue's view, what scores its items, what is expected of them. Replaced while requests go on."""

import threading
from dataclasses import dataclass, replace

from torch import Tensor

from model.catalogue import Catalogue
from model.catalogue_view import CatalogueView
from model.item_scorer import ItemScorer
from model.network import Network
from model.popularity import AT_TRAINING_END, Popularity
from model.prior import Prior
from model.transitions import Transitions


@dataclass(frozen=True)
class _Ready:
    """What takes time to make, of one catalogue."""

    catalogue: Catalogue
    scorer: ItemScorer
    prior: Prior


@dataclass(frozen=True)
class Searched:
    """What a request reads once and keeps."""

    view: CatalogueView
    scorer: ItemScorer
    prior: Prior


class SearchedCatalogue:
    """Of one network; what is searched `now` is replaced whole, from any thread."""

    def __init__(
        self, network: Network, view: CatalogueView, transitions: Transitions | None
    ) -> None:
        """Items are as popular as at the training's end."""
        self._network, self._transitions = network, transitions
        self._popularity = AT_TRAINING_END
        self._replacing = threading.Lock()
        self._prepared = self._ready(view)
        self.now = Searched(view, self._prepared.scorer, self._prepared.prior)
        self._left: Tensor | None = None
        """Of the catalogue before; `prepare` frees it, which takes 10 ms for 250,000 items."""

    def prepare(self, view: CatalogueView) -> None:
        """Make ready what `swap` to the view's catalogue needs. Takes its time, in any thread, while requests are answered."""
        self._left = None
        if self._ready_of(view.catalogue) is None:
            self._prepared = self._ready(view)

    def swap(self, view: CatalogueView) -> None:
        """Search another view from now on. At once after `prepare`."""
        ready = self._ready_of(view.catalogue) or self._ready(view)
        with self._replacing:
            before, prior = self.now, ready.prior
            if before.view.catalogue is view.catalogue:
                prior = before.prior  # it may have been told meanwhile
            self.now = Searched(view, ready.scorer, prior)
        if ready.scorer is not before.scorer:
            self._prepared, self._left = ready, before.scorer.vectors_NH

    def set_popularity(self, popularity: Popularity) -> None:
        """What is expected of items from now on. Takes its time, in any thread.

        A view that is being prepared meanwhile keeps what was told before, until this is called again.
        """
        self._popularity = popularity
        if not self._network.config.live_prior:
            return
        prior = self._prior(view := self.now.view)
        with self._replacing:
            if self.now.view.catalogue is view.catalogue:
                self.now = replace(self.now, prior=prior)

    def _ready(self, view: CatalogueView) -> _Ready:
        scorer = ItemScorer(self._network, view.catalogue, self._transitions)
        return _Ready(view.catalogue, scorer, self._prior(view))

    def _prior(self, view: CatalogueView) -> Prior:
        return Prior.of(self._network, view.catalogue, view.trie, self._popularity)

    def _ready_of(self, catalogue: Catalogue) -> _Ready | None:
        now = self.now
        ready = (_Ready(now.view.catalogue, now.scorer, now.prior), self._prepared)
        return next((one for one in ready if one.catalogue is catalogue), None)
