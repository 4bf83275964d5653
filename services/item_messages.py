"""Items of the catalogue between the wire (protos/item.proto, protos/catalogue.proto) and the model."""

import numpy as np

from model.item_knowledge import NewItem
from model.item_placement import Offer, Refusal, Removal
from model.live_catalogue import CatalogueVersion
from protos import catalogue_pb2
from protos.item_pb2 import CatalogueEntry
from services.item_wire import item_from_wire
from stream.item_records import ItemRecord


def change_of(record: ItemRecord) -> Offer | Refusal | Removal:
    """What a record whose key is an item id says of the item."""
    if record.fault is not None:
        return Refusal(record.fault)
    if record.entry is None:
        return Removal()
    return Offer(new=new_item_of(record.entry), expires_at_ms=record.entry.expires_at_ms)


def new_item_of(entry: CatalogueEntry) -> NewItem:
    """What an entry says of its item."""
    return NewItem(
        item=item_from_wire(entry.item),
        content=np.array(entry.content, np.float32) if entry.content else None,
        seen_with=tuple(entry.seen_with),
    )


def version_to_wire(version: CatalogueVersion) -> catalogue_pb2.CatalogueVersion:
    """The same version."""
    return catalogue_pb2.CatalogueVersion(
        number=version.number,
        next_offset=version.next_offset,
        items=version.num_items,
        sids=version.num_sids,
        changes=version.num_changes,
        created_at_ms=version.created_at_ms,
        rebuild_s=version.rebuild_s,
        newest_record_ms=version.newest_record_ms,
    )
