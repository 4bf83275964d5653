"""A bundle that was written before a setting existed serves as it did; a setting under a former name is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.bundle import NETWORK, ORIGIN, Bundle, load_bundle, origin_of
from model.bundle_manifest import MANIFEST, sha256_of
from model.errors import BundleError

LATER: dict[str, list[str]] = {
    "": ["residual", "codebooks", "tied_output"],
    "features": ["item_hashes"],
    "mid_term": ["teacher", "indexer_relu"],
}


@pytest.fixture
def copied(bundle_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle_path, tmp_path / "copy"))


def edit_network(path: Path, section: str, remove: list[str], **changes: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    table = manifest["network"][section] if section else manifest["network"]
    for name in remove:
        del table[name]
    table.update(changes)
    weights = path / NETWORK
    save_file(load_file(weights), weights, {ORIGIN: origin_of(manifest["network"])})
    manifest["sha256"][NETWORK] = sha256_of(weights)
    (path / MANIFEST).write_text(json.dumps(manifest))


def test_settings_that_did_not_exist_take_their_defaults(copied: Path, bundle: Bundle) -> None:
    for section, names in LATER.items():
        edit_network(copied, section, names)
    older = load_bundle(copied)
    assert older.network.config == bundle.network.config
    for name, weight in older.network.state_dict().items():
        assert torch.equal(weight, bundle.network.state_dict()[name])


def test_a_former_name_is_refused_with_the_names_of_today(copied: Path) -> None:
    edit_network(copied, "mid_term", [], divergence="as_printed")
    with pytest.raises(
        BundleError, match="as_printed not in .*'indexer_first'.* @ .mid_term.divergence"
    ):
        load_bundle(copied)
