"""Deletions as records: a null value under the user's key, or a request to forget one item."""

from protos.interaction_pb2 import INTERACTION_KIND_FORGET, Interaction
from stream.producer import Producer, wait_for_delivery


async def send_deletion(producer: Producer, topic: str, user_id: str) -> None:
    """Return when the deletion is in the log of the interactions topic. Raises StreamError."""
    await wait_for_delivery([await producer.send(topic, None, key=user_id.encode())])


async def send_forget(producer: Producer, topic: str, user_id: str, item_id: int) -> int:
    """Return the request's offset when it is in the log of the interactions topic. Raises StreamError."""
    request = Interaction(user_id=user_id, item_id=item_id, kinds=[INTERACTION_KIND_FORGET])
    delivery = await producer.send(topic, request.SerializeToString(), key=user_id.encode())
    (delivered,) = await wait_for_delivery([delivery])
    return delivered.offset
