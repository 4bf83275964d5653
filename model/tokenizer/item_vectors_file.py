"""Item vectors in a bundle: one safetensors file; vectors as float16, blocks and the text encoder's name in its header."""

import json
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file

from model.errors import BundleError
from model.tokenizer.item_vectors import Block, ItemVectors
from model.tokenizer.text import FittedText

ITEM_VECTORS = "item_vectors.safetensors"
"""The file's name in a bundle."""
_VECTORS, _TEXT_PREFIX = "vectors", "text."


def write_item_vectors(vectors: ItemVectors, path: Path) -> None:
    """Write the file. Half precision keeps three digits: enough for means of vectors, at half the size."""
    tensors = {_VECTORS: vectors.vectors_RV.half().contiguous()}
    header = {"blocks": json.dumps([vars(block) for block in vectors.blocks])}
    if vectors.text is not None:
        header["text_encoder"] = vectors.text.name
        tensors |= {_TEXT_PREFIX + name: tensor for name, tensor in vectors.text.tensors.items()}
    save_file(tensors, path, header)


def read_item_vectors(path: Path, num_items: int) -> ItemVectors:
    """The vectors of a catalogue of `num_items`. Raises BundleError, KeyError, ValueError, SafetensorError."""
    with safetensors.safe_open(path, "pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    blocks = _blocks(header)
    vectors_RV = tensors.pop(_VECTORS)
    expected = (num_items, sum(block.width for block in blocks))
    if vectors_RV.shape != expected or vectors_RV.dtype != torch.float16:
        raise BundleError(
            f"item vectors are {tuple(vectors_RV.shape)}, {vectors_RV.dtype}; the catalogue needs {expected}"
        )
    text = None
    if "text_encoder" in header:
        weights = {name.removeprefix(_TEXT_PREFIX): tensor for name, tensor in tensors.items()}
        text = FittedText(header["text_encoder"], weights)
    return ItemVectors(blocks, vectors_RV, text)


def read_blocks(path: Path) -> list[Block]:
    """What the vectors of a file are made of; the vectors are not read. Raises BundleError."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return _blocks(file.metadata() or {})
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path} is damaged: {error}; copy the bundle again") from error


def _blocks(header: dict[str, str]) -> list[Block]:
    return [Block(**block) for block in json.loads(header["blocks"])]
