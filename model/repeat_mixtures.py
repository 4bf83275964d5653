"""What is said for repeats in users' contexts, kept with each context as long as catalogue, popularity and quarter of an hour are the same."""

from dataclasses import replace
from weakref import ref

import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.moment_features import slot_of
from model.network import Network
from model.popularity import AT_TRAINING_END, Popularity
from model.query import Mask
from model.repeat_features import repeat_candidates
from model.repeats import RepeatEvidence, RepeatMixture
from model.user_context import KnownEvidence, UserContext


class RepeatMixtures:
    """Of one network. One thread asks."""

    def __init__(self, network: Network) -> None:
        """Items are as popular as at the training's end."""
        self._network, self._config = network, network.config
        self._popularity = AT_TRAINING_END
        """Replaced whole."""

    def set_popularity(self, popularity: Popularity) -> None:
        """From the next question on. From any thread."""
        self._popularity = popularity

    def of(
        self,
        context: UserContext,
        catalogue: Catalogue,
        blocked: Mask | None,
        *,
        repeats: bool,
        time_ms: int | None = None,
    ) -> RepeatMixture:
        """Without items of the catalogue that are `blocked`, and, where `repeats` is off, those that the user had.

        `time_ms` as in Query.
        """
        known = self._known(context, catalogue, time_ms)
        evidence = known.evidence
        if repeats and blocked is None:
            return known.mixture
        left_out = torch.zeros_like(evidence.new) if repeats else ~evidence.new
        if blocked is not None:
            left_out = left_out | torch.from_numpy(blocked)[evidence.items]
        return self._mixture(evidence, left_out)

    def _known(
        self, context: UserContext, catalogue: Catalogue, time_ms: int | None
    ) -> KnownEvidence:
        config, popularity, known = self._config, self._popularity, context.evidence
        slot = None if time_ms is None else slot_of(time_ms)
        if known is None or known.slot != slot or not known.is_of(catalogue, popularity):
            candidates = repeat_candidates(
                [context.statistics],
                catalogue,
                config.features,
                config.repeats.max_candidates,
                config.repeats.max_popular_candidates,
                None if time_ms is None else [time_ms],
            )
            counts = popularity.of_rows(candidates.first_rows)
            candidates = replace(candidates, popularity=counts)
            evidence = self._network.repeat_evidence(candidates, context.bos)
            context.evidence = known = KnownEvidence(
                catalogue=ref(catalogue),
                popularity=ref(popularity),
                slot=slot,
                evidence=evidence,
                mixture=self._mixture(evidence, None),
            )
        return known

    def _mixture(self, evidence: RepeatEvidence, left_out: Tensor | None) -> RepeatMixture:
        return evidence.mixture(left_out).favouring(self._config.repeats)
