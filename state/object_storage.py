"""The only file that knows pyarrow.fs: whole files in a directory or in an S3-compatible bucket."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import ArrowException, fs

from state.errors import ConfigError, DamagedCheckpoint, RepositoryUnavailable

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class StoredObject:
    """One file in the storage."""

    path: str
    name: str
    num_bytes: int
    written_at_s: float


class ObjectStorage:
    """Files under paths, relative to the root that `uri` names. Thread-safe.

    Every call raises RepositoryUnavailable when the place does not answer.
    """

    def __init__(self, uri: str, section: str = "checkpoints") -> None:
        """Nothing is looked up before the first call. Raises ConfigError for an address that cannot be meant.

        `section` of the settings gave the `uri`, and is named in messages.
        """
        self._uri = uri
        self._section = section
        try:
            if "://" in uri:
                self._fs, root = fs.FileSystem.from_uri(uri)
            else:
                self._fs, root = fs.LocalFileSystem(), str(Path(uri).absolute())
        except (ArrowException, OSError) as error:
            raise ConfigError(f"{section}.uri {uri!r} cannot be used: {error}") from error
        self._is_local = isinstance(self._fs, fs.LocalFileSystem)
        self._root = root.rstrip("/")

    @property
    def shown_uri(self) -> str:
        """The address without its options."""
        return urlsplit(self._uri)._replace(query="").geturl()

    def check_there(self) -> None:
        """A bucket or directory that is not there must not look like an empty one. Raises RepositoryUnavailable."""
        anchor = self._root if self._is_local else self._root.split("/")[0]
        with self._calls():
            is_there = self._fs.get_file_info(anchor).type is not fs.FileType.NotFound
        if not is_there:
            raise RepositoryUnavailable(
                f"there is no {anchor} for {self._section} ({self._section}.uri): make it, mount it, or set another uri"
            )

    def directories(self, path: str) -> list[str]:
        """The names of the directories in `path`; none where that is not there."""
        found = self._list(path)
        return [info.base_name for info in found if info.type is fs.FileType.Directory]

    def files(self, path: str) -> list[StoredObject]:
        """The files in `path`; none where that is not there."""
        return [
            StoredObject(
                f"{path}/{info.base_name}", info.base_name, info.size, info.mtime.timestamp()
            )
            for info in self._list(path)
            if info.type is fs.FileType.File
        ]

    def blocks(self, path: str) -> Iterator[bytes]:
        """The contents of a file. Raises DamagedCheckpoint when it is not there."""
        try:
            with self._calls():
                stream = self._fs.open_input_stream(self._absolute(path))
        except RepositoryUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise DamagedCheckpoint(f"{path} is missing") from error
            raise
        with stream:
            while True:
                with self._calls():
                    block: bytes = stream.read(BLOCK_BYTES)
                if not block:
                    return
                yield block

    @contextmanager
    def writing(self, path: str) -> Iterator[Callable[[bytes], None]]:
        """Gives what takes the blocks of a new file; it survives a loss of power when this ends well.

        After an error there may be a part of the file.
        """
        absolute = self._absolute(path)
        with self._calls():
            if self._is_local:
                self._fs.create_dir(absolute.rpartition("/")[0])
            stream = self._fs.open_output_stream(absolute)

        def write(block: bytes) -> None:
            with self._calls():
                stream.write(block)

        try:
            yield write
        finally:
            with self._calls():
                stream.close()
        if self._is_local:
            with self._calls(), Path(absolute).open("rb") as written:
                os.fsync(written.fileno())

    @contextmanager
    def replacing(self, path: str) -> Iterator[Callable[[bytes], None]]:
        """As `writing`; in a directory, what was there before stays until the new file is whole."""
        part = f"{path}.part" if self._is_local else path
        with self.writing(part) as write:
            yield write
        if part != path:
            with self._calls():
                self._fs.move(self._absolute(part), self._absolute(path))

    def write_whole(self, path: str, data: bytes) -> None:
        """Write a file that is there as a whole or not at all; an object appears once its upload is complete."""
        with self.replacing(path) as write:
            write(data)

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens where it is not there."""
        with self._calls(), suppress(FileNotFoundError):
            self._fs.delete_file(self._absolute(path))

    def _list(self, path: str) -> list[fs.FileInfo]:
        with self._calls():
            found: list[fs.FileInfo] = self._fs.get_file_info(
                fs.FileSelector(self._absolute(path), allow_not_found=True)
            )
        return found

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Map what the library raises."""
        try:
            yield
        except (OSError, ArrowException) as error:
            raise RepositoryUnavailable(
                f"{self._section} at {self.shown_uri} cannot be read or written: {error}"
            ) from error
