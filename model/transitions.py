"""What came soon after an item in training, as a sparse table: what counting knows of the next item, beside the network.

    S(item) = sum over the 16 newest interactions, k = 0, 1, ... back, of .6^k n(i_k, item) / n(i_k)
    gain(item) = log(1 + S(item) / .003)

The items of these interactions gain nothing: whether they come again is for repeats to say. n(i) counts interactions
with i, n(i, j) what `model/training/transition_counts.py` counts. After item-to-item collaborative filtering (Linden et
al., 2003), with the order of things.

Shapes: I items that training knew, F transitions, B contexts, N items of a catalogue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.errors import BundleError
from model.query import ItemIds

Places = npt.NDArray[np.int64]

NUM_NEWEST = 16
"""Interactions whose followers count; what is further back has faded."""
_FADE = 0.6
_UNKNOWN = 0.003
"""S below which what was counted is no evidence."""
_TYPES = {"item_ids": np.uint64, "starts": np.int64, "followers": np.int32, "shares": np.float32}


@dataclass(frozen=True)
class Transitions:
    """Of each item that training knew, what followed it, and n(i, j) / n(i)."""

    item_ids: ItemIds
    """[I]."""
    starts: npt.NDArray[np.int64]
    """[I + 1]: where each item's followers begin."""
    followers: npt.NDArray[np.int32]
    """[F]: places in `item_ids`."""
    shares: npt.NDArray[np.float32]
    """[F]."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """By name, to be stored."""
        return {name: getattr(self, name) for name in _TYPES}

    @staticmethod
    def of_arrays(arrays: dict[str, npt.NDArray[Any]]) -> "Transitions":
        """What `arrays` gave. Raises BundleError for what does not fit together."""
        found = {name: array.dtype for name, array in arrays.items()}
        if found != _TYPES:
            raise BundleError(f"transitions are {found}; expected are {_TYPES}")
        made = Transitions(**arrays)
        num_items, starts, followers = len(made.item_ids), made.starts, made.followers
        if (
            len(starts) != num_items + 1
            or starts[0] != 0
            or starts[-1] != len(followers)
            or (np.diff(starts) < 0).any()
            or len(made.shares) != len(followers)
            or not ((followers >= 0) & (followers < num_items)).all()
            or not (np.isfinite(made.shares) & (made.shares >= 0)).all()
        ):
            raise BundleError("transitions do not fit together; copy the bundle again")
        return made


@dataclass(frozen=True)
class Gains:
    """What some items of a catalogue gain in some contexts, each named once; all others gain nothing."""

    contexts: Tensor
    items: Tensor
    values: Tensor

    def add_to(self, logits_BN: Tensor, weight: float) -> None:
        """Raise the logits by `weight` times the gains, in place."""
        logits_BN[self.contexts, self.items] += weight * self.values.to(logits_BN)


class Followers:
    """Transitions between the items of one catalogue."""

    def __init__(self, transitions: Transitions, catalogue: Catalogue) -> None:
        """Items that the catalogue lacks, and those that training did not know, follow nothing and are not followed."""
        self.transitions, self._catalogue = transitions, catalogue
        self._index_of_place = catalogue.find(transitions.item_ids)
        self._place_of_index = np.full(len(catalogue), -1)
        known = np.flatnonzero(self._index_of_place >= 0)
        self._place_of_index[self._index_of_place[known]] = known

    def gains(self, newest: Sequence[ItemIds]) -> Gains:
        """For contexts whose newest interactions are with these items, the newest last; these items gain nothing."""
        newest = [item_ids[-NUM_NEWEST:] for item_ids in newest]
        context = np.repeat(np.arange(len(newest)), np.array([*map(len, newest)], np.int64))
        back = np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(len(one))[::-1] for one in newest)]
        )
        index = self._catalogue.find(np.concatenate([np.zeros(0, np.uint64), *newest]))
        had = context * len(self._catalogue) + index
        place = np.where(index >= 0, self._place_of_index[index], -1)
        known = place >= 0
        context, back, place = context[known], back[known], place[known]
        pair, of_pair = self._pairs(place)
        item = self._index_of_place[self.transitions.followers[pair]]
        share = self.transitions.shares[pair] * _FADE ** back[of_pair]
        keys = context[of_pair] * len(self._catalogue) + item
        here = (item >= 0) & ~np.isin(keys, had[index >= 0])
        found, of_key = np.unique(keys[here], return_inverse=True)
        sums = np.bincount(of_key, share[here], len(found))
        contexts, items = np.divmod(found, len(self._catalogue))
        values = torch.from_numpy(np.log1p(sums / _UNKNOWN))
        return Gains(torch.from_numpy(contexts), torch.from_numpy(items), values)

    def _pairs(self, places: Places) -> tuple[Places, Places]:
        """The transitions of items one behind the other, and of which of the items each is."""
        begin = self.transitions.starts[places]
        lengths = self.transitions.starts[places + 1] - begin
        of_pair = np.repeat(np.arange(len(places)), lengths)
        before = np.cumsum(lengths) - lengths
        return np.arange(len(of_pair)) + (begin - before)[of_pair], of_pair
