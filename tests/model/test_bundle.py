"""Bundles: what is saved is loaded, and whatever is wrong has a name."""

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.bundle import Bundle, Trained, load_bundle, save_bundle
from model.bundle_card import bundle_card
from model.bundle_manifest import FORMAT_VERSION, MANIFEST
from model.errors import BundleError


@pytest.fixture
def copied(bundle_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle_path, tmp_path / "copy"))


def trained_from(bundle: Bundle) -> Trained:
    return Trained(
        bundle.network,
        bundle.history,
        bundle.tokenizer,
        bundle.tokenizer_config,
        bundle.item_vectors,
        bundle.catalogue,
        bundle.training_report,
    )


def test_saving_again_gives_the_same_version(bundle: Bundle, tmp_path: Path) -> None:
    version = save_bundle(trained_from(bundle), tmp_path / "again")
    assert version == bundle.version
    assert len(version) == 12
    again = load_bundle(tmp_path / "again")
    assert again.history == bundle.history
    assert again.catalogue.fingerprint == bundle.catalogue.fingerprint
    for name, weight in bundle.network.state_dict().items():
        assert torch.equal(weight, again.network.state_dict()[name])
    assert not again.network.training


def test_an_older_bundle_is_replaced_and_nothing_is_left_behind(
    bundle: Bundle, copied: Path
) -> None:
    assert save_bundle(trained_from(bundle), copied) == bundle.version
    assert [path.name for path in copied.parent.iterdir()] == ["copy"]


def test_other_directories_are_not_overwritten(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match="not a bundle"):
        save_bundle(trained_from(bundle), tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_missing_bundle_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="gemstream train"):
        load_bundle(tmp_path / "none")


@pytest.mark.parametrize(
    "name",
    [
        "network.safetensors",
        "tokenizer.safetensors",
        "item_vectors.safetensors",
        "catalogue.safetensors",
        "titles.json",
    ],
)
def test_every_file_is_verified(copied: Path, name: str) -> None:
    data = bytearray((copied / name).read_bytes())
    data[-1] ^= 1
    (copied / name).write_bytes(data)
    with pytest.raises(BundleError, match=f"{name} is damaged"):
        load_bundle(copied)
    (copied / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        load_bundle(copied)


def edit(bundle: Path, **changes: object) -> None:
    manifest = json.loads((bundle / MANIFEST).read_text())
    (bundle / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def test_unknown_formats_and_settings_are_refused(copied: Path) -> None:
    for version in (2, 99):
        edit(copied, format_version=version)
        with pytest.raises(BundleError, match=f"format {version}; this release reads"):
            load_bundle(copied)
    edit(copied, format_version=FORMAT_VERSION, history={"recent_length": 3})
    with pytest.raises(BundleError, match="do not fit together"):
        load_bundle(copied)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "no JSON at line 1, column 2"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"[]", "it lacks format_version"),
        (b"{}", "it lacks format_version"),
    ],
)
def test_a_damaged_manifest_is_named(copied: Path, content: bytes, fault: str) -> None:
    (copied / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError) as caught:
        load_bundle(copied)
    assert str(caught.value) == (f"{copied / MANIFEST} is damaged: {fault}; copy the bundle again")


def test_parts_of_other_sizes_are_refused(copied: Path, bundle: Bundle) -> None:
    history = {"recent_len": 9, "mid_term_len": 16, "chunk_len": 4, "max_history": 1000}
    edit(copied, history=history)
    with pytest.raises(BundleError, match="do not fit together"):
        load_bundle(copied)
    edit(copied, catalogue_fingerprint="0" * 12)
    with pytest.raises(BundleError, match="do not fit together|fingerprint"):
        load_bundle(copied)


def test_the_version_covers_the_manifest(copied: Path, bundle: Bundle) -> None:
    edit(copied, training_report={})
    assert load_bundle(copied).version != bundle.version


@pytest.mark.parametrize("module", ["model", "model.errors", "services.cli.train"])
def test_these_imports_load_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The manifest with a change that its own hash agrees with."""
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no network": (lambda m: m.pop("network"), "network is missing"),
    "history as text": (lambda m: m.update(history="short"), "history is missing, or not a dict"),
    "no report": (lambda m: m.update(training_report=None), "training_report is missing"),
    "zeroed fingerprint": (lambda m: m.update(catalogue_fingerprint="0"), "fingerprint"),
    "chunks of nothing": (lambda m: m["history"].update(chunk_len=0), "chunk_len"),
    "another delta": (
        lambda m: m["network"]["lifecycle"].update(delta="none"),
        "was trained with another `network`",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_that_does_not_fit_is_refused_by_loading_and_showing(
    copied: Path, name: str
) -> None:
    change, message = CHANGES[name]
    rewritten(copied, change)
    for read in (load_bundle, bundle_card):
        with pytest.raises(BundleError, match=message):
            read(copied)


def test_weights_of_a_run_that_diverged_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    network = copy.deepcopy(bundle.network)
    with torch.no_grad():
        network.bos_H[0] = torch.nan
    save_bundle(replace(trained_from(bundle), network=network), tmp_path / "diverged")
    with pytest.raises(BundleError, match="bos_H holds values that are not finite"):
        load_bundle(tmp_path / "diverged")


def test_others_may_read_a_bundle(bundle: Bundle, tmp_path: Path) -> None:
    """A service under another account."""
    save_bundle(trained_from(bundle), tmp_path / "again")
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "again").iterdir()} == {0o644}
