"""A user's deletion as a record: a null value under the user's key."""

from stream.producer import Producer, wait_for_delivery


async def send_deletion(producer: Producer, topic: str, user_id: str) -> None:
    """Return when the deletion is in the log of the interactions topic. Raises StreamError."""
    await wait_for_delivery([await producer.send(topic, None, key=user_id.encode())])
