"""What a bundle at hand cannot use of items that are about to be sent."""

from collections.abc import Sequence
from pathlib import Path

from protos.item_pb2 import CatalogueEntry


def item_warnings(entries: Sequence[CatalogueEntry], bundle: Path) -> list[str]:
    """A line per reason, with how many items it concerns; empty where there is no such bundle.

    Which items the bundle has, and so keeps as they are, is not looked up.
    """
    from model.item_knowledge import ItemKnowledge
    from model.tokenizer.item_vectors_file import ITEM_VECTORS, read_blocks
    from services.item_messages import new_item_of

    if not (bundle / ITEM_VECTORS).is_file():
        return []
    knowledge = ItemKnowledge(read_blocks(bundle / ITEM_VECTORS))
    by_reason: dict[str, list[int]] = {}
    for entry in entries:
        new = new_item_of(entry)
        reason = knowledge.content_fault(new)
        if reason is None and knowledge.says_nothing(new):
            reason = knowledge.why_nothing(new)
        if reason is not None:
            by_reason.setdefault(reason, []).append(new.item.item_id)
    return [
        f"{len(ids)} of the items (the first is {ids[0]}) will be refused where {bundle} serves and does not "
        f"have them: {reason}"
        for reason, ids in by_reason.items()
    ]
