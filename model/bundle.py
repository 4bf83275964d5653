"""A bundle: one directory that holds everything a trained model needs, under one version.

bundle.json              manifest: format version, configs, catalogue fingerprint, training report, sha256 of each file
network.safetensors      weights
tokenizer.safetensors    codebooks, and an RQ-VAE's layers
item_vectors.safetensors vectors of the catalogue's items in its order, and the text encoder's weights
catalogue.safetensors    columns of the catalogue
titles.json              its titles
transitions.safetensors  what followed its items in training, where the network counts that
"""

import dataclasses
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cattrs
import safetensors
import safetensors.numpy
import safetensors.torch

from model.bundle_manifest import (
    FORMAT_VERSION,
    MANIFEST,
    read_manifest,
    sha256_of,
    verify_file,
    version_of,
)
from model.catalogue import Catalogue
from model.errors import BundleError, ModelError
from model.network import Network, NetworkConfig
from model.tokenizer.fitting import restore_tokenizer
from model.tokenizer.item_vectors import ItemVectors
from model.tokenizer.item_vectors_file import (
    ITEM_VECTORS,
    read_item_vectors,
    write_item_vectors,
)
from model.tokenizer.tokenizer import Tokenizer, TokenizerConfig
from model.transitions import Transitions
from model.trie import Trie
from state.errors import StateError
from state.segments import HistoryConfig

NETWORK, _TOKENIZER = "network.safetensors", "tokenizer.safetensors"
CATALOGUE, _TITLES = "catalogue.safetensors", "titles.json"
_TRANSITIONS = "transitions.safetensors"
_FILES = (NETWORK, _TOKENIZER, ITEM_VECTORS, CATALOGUE, _TITLES)
ORIGIN = "network_config_sha256"
_converter = cattrs.Converter(forbid_extra_keys=True)


@dataclass(frozen=True)
class Bundle:
    """A loaded bundle; the network is in evaluation mode."""

    version: str
    """12 hex digits over the content of every file."""
    path: Path
    network: Network
    history: HistoryConfig
    tokenizer: Tokenizer
    tokenizer_config: TokenizerConfig
    item_vectors: ItemVectors
    """Rows as the catalogue's items."""
    catalogue: Catalogue
    trie: Trie
    training_report: dict[str, Any]
    transitions: Transitions | None = None
    """Where the network counts them: `next_item.counts_transitions`."""


@dataclass(frozen=True)
class Trained:
    """What training hands over to be saved."""

    network: Network
    history: HistoryConfig
    tokenizer: Tokenizer
    tokenizer_config: TokenizerConfig
    item_vectors: ItemVectors
    """Rows as the catalogue's items."""
    catalogue: Catalogue
    training_report: dict[str, Any]
    transitions: Transitions | None = None
    """Where the network counts them."""


def save_bundle(trained: Trained, path: Path) -> str:
    """Write a bundle to `path` and return its version.

    Written to a temporary directory beside `path` and renamed, so that a reader sees all of it or nothing. Raises
    BundleError when `path` holds something that is not a bundle, or cannot be written.
    """
    check_target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            manifest = _write_files(trained, directory)
            directory.chmod(0o755)
            _replace(directory, path)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    except OSError as error:
        raise BundleError(f"{path} cannot be written: {error}") from error
    return version_of(manifest)


def check_target(path: Path) -> None:
    """Raises BundleError when `path` holds something that saving a bundle there would destroy."""
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not (path / MANIFEST).is_file() and not is_empty:
        raise BundleError(f"{path} exists and is not a bundle; give another directory")


def load_bundle(path: Path) -> Bundle:
    """Read and verify a bundle.

    Raises BundleError for one that is missing, damaged, of an unknown format, or whose parts do not fit together.
    """
    version, manifest = read_manifest(path)
    for name in (*_FILES, *({_TRANSITIONS} & set(manifest["sha256"]))):
        verify_file(path / name, manifest["sha256"].get(name))
    try:
        return _assemble(path, version, manifest)
    except cattrs.BaseValidationError as error:
        faults = "; ".join(cattrs.transform_error(error, path="", format_exception=_phrase))
        raise _unfit(path, faults) from error
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise _unfit(path, str(error)) from error
    except (ModelError, StateError, safetensors.SafetensorError) as error:
        raise BundleError(f"{path}: {error}") from error


