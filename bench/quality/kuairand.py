"""KuaiRand-Pure: short-video watches with times; the last two days test, long views are targets."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from bench.quality.events import counted_in, make_event_log, write_items
from bench.quality.protocols import cuts_between, until
from bench.quality.sources import data_file
from bench.quality.task import Provenance, Task
from model.catalogue import collect_items
from model.training.histories import Index, build_histories
from state.interaction import KIND_NAMES
from state.segments import HistoryConfig

NAME = "kuairand"
EVENTS = (
    "kuairand_pure_events.parquet",
    "2ff54bc6d6bceeff52c9bfc932ed15526246b711c6ced5b80b27e2ddf418ebfa",
)
ITEMS = (
    "kuairand_pure_items.parquet",
    "0c346c2daee244fa7cc1340ce2c845bca308d2036bef793f2c6a31e5f1180b8f",
)
EARLIER = (
    "kuairand_pure_warm_histories.parquet",
    "f971f721ab831162e275ad46a85eaf3057b8ae6f1a230f869543f817205f7456",
)
_KIND_COLUMNS = {
    "click": "is_click",
    "like": "is_like",
    "share": "is_forward",
    "comment": "is_comment",
    "follow": "is_follow",
    "long_view": "long_view",
    "dislike": "is_hate",
}
_VIEW = 1 << KIND_NAMES.index("view")
_LONG_VIEW = 1 << KIND_NAMES.index("long_view")
_TARGET_KINDS = ("long_view",)


def _midnight(day: str) -> int:
    """In Beijing."""
    time = np.datetime64(f"{day}T00:00") - np.timedelta64(8, "h")
    return int(time.astype("datetime64[ms]").astype(np.int64))


EARLIER_BEGIN_MS = _midnight("2022-04-08")
VALIDATION_BEGINS_MS, TEST_BEGINS_MS = _midnight("2022-05-06"), _midnight("2022-05-07")
TEST_ENDS_MS = _midnight("2022-05-09")


def load_task() -> Task:
    """Read the set. Raises DataSetUnusable when its files are missing or others."""
    items = pyarrow.parquet.read_table(data_file(*ITEMS))
    item_ids = items["video_id"].to_numpy() + 1
    tags = _tags(items["tag"])
    authors = items["author_id"].to_numpy()
    items_path = write_items(
        NAME,
        {
            "item_id": pa.array(item_ids, pa.uint64()),
            "author_id": pa.array(authors, pa.uint64()),
            "tag": pa.array(tags, pa.uint32()),
        },
    )
    columns = _joined(_earlier(), _events())
    order = np.argsort(item_ids)
    place = order[np.searchsorted(item_ids[order], columns["item_id"])]
    users = columns.pop("user")
    log = make_event_log(users, {**columns, "author_id": authors[place], "tag": tags[place]})
    histories = build_histories(log, target_kinds=_TARGET_KINDS)
    table = collect_items(log.rows, 1, items_path)
    training = until(log, VALIDATION_BEGINS_MS)
    return Task(
        name=NAME,
        training=training,
        histories=histories,
        cuts=cuts_between(histories, table, TEST_BEGINS_MS, TEST_ENDS_MS),
        validation_cuts=cuts_between(histories, table, VALIDATION_BEGINS_MS, TEST_BEGINS_MS),
        items=counted_in(training, table),
        items_path=items_path,
        segments=HistoryConfig(recent_len=64, mid_term_len=256, chunk_len=64),
        repeats=True,
        target_kinds=_TARGET_KINDS,
        length_bounds=(20, 40, 60),
        provenance=Provenance(
            source="KuaiRand-Pure (Gao et al., CIKM 2022): recommended videos, 25 April to 8 May 2022, and up to 50 earlier watches per user",
            licence="CC BY-SA 4.0: attribution, share alike",
            protocol=(
                "Next long view: everything until 5 May (Beijing) trains, 6 May validates, 7 and 8 May test. Each watch is a basket "
                "of its own, since a request comes after every watch; targets are long views (18 s, or the whole of a shorter "
                "video), which mean the same in both of the app's views, where is_click does not. The history is all watches before "
                "it, those that were not liked, too. All videos that were ever watched are ranked. Earlier watches have an order but "
                "only the last time: they are spread evenly from 8 April to that."
            ),
        ),
    )


def _tags(column: pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    """The first of a video's tags, plus one; 0: not known."""
    first = pc.list_element(pc.split_pattern(column, ","), 0)
    numbers = pc.if_else(pc.equal(first, "unknown"), "-1", first).cast(pa.int64())
    return np.asarray(pc.fill_null(numbers, -1).to_numpy() + 1).astype(np.uint32)


def _events() -> dict[str, npt.NDArray[Any]]:
    table = pyarrow.parquet.read_table(data_file(*EVENTS))
    kinds = np.full(len(table), _VIEW, np.uint32)
    for name, column in _KIND_COLUMNS.items():
        kinds |= (table[column].to_numpy() != 0).astype(np.uint32) << KIND_NAMES.index(name)
    return {
        "user": table["user_id"].to_numpy(),
        "item_id": table["video_id"].to_numpy() + 1,
        "event_time_ms": table["time_ms"].to_numpy(),
        "play_time_ms": table["play_time_ms"].to_numpy().clip(0),
        "duration_ms": table["duration_ms"].to_numpy().clip(0),
        "kinds": kinds,
    }


def _earlier() -> dict[str, npt.NDArray[Any]]:
    """The watches before the log, one row each."""
    table = pyarrow.parquet.read_table(data_file(*EARLIER))
    watched = table["watch_seq"].combine_chunks()
    lengths = pc.list_value_length(watched).to_numpy().astype(np.int64)
    videos = watched.flatten().to_numpy()
    user = np.repeat(np.arange(len(table)), lengths)
    starts = np.cumsum(lengths) - lengths
    behind = (starts + lengths)[user] - 1 - np.arange(len(videos))
    last_ms, total = (table[name].to_numpy() for name in ("last_time_ms", "history_len"))
    step_ms = (last_ms - EARLIER_BEGIN_MS) // np.maximum(total, lengths)
    kinds = np.full(len(videos), _VIEW, np.uint32)
    kinds[_are_long_views(user, videos, table["long_watch_seq"].combine_chunks())] |= _LONG_VIEW
    return {
        "user": table["user_id"].to_numpy()[user],
        "item_id": videos + 1,
        "event_time_ms": last_ms[user] - behind * step_ms[user],
        "kinds": kinds,
    }


def _are_long_views(
    user: Index, videos: Index, long_watched: pa.ListArray
) -> npt.NDArray[np.bool_]:
    """Watches of a video that the user watched long at least once."""
    lengths = pc.list_value_length(long_watched).to_numpy().astype(np.int64)
    stride = int(videos.max(initial=0)) + 1
    others = long_watched.flatten().to_numpy()
    keys = np.repeat(np.arange(len(lengths)), lengths)[others < stride] * stride
    return np.isin(user * stride + videos, keys + others[others < stride])


def _joined(*parts: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Columns one below the other; zeros where a part lacks one."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: np.concatenate(
            [part.get(name, np.zeros(len(part["user"]), np.int64)) for part in parts]
        )
        for name in names
    }
