"""MovieLens-1M and Amazon 2014 (Beauty, Sports, Toys): sequences without times, leave-one-out."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from bench.quality.events import counted_in, make_event_log, times_by_position, write_items
from bench.quality.protocols import leave_one_out
from bench.quality.sources import data_file
from bench.quality.task import Provenance, Task
from model.catalogue import collect_items
from state.segments import HistoryConfig

_PROTOCOL = (
    "Leave-one-out: each user's last item is the test's target, the one before it that of validation (and in the test's "
    "history), the rest trains. Every item is ranked, no sampled negatives; items the user had are taken out of each "
    "ranking; ties in random order. Position p stands for day p after 2001-01-01."
)
_MOVIELENS = "GroupLens: research use, no redistribution"
_AMAZON = "no clear grant: research use, no redistribution"


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The files of one set, by name, and their SHA-256."""

    name: str
    sequences: tuple[str, str]
    items: tuple[str, str] | None
    item_column: str = "item"
    """Of the items' file, what sequences call an item."""
    tag_column: str = "category"
    source: str
    licence: str
    segments: HistoryConfig
    length_bounds: tuple[int, ...] = (6, 10, 20)


_SHORT = HistoryConfig(recent_len=64, mid_term_len=256, chunk_len=64)
ML1M = SequenceFiles(
    name="ml1m",
    sequences=(
        "ml1m_sequences.parquet",
        "9eac424b18deaa3626d5bf8e75bf944d2d60666b45468018af5f891f70e47b25",
    ),
    items=(
        "ml1m_items.parquet",
        "da2e31b9380701712d73e64e7f90f75fffab4a667ee6c1e9b41090f733ef969d",
    ),
    item_column="movielens_id",
    tag_column="genres",
    source="MovieLens-1M in SASRec's order, items with five ratings or more",
    licence=_MOVIELENS,
    segments=HistoryConfig(recent_len=200, mid_term_len=512, chunk_len=64),
    length_bounds=(50, 100, 200, 500),
)
BEAUTY = SequenceFiles(
    name="beauty",
    sequences=(
        "amazon_beauty_sequences.parquet",
        "1f32db08eb28f0236a1284142028fdb6e4ea08b5ff6782196713617982fac3e1",
    ),
    items=(
        "amazon_beauty_items.parquet",
        "91668e24d8a7d09fe1e68589477410ea9cb2c36f0c313f4034a10a3d6fa6fb99",
    ),
    source="Amazon reviews 2014, Beauty, 5-core: the split files of S3-Rec and TIGER",
    licence=_AMAZON,
    segments=_SHORT,
)
SPORTS = SequenceFiles(
    name="sports",
    sequences=(
        "amazon_sports_sequences.parquet",
        "e0d28abdd2b3e79ce90d1a141a5b1fb1d3a81a6a6c055a593b477ad3c0491b8b",
    ),
    items=None,
    source="Amazon reviews 2014, Sports and Outdoors, 5-core: the split files of S3-Rec and TIGER",
    licence=_AMAZON,
    segments=_SHORT,
)
TOYS = SequenceFiles(
    name="toys",
    sequences=(
        "amazon_toys_sequences.parquet",
        "841fb6a416f68cd21a69ea4c1beaa381c3ff25da18f05132f611c17141d81c7b",
    ),
    items=(
        "amazon_toys_items.parquet",
        "66502199d7d63907051cf5473d491aa967700f326dad6c143fb4fb2303907cd5",
    ),
    source="Amazon reviews 2014, Toys and Games, 5-core: the split files of S3-Rec and TIGER",
    licence=_AMAZON,
    segments=_SHORT,
)


def load_ml1m() -> Task:
    """MovieLens-1M."""
    return load_sequences(ML1M)


def load_beauty() -> Task:
    """Amazon Beauty."""
    return load_sequences(BEAUTY)


def load_sports() -> Task:
    """Amazon Sports and Outdoors."""
    return load_sequences(SPORTS)


def load_toys() -> Task:
    """Amazon Toys and Games."""
    return load_sequences(TOYS)


def load_sequences(files: SequenceFiles) -> Task:
    """Read one set. Raises DataSetUnusable when its files are missing or others."""
    table = pyarrow.parquet.read_table(data_file(*files.sequences))
    users, items = (table[name].to_numpy() for name in ("user", "item"))
    positions = table["pos"].to_numpy()
    item_columns = _item_columns(files, items)
    tags = _tags_by_item(item_columns)
    log = make_event_log(
        users,
        {
            "item_id": items,
            "tag": tags[items],
            "event_time_ms": times_by_position(positions),
        },
    )
    items_path = write_items(files.name, item_columns)
    training, histories, cuts, validation_cuts = leave_one_out(log)
    return Task(
        name=files.name,
        training=training,
        histories=histories,
        cuts=cuts,
        validation_cuts=validation_cuts,
        items=counted_in(training, collect_items(log.rows, 1, items_path)),
        items_path=items_path,
        segments=files.segments,
        repeats=False,
        length_bounds=files.length_bounds,
        provenance=Provenance(source=files.source, licence=files.licence, protocol=_PROTOCOL),
    )


def _item_columns(files: SequenceFiles, items: npt.NDArray[Any]) -> dict[str, Any]:
    """Columns of the items file; a tag is the number of a whole category path, or list of genres."""
    if files.items is None:
        return {"item_id": pa.array(np.unique(items), pa.uint64())}
    table = pyarrow.parquet.read_table(data_file(*files.items))
    categories = table[files.tag_column].combine_chunks().fill_null("").dictionary_encode()
    names = np.array(categories.dictionary.to_pylist())
    rank = np.empty(len(names), np.int64)
    rank[np.argsort(names)] = np.arange(len(names))
    tags = rank[categories.indices.to_numpy()] + 1
    return {
        "item_id": table[files.item_column].cast(pa.uint64()),
        "tag": pa.array(tags, pa.uint32()),
        "title": _titles(table["title"].to_pylist(), table[files.tag_column].to_pylist()),
    }


def _titles(titles: list[str | None], categories: list[str | None]) -> list[str]:
    """A title and the words of its categories: all that item vectors know of the text."""
    words = [re.sub("[>|]", " ", category or "") for category in categories]
    return [f"{title or ''} {more}".strip() for title, more in zip(titles, words, strict=True)]


def _tags_by_item(columns: dict[str, Any]) -> npt.NDArray[np.uint32]:
    """[largest id + 1]."""
    ids = columns["item_id"].to_numpy()
    tags = np.zeros(int(ids.max()) + 1, np.uint32)
    if "tag" in columns:
        tags[ids] = columns["tag"].to_numpy()
    return tags
