"""How far a consumer group has committed, asked from the broker, so that the node is not disturbed."""

from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from stream.topics import TopicsConfig


class GroupWatch:
    """Offsets of one group. A node commits after each poll that it applied. Use as an async context manager."""

    def __init__(self, bootstrap: str, topics: TopicsConfig, group: str) -> None:
        """Nothing is connected yet."""
        self._group = group
        self._where = [
            TopicPartition(topics.interactions, number) for number in range(topics.num_partitions)
        ]
        self._admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._admin.start()
        await self._consumer.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""
        await self._consumer.stop()
        await self._admin.close()

    async def committed(self) -> list[int]:
        """Next offset to apply, by partition; 0 where nothing was committed."""
        offsets = await self._admin.list_consumer_group_offsets(self._group)
        return [max(0, offsets[where].offset) if where in offsets else 0 for where in self._where]

    async def ends(self) -> list[int]:
        """End of each partition."""
        offsets = await self._consumer.end_offsets(self._where)
        return [offsets[where] for where in self._where]
