"""Items on the wire (protos/item.proto) and as the model has them."""

from model.catalogue import CatalogueItem
from protos import item_pb2


def item_from_wire(item: item_pb2.Item) -> CatalogueItem:
    """The same item."""
    return CatalogueItem(
        item_id=item.item_id,
        author_id=item.author_id,
        tag=item.tag,
        title=item.title,
        duration_ms=item.duration_ms,
    )


def item_to_wire(item: CatalogueItem) -> item_pb2.Item:
    """The same item."""
    return item_pb2.Item(
        item_id=item.item_id,
        author_id=item.author_id,
        tag=item.tag,
        title=item.title,
        duration_ms=item.duration_ms,
    )
