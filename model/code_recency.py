"""First codes that the nearer segments hold, by how far back: what just came goes on, comes again, or does not.

A stream's attention averages what it reads, so that a topic of three interactions in a thousand moves its state by next to
nothing; counts by distance tell which topics were there. Shapes: B contexts, T states, H width, K codes, R distances.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.catalogue import Catalogue

NUM_DISTANCES = 14
"""The newest interaction, the one before it, then up to 4, 8, ... back; the last also holds what lies beyond 4,096."""


class CodeRecency(nn.Module):
    """Logits l(k) of first codes to 2 sigmoid(-sum_r v_r c_r(k)) l(k) + sum_r w_r c_r(k); (w, v) = W h + b, h the BOS state.

    c_r(k) = log(1 + n_r(k)), where n_r(k) is how often code k stands at distance r in the recent and the mid-term segment. A
    code that is there can so be judged by that alone, whatever the streams say of it. W and b begin at zero: l stays l.
    """

    def __init__(self, width: int) -> None:
        """Two numbers per distance from a state."""
        super().__init__()
        self.weights = nn.Linear(width, 2 * NUM_DISTANCES)
        nn.init.zeros_(self.weights.weight)
        nn.init.zeros_(self.weights.bias)

    def forward(self, states_BTH: Tensor, logits_BTK: Tensor, counts_BRK: Tensor) -> Tensor:
        """[B, T, K]. `counts_BRK`, as from `FirstCodes.log_counts`, may lack codes at the end, which no item has."""
        added, damped = self.weights(states_BTH).chunk(2, -1)
        missing = logits_BTK.shape[-1] - counts_BRK.shape[-1]
        counts = nn.functional.pad(counts_BRK, (0, missing)).to(added.dtype)
        kept: Tensor = 2 * (-(damped @ counts)).sigmoid()
        return kept * logits_BTK + added @ counts


class FirstCodes:
    """The first codes of a catalogue's items, and their counts."""

    def __init__(self, catalogue: Catalogue) -> None:
        """`num_codes` reaches up to the last one that an item has."""
        self._catalogue = catalogue
        self.num_codes = int(catalogue.sids_SD[:, 0].max()) + 1

    def of(self, item_ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """[N]: the items' first codes; -1 for items that are not in the catalogue."""
        return self.at(self._catalogue.find(item_ids))

    def at(self, places_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """[N]: the same for places in the catalogue, -1 for none."""
        return np.where(places_N >= 0, self._catalogue.columns["sids"][places_N, 0], -1)

    def log_counts(self, codes_N: npt.NDArray[np.int64]) -> Tensor:
        """[R, K] float32: log(1 + count) of each code at each distance; `codes_N` oldest first, negative for none."""
        back = np.arange(len(codes_N), 0, -1)
        distances = np.minimum(np.ceil(np.log2(back)).astype(np.int64), NUM_DISTANCES - 1)
        known = codes_N >= 0
        places = distances[known] * self.num_codes + codes_N[known]
        counts = np.bincount(places, minlength=NUM_DISTANCES * self.num_codes)
        return torch.from_numpy(np.log1p(counts, dtype=np.float32)).view(NUM_DISTANCES, -1)
