"""What is said of a new item, what a bundle can take from it, and the words for what it cannot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.catalogue import CatalogueItem
from model.tokenizer.item_vectors import CONTENT, TEXT, Block


@dataclass(frozen=True, kw_only=True)
class NewItem:
    """What is known of an item that has no SID yet: at least one of content, title (where titles count) and company."""

    item: CatalogueItem
    content: npt.NDArray[np.float32] | None = None
    """As wide as the vectors that the bundle was trained with, from the same source."""
    seen_with: Sequence[int] = ()
    """Ids of items it appeared with, with repetition; those that the catalogue does not have are skipped."""


@dataclass(frozen=True)
class ItemKnowledge:
    """By the blocks of the bundle's item vectors: content and titles count where the bundle was trained with them."""

    blocks: Sequence[Block]

    @property
    def content_width(self) -> int | None:
        """None: content does not count."""
        return next((block.width for block in self.blocks if block.name == CONTENT), None)

    @property
    def titles_count(self) -> bool:
        """Whether the bundle was trained with titles."""
        return any(block.name == TEXT for block in self.blocks)

    def content_fault(self, new: NewItem) -> str | None:
        """Why an item's content cannot be used; content that does not count is not looked at."""
        width = self.content_width
        if new.content is None or width is None:
            return None
        if len(new.content) != width:
            return f"its content is {len(new.content)} wide; the bundle's is {width}"
        return None if np.isfinite(new.content).all() else "its content is not finite"

    def says_nothing(self, new: NewItem) -> bool:
        """Whether the bundle can use nothing of it, whichever items it knows."""
        has_content = new.content is not None and self.content_width is not None
        has_title = bool(new.item.title) and self.titles_count
        return not (has_content or has_title or new.seen_with)

    def why_nothing(self, new: NewItem) -> str:
        """Why an item gets no SID of which something was said, but nothing that counts."""
        ways = ["items of the bundle that it was seen with"]
        if self.titles_count:
            ways.insert(0, "a title")
        if self.content_width is not None:
            ways.insert(0, f"content {self.content_width} wide")
        unused = []
        if new.content is not None and self.content_width is None:
            unused.append(
                "its content does not count: the bundle was trained without content vectors"
            )
        if new.item.title and not self.titles_count:
            unused.append("its title does not count: the bundle was trained with text_weight 0")
        if new.seen_with:
            unused.append("the bundle has none of the items that it was seen with")
        return "; ".join(
            [f"nothing is known of it that the bundle can use: give {' or '.join(ways)}", *unused]
        )
