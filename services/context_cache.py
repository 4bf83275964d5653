"""Encoded users, the ones asked for last, within a number of bytes."""

import threading
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the state node imports this package, too, and does without PyTorch
    from model.user_context import Reused, UserContext

_ENTRY_BYTES = 2_000
"""Of an entry besides its arrays."""


class ContextCache:
    """Thread-safe: the event loop looks users up, the network's thread puts them in."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` of all users together; 0 keeps none."""
        self._max_bytes = max_bytes
        self._contexts: OrderedDict[str, UserContext] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self.num_bytes = 0
        self.parts: Counter[tuple[str, str]] = Counter()
        """(part, "hit" or "miss"): how often a part of a user was there, or had to be encoded."""
        self.keys: Counter[str] = Counter()
        """"real" and "padding": what the codes of answers attended to, per block."""

    def __len__(self) -> int:
        """Users that are kept."""
        return len(self._contexts)

    def get(self, user_id: str) -> "UserContext | None":
        """The user's context, as it was when somebody asked last."""
        with self._lock:
            if user_id in self._contexts:
                self._contexts.move_to_end(user_id)
            return self._contexts.get(user_id)

    def put(self, user_id: str, context: "UserContext", reused: "Reused") -> None:
        """Keep a context instead of an earlier one of the same user, and count what it took over from that."""
        with self._lock:
            self._count(reused)
            real, padding = context.num_keys
            self.keys["real"] += real
            self.keys["padding"] += padding
            if reused.unchanged:
                return
            self._drop(user_id)
            size = context.num_bytes + _ENTRY_BYTES
            self._contexts[user_id], self._sizes[user_id] = context, size
            self.num_bytes += size
            self._shrink()

    def forget(self, user_id: str) -> None:
        """The user is gone."""
        with self._lock:
            self._drop(user_id)

    def resize(self, max_bytes: int) -> None:
        """Keep to so many bytes from now on."""
        with self._lock:
            self._max_bytes = max_bytes
            self._shrink()

    def _shrink(self) -> None:
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._contexts)))

    def _count(self, reused: "Reused") -> None:
        self.parts["recent", "hit" if reused.unchanged else "miss"] += 1
        if not reused.unchanged:
            self.parts["mid_term_chunk", "hit"] += reused.chunks
            self.parts["mid_term_chunk", "miss"] += reused.chunks_encoded
            self.parts["summary", "hit"] += reused.summary
            self.parts["summary", "miss"] += reused.summary_encoded

    def _drop(self, user_id: str) -> None:
        if self._contexts.pop(user_id, None) is not None:
            self.num_bytes -= self._sizes.pop(user_id)
