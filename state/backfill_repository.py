"""The backfills of a topic, in a directory or an S3-compatible bucket.

TOPIC.backfills/NAME/PARTITION.json     the manifest, written last
TOPIC.backfills/NAME/PARTITION/FILE     sorted files of the partition
"""

import os
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

from state.backfill_manifest import BackfillManifest
from state.checkpoint_manifest import StoredFile
from state.errors import DamagedCheckpoint, StoreError
from state.object_storage import BLOCK_BYTES, ObjectStorage


class BackfillRepository:
    """Thread-safe; nothing is kept between calls. Every call raises RepositoryUnavailable when the storage does not answer."""

    def __init__(self, storage: ObjectStorage, topic: str) -> None:
        """Nothing is looked up before the first call."""
        self.topic = topic
        self._storage = storage
        self._root = f"{topic}.backfills"

    @property
    def shown_uri(self) -> str:
        """Where this is, for people."""
        return self._storage.shown_uri

    def check_there(self) -> None:
        """Raises RepositoryUnavailable where the directory or bucket does not exist."""
        self._storage.check_there()

    def partitions(self, name: str) -> list[int]:
        """The partitions of a backfill that are complete, in order."""
        files = self._storage.files(f"{self._root}/{name}")
        stems = [each.name.removesuffix(".json") for each in files if each.name.endswith(".json")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def names(self, partition: int, taken: Collection[str]) -> list[str]:
        """The backfills not in `taken` that have this partition complete."""
        self._storage.check_there()
        names = sorted(set(self._storage.directories(self._root)) - set(taken))
        return [name for name in names if partition in self.partitions(name)]

    def read(self, name: str, partition: int) -> BackfillManifest:
        """One manifest. Raises DamagedCheckpoint, UnknownFormat."""
        path = self._manifest_path(name, partition)
        what = f"backfill {name}, partition {partition}"
        manifest = BackfillManifest.decode(b"".join(self._storage.blocks(path)), what)
        if (manifest.backfill, manifest.topic, manifest.partition) != (name, self.topic, partition):
            raise DamagedCheckpoint(f"{what}: its manifest is another's; was a directory renamed?")
        return manifest

    def publish(self, manifest: BackfillManifest, directory: Path) -> None:
        """Upload the files of `directory`, then the manifest. Raises StoreError when `directory` cannot be read."""
        for file in manifest.files:
            with self._storage.writing(self._file_path(manifest, file)) as write:
                try:
                    with (directory / file.name).open("rb") as content:
                        while block := content.read(BLOCK_BYTES):
                            write(block)
                except OSError as error:
                    raise StoreError(f"{directory / file.name}: {error}") from error
        path = self._manifest_path(manifest.backfill, manifest.partition)
        self._storage.write_whole(path, manifest.encode())

    def download(self, manifest: BackfillManifest, directory: Path) -> None:
        """All files into the new `directory`. Raises DamagedCheckpoint where contents differ, and StoreError."""
        try:
            directory.mkdir(parents=True)
            for file in manifest.files:
                self._download(manifest, file, directory / file.name)
        except OSError as error:
            raise StoreError(f"{directory}: {error}") from error

    def _download(self, manifest: BackfillManifest, file: StoredFile, path: Path) -> None:
        digest = sha256()
        with path.open("xb") as target:
            for block in self._storage.blocks(self._file_path(manifest, file)):
                digest.update(block)
                target.write(block)
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != file.sha256:
            raise DamagedCheckpoint(
                f"backfill {manifest.backfill}, partition {manifest.partition}: {file.name} is not what was written; "
                f"delete {self._manifest_path(manifest.backfill, manifest.partition)} at {self.shown_uri} and give the "
                "command that made it again"
            )

    def _manifest_path(self, name: str, partition: int) -> str:
        return f"{self._root}/{name}/{partition:05d}.json"

    def _file_path(self, manifest: BackfillManifest, file: StoredFile) -> str:
        return f"{self._root}/{manifest.backfill}/{manifest.partition:05d}/{file.name}"


def stored_file(path: Path) -> StoredFile:
    """A local file as a manifest names it. Raises StoreError."""
    digest = sha256()
    try:
        with path.open("rb") as content:
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
        return StoredFile(path.name, path.stat().st_size, digest.hexdigest())
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error
