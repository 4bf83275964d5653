"""Buckets to items: the probability of an item from that of its SID, and the best of them.

P(item) = (1 - g) P_generator(SID) c(item) / c(bucket) + g P_repeat(item), c the events counted in the catalogue.
"""

import numpy as np
import numpy.typing as npt

from model.beam_search import Beams
from model.catalogue import Catalogue
from model.repeats import RepeatMixture


def rank_items(
    beams: Beams,
    mixture: RepeatMixture,
    catalogue: Catalogue,
    blocked: npt.NDArray[np.bool_] | None = None,
    request: int = 0,
) -> list[tuple[int, float]]:
    """Items of a request's beams that are not `blocked` [N], best first: (catalogue index, log-probability)."""
    real = beams.log_probs[request].numpy() > -np.inf
    items, lengths = catalogue.items_of(beams.sids[request].numpy()[real])
    generator = np.repeat(beams.generator_log_probs[request].numpy()[real], lengths)
    if blocked is not None:
        items, generator = items[~blocked[items]], generator[~blocked[items]]
    repeat = _repeat_share(items, mixture.items[request].numpy(), mixture.shares[request].numpy())
    with np.errstate(divide="ignore"):
        log_probs = np.logaddexp(
            float(mixture.log_generator[request])
            + generator
            + catalogue.log_share_in_bucket[items],
            float(mixture.log_repeat[request]) + np.log(repeat),
        )
    order = np.lexsort((items, -log_probs))
    return list(zip(items[order].tolist(), log_probs[order].tolist(), strict=True))


def _repeat_share(
    items: npt.NDArray[np.int64],
    row_items_N: npt.NDArray[np.int64],
    shares_N: npt.NDArray[np.float32],
) -> npt.NDArray[np.float64]:
    """P_repeat of each of `items`."""
    known = row_items_N >= 0
    distinct, inverse = np.unique(row_items_N[known], return_inverse=True)
    if not len(distinct):
        return np.zeros(len(items))
    totals = np.bincount(inverse, shares_N[known])
    places = np.searchsorted(distinct, items).clip(max=len(distinct) - 1)
    return np.where(distinct[places] == items, totals[places], 0.0)
