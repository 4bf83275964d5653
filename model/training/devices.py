"""Where training computes: a GPU when there is one, and how tensors get there."""

import copy
import dataclasses
import os
import resource
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from model.trie import Trie

Moved = TypeVar("Moved")


def training_device() -> torch.device:
    """A GPU when there is one; under torchrun, each process its own."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def new_tensors_on(device: torch.device) -> AbstractContextManager[object]:
    """What is created meanwhile lies on `device`."""
    return nullcontext() if device.type == "cpu" else device


def on_device(value: Moved, device: torch.device) -> Moved:
    """A copy of a tensor, or of what holds tensors, on `device`; the very value where it is there already."""
    return value if device.type == "cpu" else _moved(value, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [_moved(each, device) for each in value]
    if dataclasses.is_dataclass(value) or isinstance(value, Trie):
        moved = copy.copy(value)
        for name, field in vars(value).items():
            object.__setattr__(moved, name, _moved(field, device))
        return moved
    return value


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory so far: of the process, or of the tensors on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
