"""Where the files of data sets lie, and that they are the ones that figures were made of."""

import hashlib
import os
from pathlib import Path

CACHE = Path(".cache/quality")
ENVIRONMENT = "GEMSTREAM_DATA"


class DataSetUnusable(Exception):
    """A data set's files are missing, or are others; the message says which and what to do."""


def data_file(name: str, sha256: str) -> Path:
    """A file of a set that may not be passed on, in the directory that GEMSTREAM_DATA names.

    Raises DataSetUnusable when the variable is not set, the file is not there, or is another one.
    """
    directory = os.environ.get(ENVIRONMENT)
    if not directory:
        raise DataSetUnusable(
            f"{ENVIRONMENT} is not set: {name} does not come with Gemstream; "
            f"set it to the directory that holds your copy"
        )
    path = Path(directory) / name
    if not path.is_file():
        raise DataSetUnusable(f"{path}: no such file; {ENVIRONMENT} is {directory!r}")
    return checked(path, sha256)


def checked(path: Path, sha256: str) -> Path:
    """`path`, whose bytes have this SHA-256. Raises DataSetUnusable when they have another."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DataSetUnusable(
            f"{path}: SHA-256 is {found}, expected {sha256}: not the file that results are of"
        )
    return path
