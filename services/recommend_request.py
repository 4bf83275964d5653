"""What a RecommendRequest may hold, and the query that it means."""

import time
import uuid
from collections.abc import Sized

from model.query import ItemFilter, Query
from protos.recommender_pb2 import RecommendBatchRequest, RecommendRequest
from services.errors import InvalidRequest
from services.page_token import ItemIds
from state.interaction import check_event_time, check_user_id

DEFAULT_K = 10
MAX_K = 500
MAX_BEAM_WIDTH = 1_000
MAX_EXCLUDED = 10_000
MAX_LISTED = 1_000
"""Of each list of tags and authors."""
MAX_REQUEST_ID = 128
MAX_SURFACE_BYTES = 64
MAX_CONTEXT_ENTRIES = 16
MAX_CONTEXT_KEY_BYTES = 64
MAX_CONTEXT_VALUE_BYTES = 256
MAX_BATCH = 100
MAX_BATCH_ITEMS = 10_000
"""Sum of `k` over a batch: an answer must fit into a message."""


def request_id_of(request: RecommendRequest) -> str:
    """As asked, or a new one. Raises InvalidRequest."""
    given = request.request_id
    if not given:
        return uuid.uuid4().hex
    if len(given) > MAX_REQUEST_ID or not (given.isascii() and given.isprintable()):
        shown = ascii(given[:MAX_REQUEST_ID])
        raise InvalidRequest(
            f"request_id is {shown} and has {len(given)} characters; it must be printable ASCII, at most {MAX_REQUEST_ID}"
        )
    return given


def check_request(request: RecommendRequest) -> None:
    """Everything but the page token and the request id. Raises InvalidRequest, InvalidInteraction."""
    check_user_id(request.user_id)
    if request.k > MAX_K:
        raise InvalidRequest(f"k is {request.k}; it must be 1 to {MAX_K}, or 0 for {DEFAULT_K}")
    if request.beam_width > MAX_BEAM_WIDTH:
        raise InvalidRequest(
            f"beam_width is {request.beam_width}; it must be 1 to {MAX_BEAM_WIDTH}, or 0 for the server's"
        )
    if request.time_ms:
        check_event_time(request.time_ms, "time_ms")
    _check_length("exclude_item_ids", request.exclude_item_ids, MAX_EXCLUDED)
    for name in ("allow_tags", "deny_tags", "allow_author_ids", "deny_author_ids"):
        _check_length(name, getattr(request, name), MAX_LISTED)
    _check_bytes("surface", request.surface, MAX_SURFACE_BYTES)
    _check_length("context", request.context, MAX_CONTEXT_ENTRIES)
    for key, value in request.context.items():
        _check_bytes("a key of context", key, MAX_CONTEXT_KEY_BYTES)
        _check_bytes(f"context[{key!r}]", value, MAX_CONTEXT_VALUE_BYTES)


def check_batch(batch: RecommendBatchRequest) -> None:
    """The batch as a whole. Raises InvalidRequest."""
    if not 1 <= len(batch.requests) <= MAX_BATCH:
        raise InvalidRequest(
            f"requests has {len(batch.requests)} entries; it must have 1 to {MAX_BATCH}"
        )
    num_items = sum(request.k or DEFAULT_K for request in batch.requests)
    if num_items > MAX_BATCH_ITEMS:
        raise InvalidRequest(
            f"the requests ask for {num_items} items together; at most {MAX_BATCH_ITEMS}: send fewer at once"
        )


def query_of(request: RecommendRequest, shown: ItemIds) -> Query:
    """The query that a checked request means; `shown` on the pages before."""
    return Query(
        k=request.k or DEFAULT_K,
        beam_width=request.beam_width or None,
        filter=ItemFilter(
            exclude=frozenset(request.exclude_item_ids),
            exclude_ids=shown,
            allow_tags=frozenset(request.allow_tags),
            deny_tags=frozenset(request.deny_tags),
            allow_authors=frozenset(request.allow_author_ids),
            deny_authors=frozenset(request.deny_author_ids),
        ),
        repeats=not request.no_repeats,
        time_ms=request.time_ms or time.time_ns() // 1_000_000,
    )


def _check_length(name: str, values: Sized, limit: int) -> None:
    if len(values) > limit:
        raise InvalidRequest(f"{name} has {len(values)} entries; at most {limit}")


def _check_bytes(name: str, text: str, limit: int) -> None:
    num_bytes = len(text.encode())
    if num_bytes > limit:
        raise InvalidRequest(f"{name} has {num_bytes} bytes; at most {limit}")
