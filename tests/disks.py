"""A real file system of a few megabytes, to be filled."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(path: Path, size: str) -> Iterator[Path]:
    """`path` as a disk of its own; skips the test where mounting is not allowed, as in most containers."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount a file system: {mounted.stderr.decode()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