def _assemble(path: Path, version: str, manifest: dict[str, Any]) -> Bundle:
    history = _converter.structure(manifest["history"], HistoryConfig)
    tokenizer_config = _converter.structure(manifest["tokenizer"], TokenizerConfig)
    network_config = _converter.structure(manifest["network"], NetworkConfig)
    network = Network(
        network_config,
        history,
        tokenizer_config.num_levels,
        tokenizer_config.codebook_size,
    )
    _check_origin(path, manifest)
    network.load_state_dict(safetensors.torch.load_file(path / NETWORK))
    _check_finite(path, network)
    tokenizer_tensors = safetensors.torch.load_file(path / _TOKENIZER)
    titles = json.loads((path / _TITLES).read_text("utf-8"))
    catalogue = Catalogue(safetensors.numpy.load_file(path / CATALOGUE), titles)
    if catalogue.fingerprint != manifest["catalogue_fingerprint"]:
        raise BundleError(
            f"the catalogue's fingerprint is {catalogue.fingerprint}, "
            f"the manifest says {manifest['catalogue_fingerprint']}"
        )
    return Bundle(
        version=version,
        path=path,
        network=network.eval().requires_grad_(False),
        history=history,
        tokenizer=restore_tokenizer(tokenizer_config, tokenizer_tensors),
        tokenizer_config=tokenizer_config,
        item_vectors=read_item_vectors(path / ITEM_VECTORS, len(catalogue)),
        catalogue=catalogue,
        trie=Trie(catalogue.sids_SD, catalogue.sid_counts_S),
        training_report=manifest["training_report"],
        transitions=_transitions(path, manifest, network_config),
    )


def _transitions(
    path: Path, manifest: dict[str, Any], network: NetworkConfig
) -> Transitions | None:
    if not network.next_item.counts_transitions:
        return None
    if _TRANSITIONS not in manifest["sha256"]:
        raise BundleError(f"its network counts transitions, and {MANIFEST} names no {_TRANSITIONS}")
    return Transitions.of_arrays(safetensors.numpy.load_file(path / _TRANSITIONS))


def _write_files(trained: Trained, directory: Path) -> bytes:
    """All files; returns the manifest's bytes."""
    weights = {name: tensor.contiguous() for name, tensor in trained.network.state_dict().items()}
    origin = {ORIGIN: origin_of(dataclasses.asdict(trained.network.config))}
    safetensors.torch.save_file(weights, directory / NETWORK, origin)
    safetensors.torch.save_file(trained.tokenizer.tensors(), directory / _TOKENIZER)
    write_item_vectors(trained.item_vectors, directory / ITEM_VECTORS)
    safetensors.numpy.save_file(trained.catalogue.columns, directory / CATALOGUE)
    (directory / _TITLES).write_text(json.dumps(trained.catalogue.titles), "utf-8")
    names: tuple[str, ...] = _FILES
    if trained.transitions is not None:
        safetensors.numpy.save_file(trained.transitions.arrays(), directory / _TRANSITIONS)
        names = (*names, _TRANSITIONS)
    manifest = {
        "format_version": FORMAT_VERSION,
        "network": dataclasses.asdict(trained.network.config),
        "history": dataclasses.asdict(trained.history),
        "tokenizer": dataclasses.asdict(trained.tokenizer_config),
        "catalogue_fingerprint": trained.catalogue.fingerprint,
        "training_report": trained.training_report,
        "sha256": {name: sha256_of(directory / name) for name in names},
    }
    data = json.dumps(manifest, indent=2, sort_keys=True, allow_nan=False).encode()
    (directory / MANIFEST).write_bytes(data)
    for file in directory.iterdir():
        file.chmod(0o644)  # safetensors makes files for their owner alone
    return data


def _check_origin(path: Path, manifest: dict[str, Any]) -> None:
    """Weights mean something under the configuration that they were trained with alone."""
    with safetensors.safe_open(path / NETWORK, "pt") as file:
        if (file.metadata() or {}).get(ORIGIN) != origin_of(manifest["network"]):
            raise BundleError(
                f"{path / NETWORK} was trained with another `network` than {MANIFEST} says; copy the bundle again"
            )


def origin_of(network: dict[str, Any]) -> str:
    """What the weights' file says of the configuration that they were trained with."""
    return hashlib.sha256(json.dumps(network, sort_keys=True).encode()).hexdigest()


def _check_finite(path: Path, network: Network) -> None:
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise BundleError(
                f"{path / NETWORK}: {name} holds values that are not finite, so its training diverged; train again with a "
                "smaller learning rate"
            )


def _unfit(path: Path, fault: str) -> BundleError:
    return BundleError(
        f"{path}: its parts do not fit together: {fault}; copy the bundle again, or make a new one with `gemstream train`"
    )


def _phrase(error: BaseException, _: type | None) -> str:
    return str(error)


def _replace(directory: Path, path: Path) -> None:
    """Rename onto `path`; an older bundle there steps aside first and is then removed."""
    if not path.exists():
        directory.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    path.rename(old / "bundle")
    directory.rename(path)
    shutil.rmtree(old)
