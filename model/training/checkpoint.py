"""A checkpoint of a training run: one safetensors file, its header carrying the JSON of what is no tensor.

Metadata of the file: "progress" (JSON) and "digest" (xxh3-128 over progress, names and bytes of all tensors).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from model.errors import TrainingRunError

FORMAT_VERSION = 2


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], progress: dict[str, Any]) -> None:
    """Write durably, then rename: `path` holds the old checkpoint or the new one, never a part.

    Raises TrainingRunError when the disk refuses.
    """
    saved = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format_version": FORMAT_VERSION, **progress})
    metadata = {"progress": text, "digest": _digest(text, saved)}
    partial = path.with_suffix(".partial")
    try:
        safetensors.torch.save_file(saved, partial, metadata)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, safetensors.SafetensorError) as error:
        raise TrainingRunError(f"{path} cannot be written: {error}") from error


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and progress; None when there is no checkpoint. Raises TrainingRunError when it cannot be used."""
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["progress"]
        progress: dict[str, Any] = json.loads(text)
        version = progress["format_version"]
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if version != FORMAT_VERSION:
        raise TrainingRunError(
            f"{path} has checkpoint format {version}; this release reads format {FORMAT_VERSION}; "
            "begin again with --restart"
        )
    if _digest(text, tensors) != metadata.get("digest"):
        raise _damaged(path, "its content is not what was written")
    return tensors, progress


def _damaged(path: Path, fault: str) -> TrainingRunError:
    return TrainingRunError(f"{path} is damaged ({fault}); begin again with --restart")


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = xxhash.xxh3_128(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
