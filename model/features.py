"""The seven features of an interaction, [vid, aid, tag, ts, pt, dur, label], to one vector.

Shapes: ... leading dimensions, F dense features, H width.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.layers import LayerConfig
from model.limits import check_limits
from state.interaction import NUM_KINDS, Rows

_DAY_MS = 86_400_000.0
_PERIODS_MS = tuple(_DAY_MS * days for days in (1, 7, 30, 91, 365, 1461))
_NUM_DENSE = NUM_KINDS + 2 * len(_PERIODS_MS)
_LOG_BUCKETS_PER_OCTAVE = 2
_NUM_LOG_BUCKETS = 32 * _LOG_BUCKETS_PER_OCTAVE + 1
_MAX_BUCKETS = 2**31
_SALT = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Sizes of the embedding tables. Raises ModelConfigError when one is too small."""

    item_buckets: int = 131_072
    item_hashes: int = 1
    """Rows of the item table that are summed for an id: with two, items rarely share all of their rows."""
    author_buckets: int = 8_192
    tag_buckets: int = 4_096
    small_width: int = 16
    """Width of every embedding but the item's."""
    mlp_width: int = 128

    def __post_init__(self) -> None:
        """Bucket 0 means "missing", so a table needs two rows."""
        check_limits(
            self, "item_buckets", "author_buckets", "tag_buckets", least=2, most=_MAX_BUCKETS
        )
        check_limits(self, "item_hashes", "small_width", "mlp_width", least=1)


@dataclass(frozen=True)
class ItemTensors:
    """Interactions as tensors: `ids` int64 table rows, `dense` [..., F] float32."""

    ids: Tensor
    """[..., item_hashes + 4]: of the item table, then one of each other table."""
    dense: Tensor

    def __getitem__(self, index: Tensor) -> "ItemTensors":
        """Gather along the first dimension."""
        return ItemTensors(self.ids[index], self.dense[index])

    def unsqueeze(self) -> "ItemTensors":
        """A leading dimension of one."""
        return ItemTensors(self.ids[None], self.dense[None])


def to_tensors(rows: Rows, config: FeatureConfig) -> ItemTensors:
    """Interactions [N] to tensors: the one place where numpy columns become model input. Zeros mean "missing"."""
    ids = np.stack(
        [
            *_item_buckets(rows["item_id"], config),
            hash_buckets(rows["author_id"], config.author_buckets),
            hash_buckets(rows["tag"].astype(np.uint64), config.tag_buckets),
            _log_buckets(rows["play_time_ms"]),
            _log_buckets(rows["duration_ms"]),
        ],
        axis=-1,
    )
    kinds = (rows["kinds"][:, None] >> np.arange(NUM_KINDS, dtype=np.uint32)) & 1
    phases = rows["event_time_ms"][:, None] * (2 * np.pi / np.array(_PERIODS_MS))
    dense = np.concatenate([kinds, np.sin(phases), np.cos(phases)], axis=-1, dtype=np.float32)
    return ItemTensors(torch.from_numpy(ids), torch.from_numpy(dense))


def hash_buckets(
    ids: npt.NDArray[np.uint64], num_buckets: int, salt: int = 0
) -> npt.NDArray[np.int64]:
    """64-bit ids to [1, num_buckets) by the splitmix64 finaliser of id XOR salt; id 0 to bucket 0."""
    x = ids.astype(np.uint64) ^ np.uint64(salt)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    buckets = 1 + (x % np.uint64(num_buckets - 1)).astype(np.int64)
    return np.where(ids == 0, 0, buckets)


def item_rows(item_ids: npt.NDArray[np.uint64], config: FeatureConfig) -> npt.NDArray[np.int64]:
    """[N, item_hashes]: rows of the item table."""
    return np.stack(_item_buckets(item_ids, config), -1)


def _item_buckets(
    item_ids: npt.NDArray[np.uint64], config: FeatureConfig
) -> list[npt.NDArray[np.int64]]:
    """The item table's rows of every id, one array per hash."""
    return [
        hash_buckets(item_ids, config.item_buckets, salt=i * _SALT % 2**64)
        for i in range(config.item_hashes)
    ]


def _log_buckets(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """0 for zero, then `_LOG_BUCKETS_PER_OCTAVE` buckets per doubling."""
    return np.ceil(np.log2(1.0 + values) * _LOG_BUCKETS_PER_OCTAVE).astype(np.int64)


class ItemFeatures(nn.Module):
    """x = e_vid + MLP([e_vid, e_aid, e_tag, ts, e_pt, e_dur, label]).

    The paper's MLP over the concatenation (GEMs, section 1.3 of our notes), around a skip of the item embedding: items
    then live in the space of the codebooks from the first step on. Depends on the interaction alone, never on "now".
    """

    def __init__(self, config: FeatureConfig, layer: LayerConfig) -> None:
        """Tables and the MLP."""
        super().__init__()
        self.config = config
        small = config.small_width
        self.vid = nn.Embedding(config.item_buckets, layer.width)
        self.others = nn.ModuleList(
            nn.Embedding(size, small)
            for size in (
                config.author_buckets,
                config.tag_buckets,
                _NUM_LOG_BUCKETS,
                _NUM_LOG_BUCKETS,
            )
        )
        joined_width = layer.width + 4 * small + _NUM_DENSE
        self.mlp = nn.Sequential(
            nn.Linear(joined_width, config.mlp_width),
            nn.SiLU(),
            nn.Linear(config.mlp_width, layer.width),
        )
        self.dropout = nn.Dropout(layer.dropout)
        for table in self.modules():
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=layer.width**-0.5)

    def forward(self, items: ItemTensors) -> Tensor:
        """[...] interactions to [..., H]."""
        hashes = self.config.item_hashes
        vid = self.item_vectors(items.ids[..., :hashes])
        others = [table(items.ids[..., hashes + i]) for i, table in enumerate(self.others)]
        return self.dropout(vid + self.mlp(torch.cat([vid, *others, items.dense], -1)))

    def item_vectors(self, rows: Tensor) -> Tensor:
        """[..., H]: e_vid of rows [..., item_hashes]."""
        return self.vid(rows).sum(-2)

    @torch.no_grad()
    def set_item_vectors(
        self, item_ids: npt.NDArray[np.uint64], vectors_IH: Tensor, counts: npt.NDArray[np.int64]
    ) -> None:
        """Start the item table from known vectors; items that share a bucket are averaged by their counts."""
        buckets = torch.from_numpy(np.concatenate(_item_buckets(item_ids, self.config)))
        hashes = self.config.item_hashes
        weights = torch.from_numpy(counts.astype(np.float32))[:, None].repeat(hashes, 1)
        shares_IH = vectors_IH.repeat(hashes, 1) / hashes
        total = torch.zeros(self.config.item_buckets, 1).index_add_(0, buckets, weights)
        summed = torch.zeros_like(self.vid.weight).index_add_(0, buckets, shares_IH * weights)
        known = total[:, 0] > 0
        self.vid.weight[known] = (summed / total.clamp(min=1))[known]
