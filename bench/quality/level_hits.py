"""How far down the codes of the targets a search came: the share of targets whose first codes are among those found."""

import numpy as np

from bench.quality.task import ItemIds, Task
from model.catalogue import Catalogue
from model.training.histories import Index


class LevelHits:
    """Counts over rankings. A target out of the catalogue is found at no level."""

    def __init__(self, task: Task, catalogue: Catalogue) -> None:
        """Of a catalogue that holds what is ranked."""
        self._task, self._catalogue = task, catalogue
        self._prefixes_SD = _prefixes(catalogue.sids_SD.astype(np.int64))
        self._found = np.zeros(self._prefixes_SD.shape[1])
        self._targets = 0

    def add(self, cut: int, ranking: ItemIds) -> None:
        """All that a search found for a cut."""
        targets = self._codes(self._task.targets(cut))
        found = self._codes(ranking)
        for level in range(len(self._found)):
            self._found[level] += np.isin(targets[:, level], found[:, level]).sum()
        self._targets += len(self._task.targets(cut))

    def rates(self) -> list[float]:
        """Per level."""
        return [round(float(found / max(self._targets, 1)), 4) for found in self._found]

    def _codes(self, item_ids: ItemIds) -> Index:
        places = self._catalogue.find(item_ids)
        codes: Index = self._prefixes_SD[self._catalogue.bucket_of_item[places[places >= 0]]]
        return codes


def _prefixes(sids_SD: Index) -> Index:
    """[S, D]: a number for each SID's first codes; equal where these are equal."""
    numbers, columns = np.zeros(len(sids_SD), np.int64), []
    for codes in sids_SD.T:
        numbers = np.unique(np.stack([numbers, codes]), axis=1, return_inverse=True)[1].ravel()
        columns.append(numbers)
    return np.stack(columns, 1)
