"""The dead-letter topic read back: what is in it, and a letter's way into its source topic again."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from protos.compression_pb2 import CompressionJob
from protos.interaction_pb2 import Interaction
from stream.dead_letters import (
    COMPRESSION_JOB,
    CUT_FROM,
    KIND,
    REASON,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
)
from stream.errors import StreamError
from stream.producer import Header, Producer, wait_for_delivery
from stream.topic_reader import read_topic

_OURS = "gemstream-"


@dataclass(frozen=True)
class DeadLetter:
    """A rejected record and why it was."""

    partition: int
    offset: int
    time_ms: int
    """When it was rejected."""
    source: str
    """topic-partition@offset it came from."""
    source_topic: str
    reason: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    """The producer's own."""
    is_job: bool
    """Not an interaction: a compression job of a user that failed too often."""
    cut_from_bytes: int | None
    """Size of the whole value, when only its beginning could be kept."""

    @property
    def job(self) -> CompressionJob | None:
        """The value as a compression job, where it is one."""
        return CompressionJob.FromString(self.value or b"") if self.is_job else None

    @property
    def interaction(self) -> Interaction | None:
        """The value as an interaction, where it is one and can be parsed."""
        if self.is_job:
            return None
        try:
            return Interaction.FromString(self.value or b"") if self.value else None
        except DecodeError:
            return None


async def read_dead_letters(bootstrap: str, topic: str) -> AsyncIterator[DeadLetter]:
    """Every letter in the topic. Raises StreamError."""
    async for record in read_topic(bootstrap, topic):
        ours = {name: value.decode() for name, value in record.headers if name.startswith(_OURS)}
        where = f"{ours.get(SOURCE_PARTITION, '?')}@{ours.get(SOURCE_OFFSET, '?')}"
        cut = ours.get(CUT_FROM)
        yield DeadLetter(
            partition=record.partition,
            offset=record.offset,
            time_ms=record.timestamp,
            source=f"{ours.get(SOURCE_TOPIC, '?')}-{where}",
            source_topic=ours.get(SOURCE_TOPIC, ""),
            reason=ours.get(REASON, "?"),
            key=record.key,
            value=record.value,
            headers=[header for header in record.headers if not header[0].startswith(_OURS)],
            is_job=ours.get(KIND) == COMPRESSION_JOB.decode(),
            cut_from_bytes=int(cut) if cut else None,
        )


async def replay(producer: Producer, letter: DeadLetter, *, rekey: bool) -> None:
    """Send a letter to its source topic as it was; with `rekey` an interaction goes under its user's key. The letter stays where it is.

    Raises StreamError when it was cut, names no topic, or is to be rekeyed and cannot be parsed.
    """
    name = f"letter {letter.partition}:{letter.offset}"
    if letter.cut_from_bytes is not None:
        raise StreamError(
            f"{name} was cut from {letter.cut_from_bytes} bytes; read it at {letter.source}"
        )
    if not letter.source_topic:
        raise StreamError(f"{name} does not say where it came from")
    key = letter.key
    if rekey and not letter.is_job:
        interaction = letter.interaction
        if interaction is None or not interaction.user_id:
            raise StreamError(f"{name} cannot be rekeyed: its value names no user")
        key = interaction.user_id.encode()
    delivery = await producer.send(
        letter.source_topic, letter.value, key=key, headers=letter.headers
    )
    await wait_for_delivery([delivery])
