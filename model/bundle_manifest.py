"""A bundle's manifest: format version, configurations, fingerprints, training report, and the hash of every other file."""

import hashlib
import json
from pathlib import Path
from typing import Any

from model.errors import BundleError

FORMAT_VERSION = 7
MANIFEST = "bundle.json"
_VERSION_DIGITS = 12
_KEYS: dict[str, type] = {
    "format_version": int,
    "network": dict,
    "history": dict,
    "tokenizer": dict,
    "catalogue_fingerprint": str,
    "training_report": dict,
    "sha256": dict,
}
"""What every manifest holds."""


def read_manifest(path: Path) -> tuple[str, dict[str, Any]]:
    """Version and manifest of a bundle. Raises BundleError when it is missing, damaged or of another format."""
    try:
        data = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise BundleError(
            f"{path} is not a bundle: {MANIFEST} cannot be read ({error.strerror}); make one with `gemstream train`"
        ) from error
    try:
        manifest = json.loads(data.decode())
        found = manifest["format_version"]
    except UnicodeDecodeError as error:
        raise _damaged(path, f"byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _damaged(path, f"no JSON at line {error.lineno}, column {error.colno}") from error
    except (KeyError, TypeError) as error:
        raise _damaged(path, "it lacks format_version") from error
    if found != FORMAT_VERSION:
        raise BundleError(
            f"{path} has bundle format {found}; this release reads format {FORMAT_VERSION}: "
            "make a new one with `gemstream train`"
        )
    for name, kind in _KEYS.items():
        if not isinstance(manifest.get(name), kind):
            raise _damaged(path, f"{name} is missing, or not a {kind.__name__}")
    return version_of(data), manifest


def verify_file(file: Path, expected: str | None) -> None:
    """Raises BundleError when a file is missing, or its sha256 is not the manifest's."""
    if not file.is_file():
        raise BundleError(f"{file} is missing; copy the bundle again")
    if sha256_of(file) != expected:
        raise BundleError(
            f"{file} is damaged: its sha256 is not the manifest's; copy the bundle again"
        )


def sha256_of(file: Path) -> str:
    """Of a file's content, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def version_of(manifest: bytes) -> str:
    """The manifest holds the hash of every other file, so its own hash covers the content of all."""
    return hashlib.sha256(manifest).hexdigest()[:_VERSION_DIGITS]


def _damaged(path: Path, fault: str) -> BundleError:
    return BundleError(f"{path / MANIFEST} is damaged: {fault}; copy the bundle again")
