"""Buckets to items: the probability of an item from that of its SID, and the best of them.

P(item) = (1 - g) P_generator(SID) c(item) / c(bucket) + g P_repeat(item), c the events counted in the catalogue, or of now; where
items are scored beside codes, P_generator's term is (1 - a) P_codes(SID) c(item) / c(bucket) + a P_next(item).
"""

import numpy as np
import numpy.typing as npt
import torch

from model.beam_search import Beams
from model.catalogue import Catalogue
from model.repeats import RepeatMixture


def rank_items(
    beams: Beams,
    mixture: RepeatMixture,
    catalogue: Catalogue,
    log_shares_N: npt.NDArray[np.float64],
    blocked: npt.NDArray[np.bool_] | None = None,
    request: int = 0,
) -> list[tuple[int, float]]:
    """Items of a request's beams that are not `blocked` [N], best first: (catalogue index, log-probability).

    `log_shares_N`: of each item in its bucket.
    """
    real = beams.log_probs[request].numpy() > -np.inf
    items, lengths = catalogue.items_of(beams.sids[request].numpy()[real])
    generator = np.repeat(beams.generator_log_probs[request].numpy()[real], lengths)
    if blocked is not None:
        items, generator = items[~blocked[items]], generator[~blocked[items]]
    by_codes = generator + log_shares_N[items]
    if mixture.next_items is not None:
        tensors = torch.from_numpy(items), torch.from_numpy(by_codes)
        by_codes = mixture.next_items.mix_items(request, *tensors).numpy()
    repeat = _repeat_share(items, *mixture.share_by_item[request])
    with np.errstate(divide="ignore"):
        log_probs = np.logaddexp(
            float(mixture.log_generator[request]) + by_codes,
            float(mixture.log_repeat[request]) + np.log(repeat),
        )
    order = np.lexsort((items, -log_probs))
    return list(zip(items[order].tolist(), log_probs[order].tolist(), strict=True))


def _repeat_share(
    items: npt.NDArray[np.int64],
    distinct: npt.NDArray[np.int64],
    totals: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """P_repeat of each of `items`, from that of the `distinct` ones that have any."""
    if not len(distinct):
        return np.zeros(len(items))
    places = np.searchsorted(distinct, items).clip(max=len(distinct) - 1)
    return np.where(distinct[places] == items, totals[places], 0.0)
