"""Item vectors that somebody computed elsewhere, read from a file and laid beside the items.

Shapes: N items, W vector width.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor

from model.errors import CatalogueError


def read_content(path: Path, item_ids: npt.NDArray[np.uint64]) -> Tensor:
    """[N, W] float32 vectors of `item_ids` (ascending); zeros for items that the file does not have.

    A `.parquet` file has the columns `item_id` and `vector` (lists of one length), a `.npz` file the arrays `item_ids`
    [M] and `vectors` [M, W]. Raises CatalogueError for a file that cannot be used, has none of the items, or only zeros for them.
    """
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if not path.is_file():
        raise CatalogueError(f"{path}: no such file")
    if path.suffix not in readers:
        raise CatalogueError(f"{path}: the name must end in .parquet or .npz")
    try:
        file_ids, vectors_MW = readers[path.suffix](path)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CatalogueError(f"{path}: cannot be read as item vectors: {error}") from error
    _check(path, file_ids, vectors_MW)
    places = np.searchsorted(item_ids, file_ids).clip(max=len(item_ids) - 1)
    found = item_ids[places] == file_ids
    if not found.any():
        raise CatalogueError(
            f"{path}: none of its {len(file_ids)} items is among the {len(item_ids)} of the catalogue"
        )
    vectors_NW = np.zeros((len(item_ids), vectors_MW.shape[1]), np.float32)
    vectors_NW[places[found]] = vectors_MW[found]
    if not vectors_NW.any():
        raise CatalogueError(f"{path}: the vectors of all {found.sum()} known items are zero")
    return torch.from_numpy(vectors_NW)


def _read_parquet(path: Path) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    table = pyarrow.parquet.read_table(path, columns=["item_id", "vector"])
    ids = table["item_id"].cast(pa.uint64()).to_numpy()
    lists = table["vector"].combine_chunks()
    values = lists.flatten().cast(pa.float32()).to_numpy(zero_copy_only=False)
    lengths = set(pa.compute.list_value_length(lists).to_pylist())
    if len(lengths) != 1 or None in lengths:
        raise ValueError(
            f"its vectors have the lengths {sorted(lengths, key=str)[:5]}; one is needed"
        )
    return ids, values.reshape(len(ids), -1)


def _read_npz(path: Path) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    with np.load(path, allow_pickle=False) as arrays:
        ids, vectors = arrays["item_ids"], arrays["vectors"]
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim != 1 or len(ids) != len(vectors):
        raise ValueError(f"item_ids is {ids.dtype} {ids.shape}, vectors {vectors.shape}")
    if (ids < 0).any():
        raise ValueError(f"item_ids holds {ids.min()}; ids are not negative")
    return ids.astype(np.uint64), vectors.astype(np.float32)


def _check(path: Path, ids: npt.NDArray[np.uint64], vectors: npt.NDArray[Any]) -> None:
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise CatalogueError(
            f"{path}: vectors have the shape {vectors.shape}; [items, width] is needed"
        )
    broken = ~np.isfinite(vectors).all(1)
    if broken.any():
        raise CatalogueError(f"{path}: the vector of item {ids[broken][0]} is not finite")
    unique, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise CatalogueError(f"{path}: item {unique[counts > 1][0]} is there twice")
