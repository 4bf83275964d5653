"""The checkpoints of a topic, in a directory or an S3-compatible bucket.

    TOPIC/PARTITION/NEXT_OFFSET-CREATED_AT_MS.json   the manifest; a checkpoint exists if and only if it does
    TOPIC/PARTITION/files/SHA256                     a file; successive checkpoints share most of theirs

A state follows from its topic and the lengths of its histories, so whoever owns a partition next goes on in its place.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from state.checkpoint_manifest import (
    Manifest,
    StoredFile,
    created_at_ms_of,
    is_manifest_name,
    offset_of,
)
from state.errors import CheckpointError, DamagedCheckpoint, StoreError, UnknownFormat
from state.object_storage import BLOCK_BYTES, ObjectStorage

log = logging.getLogger(__name__)

_SUFFIX = ".json"
_STRANGER_GRACE_S = 3_600.0
"""A file that no manifest names may belong to a checkpoint that another node is just writing."""


class CheckpointRepository:
    """Thread-safe; one node at a time should write the checkpoints of a partition. Nothing is kept between calls.

    Every call raises RepositoryUnavailable when the storage does not answer.
    """

    def __init__(self, storage: ObjectStorage, topic: str) -> None:
        """Nothing is looked up before the first call."""
        self.topic = topic
        self._storage = storage

    @property
    def shown_uri(self) -> str:
        """Where this is, for people."""
        return self._storage.shown_uri

    def shown_place(self, partition: int) -> str:
        """Where the checkpoints of a partition lie, for people."""
        return self._shown(self._place(partition))

    def partitions(self) -> list[int]:
        """The partitions that have a place here, in order."""
        self._storage.check_there()
        return sorted(
            int(name) for name in self._storage.directories(self.topic) if name.isdecimal()
        )

    def names(self, partition: int) -> list[str]:
        """The names of a partition's checkpoints, newest first."""
        self._storage.check_there()
        found = self._storage.files(self._place(partition))
        names = [each.name.removesuffix(_SUFFIX) for each in found]
        return sorted(
            (name for name in names if is_manifest_name(name)),
            key=lambda name: (offset_of(name), created_at_ms_of(name)),
            reverse=True,
        )

    def read(self, partition: int, name: str) -> Manifest:
        """One manifest. Raises DamagedCheckpoint, UnknownFormat."""
        path = self._manifest_path(partition, name)
        data = b"".join(self._storage.blocks(path))
        try:
            manifest = Manifest.decode(name, data)
        except DamagedCheckpoint as error:
            raise DamagedCheckpoint(
                f"{error}; move {self._shown(path)} away, the other checkpoints are used without it"
            ) from error
        if (manifest.topic, manifest.partition) != (self.topic, partition):
            raise DamagedCheckpoint(
                f"checkpoint {name} of partition {partition} of {self.topic!r} is one of partition "
                f"{manifest.partition} of {manifest.topic!r}; was a directory renamed?"
            )
        return manifest

    def faults(self, manifest: Manifest) -> list[str]:
        """What is missing or has another size; the contents are not read."""
        stored = self._stored_sizes(manifest.partition)
        return [
            f"{file.name} is missing ({file.sha256})"
            if file.sha256 not in stored
            else f"{file.name} has {stored[file.sha256]} bytes, not {file.num_bytes} ({file.sha256})"
            for file in manifest.files
            if stored.get(file.sha256) != file.num_bytes
        ]

    def publish(
        self,
        manifest: Manifest,
        directory: Path,
        check_owner: Callable[[], None],
        *,
        full: bool = False,
    ) -> int:
        """Upload what of `directory` is not there yet, then the manifest; returns the bytes uploaded.

        `full` writes the files that are there again, too: whatever happened to them, they are good afterwards.

        `check_owner` is called again and again, and last before the manifest; when it raises, there is no checkpoint.
        Raises StoreError when `directory` cannot be read.
        """
        # A file that no manifest names is written again: it may be half a file, or about to be removed.
        storage = self._storage
        named, _ = self._named_files(manifest.partition)
        stored = self._stored_sizes(manifest.partition)
        present = {digest: size for digest, size in stored.items() if digest in named and not full}
        uploaded = 0
        for file in manifest.files:
            if present.get(file.sha256) != file.num_bytes:
                path = self._file_path(manifest.partition, file)
                with (storage.replacing if full else storage.writing)(path) as write:
                    _copy(directory / file.name, write, check_owner)
                present[file.sha256] = file.num_bytes
                uploaded += file.num_bytes
        if faults := self.faults(manifest):
            raise CheckpointError(
                f"checkpoint {manifest.name} of partition {manifest.partition} was not finished: {'; '.join(faults)}"
            )
        check_owner()
        path = self._manifest_path(manifest.partition, manifest.name)
        self._storage.write_whole(path, manifest.encode())
        return uploaded

    def download(self, manifest: Manifest, directory: Path, check: Callable[[], None]) -> None:
        """All files into the new `directory`, their contents checked. `check` may raise to end it.

        Raises DamagedCheckpoint, and StoreError when `directory` cannot be written.
        """
        with _local_errors(directory):
            directory.mkdir(parents=True)
        for file in manifest.files:
            with _local_errors(directory), (directory / file.name).open("xb") as target:
                for block in self._verified_blocks(manifest, file):
                    check()
                    target.write(block)
                target.flush()
                os.fsync(target.fileno())

    def end_of(self, manifest: Manifest, file: StoredFile, num_bytes: int) -> bytes:
        """The last `num_bytes` of a file, whose contents are checked. Raises DamagedCheckpoint."""
        end = b""
        for block in self._verified_blocks(manifest, file):
            end = (end + block)[-num_bytes:]
        return end

    def prune(self, partition: int, keep: int, max_age_s: float) -> int:
        """Remove all checkpoints but the newest `keep`, and but the newest one those older than `max_age_s`.

        The newest without damage stays, however many or young those with damage are. One that cannot be read does not
        count among those to keep. Returns how many left. Their files leave with them, unless a checkpoint that remains
        names them.
        """
        oldest_ms = (time.time() - max_age_s) * 1_000
        rank, has_whole, dropped = 0, False, []
        for name in self.names(partition):
            is_old = created_at_ms_of(name) < oldest_ms
            if not has_whole and self.damage(partition, name) is None:
                has_whole, rank = True, rank + 1
            elif rank >= keep or (is_old and rank > 0):
                dropped.append(name)
            elif self._is_readable(partition, name):
                rank += 1
            elif is_old:
                dropped.append(name)
        self.remove(partition, dropped)
        return len(dropped)

    def damage(self, partition: int, name: str) -> str | None:
        """What is known to be wrong with a checkpoint without reading its files; None: nothing."""
        try:
            manifest = self.read(partition, name)
        except (DamagedCheckpoint, UnknownFormat) as error:
            return str(error)
        if faults := self.faults(manifest):
            return "; ".join(faults)
        if manifest.damaged_users:
            return f"{manifest.damaged_users} damaged users"
        return None

    def remove(self, partition: int, names: Iterable[str]) -> None:
        """Remove the checkpoints called `names`, and every file that none of the others needs."""
        left: set[str] = set()
        for name in names:
            with suppress(DamagedCheckpoint, UnknownFormat):  # its files are strangers from now on
                left |= {file.sha256 for file in self.read(partition, name).files}
            self._storage.delete(self._manifest_path(partition, name))
        self._remove_files(partition, left)

    def _remove_files(self, partition: int, left: set[str]) -> None:
        """Files that only a removed checkpoint named leave now, those that nobody ever named after a grace.

        Where a manifest cannot be read, it may name any of them: nothing is removed.
        """
        oldest_s = time.time() - _STRANGER_GRACE_S
        place = self._place(partition)
        # Looked at before the manifests are: a checkpoint that was completed in between keeps its files.
        found = [*self._storage.files(f"{place}/files"), *self._storage.files(place)]
        needed, unreadable = self._named_files(partition)
        if unreadable:
            log.warning("no files of partition %d are removed: %s", partition, unreadable[0])
            return
        for each in found:
            if each.name in needed or is_manifest_name(each.name.removesuffix(_SUFFIX)):
                continue
            if each.name in left or each.written_at_s < oldest_s:
                self._storage.delete(each.path)

    def _named_files(self, partition: int) -> tuple[set[str], list[str]]:
        """The hashes of all files that manifests of a partition name, and why some manifests cannot be read."""
        named: set[str] = set()
        unreadable = []
        for name in self.names(partition):
            try:
                named |= {file.sha256 for file in self.read(partition, name).files}
            except (DamagedCheckpoint, UnknownFormat) as error:
                unreadable.append(str(error))
        return named, unreadable

    def _is_readable(self, partition: int, name: str) -> bool:
        try:
            self.read(partition, name)
        except (DamagedCheckpoint, UnknownFormat):
            return False
        return True

    def _verified_blocks(self, manifest: Manifest, file: StoredFile) -> Iterator[bytes]:
        digest, num_bytes = sha256(), 0
        for block in self._storage.blocks(self._file_path(manifest.partition, file)):
            digest.update(block)
            num_bytes += len(block)
            yield block
        if num_bytes != file.num_bytes or digest.hexdigest() != file.sha256:
            error = DamagedCheckpoint(
                f"checkpoint {manifest.name}: {file.name} is not what was written, its contents have another hash "
                f"({file.sha256})"
            )
            path = self._shown(self._file_path(manifest.partition, file))
            error.add_note(
                f"delete {path}: the next checkpoint of a node that still has it writes it again"
            )
            raise error

    def _stored_sizes(self, partition: int) -> dict[str, int]:
        found = self._storage.files(f"{self._place(partition)}/files")
        return {each.name: each.num_bytes for each in found}

    def _shown(self, path: str) -> str:
        return f"{self.shown_uri.rstrip('/')}/{path}"

    def _place(self, partition: int) -> str:
        return f"{self.topic}/{partition:05d}"

    def _manifest_path(self, partition: int, name: str) -> str:
        return f"{self._place(partition)}/{name}{_SUFFIX}"

    def _file_path(self, partition: int, file: StoredFile) -> str:
        return f"{self._place(partition)}/files/{file.sha256}"


def _copy(source: Path, write: Callable[[bytes], None], check_owner: Callable[[], None]) -> None:
    with _local_errors(source), source.open("rb") as content:
        while block := content.read(BLOCK_BYTES):
            check_owner()
            write(block)


@contextmanager
def _local_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error
