"""Data parallelism under `torchrun`: every process takes a part of each batch, and gradients are summed.

Losses are means over targets, pairs or contexts, of which the parts have different numbers: each part's loss is scaled
by its share of the whole batch's number, so that the sum over processes is what one process computes.
"""

import dataclasses
import importlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn

from model.errors import TrainingError
from model.training.batches import Batch
from model.training.losses import Losses


@dataclasses.dataclass(frozen=True)
class Workers:
    """The process among those that train together; alone, every method leaves things as they are."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """The one that decides and writes."""
        return self.rank == 0

    @property
    def shard(self) -> slice:
        """The process's part of a batch; every size-th context, so that parts are equally long."""
        return slice(self.rank, None, self.size)

    def agree(self, *values: float) -> list[float]:
        """The first process's values, on all of them."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.broadcast(tensor, 0)
        return tensor.tolist()

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element by element, over all processes."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(tensor)
        return tensor.tolist()

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Gradients of the whole batch; a parameter that no process has a gradient for keeps none."""
        if self.size == 1:
            return
        has = torch.tensor(
            [p.grad is not None for p in parameters], dtype=torch.int32, device="cpu"
        )
        dist.all_reduce(has)
        taking_part = [p for p, count in zip(parameters, has.tolist(), strict=True) if count]
        for p in taking_part:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = torch.cat([p.grad.flatten() for p in taking_part if p.grad is not None])
        dist.all_reduce(flat)
        parts = torch.split(flat, [p.numel() for p in taking_part])
        for p, part in zip(taking_part, parts, strict=True):
            p.grad = part.view_as(p)

    def begin_alike(self, network: nn.Module, identity: dict[str, Any]) -> None:
        """Give all the first one's weights. Raises TrainingError where the processes read different logs."""
        if self.size == 1:
            return
        own = float(xxhash.xxh32_intdigest(json.dumps(identity, sort_keys=True).encode()))
        (first,) = self.agree(own)
        (differing,) = self.sum([own != first])
        if differing:
            raise TrainingError(
                f"{differing:.0f} of {self.size} processes read another event log or made other codes than the first; "
                "give all of them the same files, settings and number of threads"
            )
        for tensor in network.state_dict().values():
            dist.broadcast(tensor, 0)


ALONE = Workers()


@contextmanager
def joined_workers() -> Iterator[Workers]:
    """The processes that `torchrun` started together, joined by gloo; alone without it. None of gloo's threads outlives it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or dist.is_initialized():
        yield ALONE
        return
    # Its functions take the group that is there at the import as a default, and the first step of an optimiser imports it: a
    # group that is held so is never destroyed, and a thread of it that frees a tensor while Python ends aborts the process.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("gloo")
    try:
        yield Workers(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()


def scale_to_share(
    losses: Losses, batch: Batch, workers: Workers, reconstruction_len: int
) -> Losses:
    """One part's contribution to the losses of the whole batch."""
    if workers.size == 1:
        return losses
    own = _denominators(batch, reconstruction_len)
    whole = workers.sum(list(own.values()))
    shares = {
        name: part / max(total, 1e-6)
        for (name, part), total in zip(own.items(), whole, strict=True)
    }
    scaled = {
        field.name: getattr(losses, field.name) * shares.get(field.name, shares["contexts"])
        for field in dataclasses.fields(losses)
        if isinstance(getattr(losses, field.name), Tensor)
    }
    measured_elsewhere = shares["indexer"] == 0 < whole[list(own).index("indexer")]
    kept = 0.0 if measured_elsewhere else losses.kept * shares["indexer"]
    return dataclasses.replace(losses, **scaled, kept=kept)


def mean_losses(found: Sequence[Losses], workers: Workers) -> Losses:
    """The mean of each loss over the batches of all processes; NaN counts as not measured."""
    names = [field.name for field in dataclasses.fields(Losses) if field.name != "kept_at"]
    values = [[float(getattr(losses, name)) for losses in found] for name in names]
    real = [[value for value in column if not math.isnan(value)] for column in values]
    sums = workers.sum([sum(column) for column in real])
    counts = workers.sum([len(column) for column in real])
    means = {
        name: total / count if count else math.nan
        for name, total, count in zip(names, sums, counts, strict=True)
    }
    kept = means.pop("kept")
    losses: dict[str, Any] = {name: torch.tensor(mean) for name, mean in means.items()}
    return Losses(**losses, kept=kept)


def _denominators(batch: Batch, reconstruction_len: int) -> dict[str, float]:
    """What each loss is a mean over; any other loss is a mean over the contexts."""
    older, mid_term, _ = torch.split(batch.mask, batch.lengths, 1)
    pairs = older.sum(1).clamp(max=reconstruction_len) - 1
    return {
        "next_token": float(batch.target_weights.sum()),
        "reconstruction": float(pairs.clamp(min=0).sum()),
        "indexer": float(mid_term.any(1).sum()),
        "next_item": float((batch.next_items >= 0).sum()),
        "contexts": float(len(batch.mask)),
    }
