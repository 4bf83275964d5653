"""What a bundle is: version, sizes, tokenizer and health, catalogue, training report."""

from math import prod
from pathlib import Path
from typing import Any

import safetensors

from model.bundle import CATALOGUE, NETWORK, load_bundle
from model.bundle_manifest import read_manifest
from model.tokenizer.item_vectors_file import ITEM_VECTORS


def bundle_card(path: Path) -> dict[str, Any]:
    """Facts of a bundle that can be loaded. Raises BundleError as `load_bundle` does."""
    load_bundle(path)
    version, manifest = read_manifest(path)
    report = dict(manifest["training_report"])
    return {
        "version": version,
        "path": str(path.resolve()),
        "format_version": manifest["format_version"],
        "bytes": {name: (path / name).stat().st_size for name in manifest["sha256"]},
        "network": {
            "parameters": _parameters(_shapes(path / NETWORK)),
            "config": manifest["network"],
        },
        "history": manifest["history"],
        "tokenizer": {"config": manifest["tokenizer"], "health": report.pop("tokenizer", None)},
        "item_vectors": {"width": _shapes(path / ITEM_VECTORS)["vectors"][1]},
        "catalogue": {
            "items": _shapes(path / CATALOGUE)["item_ids"][0],
            "fingerprint": manifest["catalogue_fingerprint"],
        },
        "training_report": report,
    }


def _shapes(file: Path) -> dict[str, list[int]]:
    with safetensors.safe_open(file, "np") as tensors:
        return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118  no mapping


def _parameters(shapes: dict[str, list[int]]) -> dict[str, int]:
    """How many numbers each part of the network has, and all together."""
    counts: dict[str, int] = {}
    for name, shape in shapes.items():
        part = name.split(".")[0]
        counts[part] = counts.get(part, 0) + prod(shape)
    return {**counts, "all": sum(counts.values())}
