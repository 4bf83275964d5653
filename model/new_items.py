"""New items in a loaded bundle: SIDs without refitting, and a catalogue and trie that hold them.

Shapes: N new items, D levels, W width of given vectors.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.bundle import Bundle
from model.errors import CatalogueError
from model.item_knowledge import ItemKnowledge, NewItem
from model.tokenizer.fold_in import popularity_shares, weigh_companions
from model.tokenizer.item_vectors import CONTENT, TEXT
from model.trie import Trie


def new_item_vectors(bundle: Bundle, new: Sequence[NewItem]) -> Tensor:
    """[N, V] item vectors. Raises ModelConfigError for content that the bundle's vectors have no place for."""
    vectors, given = bundle.item_vectors, {}
    if any(one.content is not None for one in new):
        width = next(len(one.content) for one in new if one.content is not None)
        absent = np.zeros(width, np.float32)
        rows = [absent if one.content is None else one.content for one in new]
        given[CONTENT] = torch.from_numpy(np.stack(rows).astype(np.float32))
    if vectors.text is not None:
        given[TEXT] = vectors.text.encode([one.item.title for one in new])
    found = [bundle.catalogue.find(np.array(one.seen_with, np.uint64)) for one in new]
    popularity_R = popularity_shares(bundle.catalogue.counts)
    return vectors.of_new(
        given, [weigh_companions(indices[indices >= 0], popularity_R) for indices in found]
    )


def assign_sids(bundle: Bundle, new: Sequence[NewItem]) -> npt.NDArray[np.int64]:
    """[N, D] codes of new items. Raises ModelConfigError as `new_item_vectors`, CatalogueError for unknown items."""
    return _codes(bundle, new, new_item_vectors(bundle, new))


def assign_where_known(
    bundle: Bundle, new: Sequence[NewItem]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """[N, D] codes of new items, and [N] whether anything is known of each: codes of the others mean nothing.

    Raises ModelConfigError as `new_item_vectors`.
    """
    vectors_NV = new_item_vectors(bundle, new)
    return bundle.tokenizer.assign(vectors_NV).numpy(), vectors_NV.any(1).numpy()


def with_new_items(bundle: Bundle, new: Sequence[NewItem]) -> Bundle:
    """The bundle with a larger catalogue and trie: same network, same version, so summaries stay valid.

    Raises CatalogueError for an item that is already there or of which nothing is known, ModelConfigError.
    """
    if not new:
        return bundle
    vectors_NV = new_item_vectors(bundle, new)
    sids_ND = _codes(bundle, new, vectors_NV)
    catalogue = bundle.catalogue.with_items([one.item for one in new], sids_ND)
    known = bundle.catalogue.item_ids
    ids = np.concatenate([known, np.array([one.item.item_id for one in new], np.uint64)])
    order = np.argsort(ids)
    rows = order[np.searchsorted(ids[order], catalogue.item_ids)]
    return replace(
        bundle,
        catalogue=catalogue,
        item_vectors=bundle.item_vectors.with_rows(vectors_NV).rows(rows),
        trie=Trie(catalogue.sids_SD, catalogue.sid_counts_S),
    )


def _codes(bundle: Bundle, new: Sequence[NewItem], vectors_NV: Tensor) -> npt.NDArray[np.int64]:
    nothing = torch.nonzero(~vectors_NV.any(1))[:, 0].tolist()
    if nothing:
        first = new[nothing[0]]
        reason = ItemKnowledge(bundle.item_vectors.blocks).why_nothing(first)
        raise CatalogueError(f"new item {first.item.item_id}: {reason}")
    return bundle.tokenizer.assign(vectors_NV).numpy()
