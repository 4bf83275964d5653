from google.rpc import status_pb2 as _status_pb2
from protos import item_pb2 as _item_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_UNSPECIFIED: _ClassVar[Source]
    SOURCE_PERSONAL: _ClassVar[Source]
    SOURCE_POPULAR: _ClassVar[Source]
    SOURCE_TRENDING: _ClassVar[Source]

class Degradation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEGRADATION_UNSPECIFIED: _ClassVar[Degradation]
    DEGRADATION_STATE_UNAVAILABLE: _ClassVar[Degradation]
    DEGRADATION_SUMMARY_MISSING: _ClassVar[Degradation]
    DEGRADATION_SUMMARY_BEHIND: _ClassVar[Degradation]
    DEGRADATION_STATE_STALE: _ClassVar[Degradation]
    DEGRADATION_SEEN_INCOMPLETE: _ClassVar[Degradation]
SOURCE_UNSPECIFIED: Source
SOURCE_PERSONAL: Source
SOURCE_POPULAR: Source
SOURCE_TRENDING: Source
DEGRADATION_UNSPECIFIED: Degradation
DEGRADATION_STATE_UNAVAILABLE: Degradation
DEGRADATION_SUMMARY_MISSING: Degradation
DEGRADATION_SUMMARY_BEHIND: Degradation
DEGRADATION_STATE_STALE: Degradation
DEGRADATION_SEEN_INCOMPLETE: Degradation

class RecommendRequest(_message.Message):
    __slots__ = ("user_id", "k", "exclude_item_ids", "beam_width", "exclude_seen", "allow_tags", "deny_tags", "allow_author_ids", "deny_author_ids", "no_repeats", "explain", "page_token", "request_id", "surface", "context", "time_ms")
    class ContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    BEAM_WIDTH_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_SEEN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_TAGS_FIELD_NUMBER: _ClassVar[int]
    DENY_TAGS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_AUTHOR_IDS_FIELD_NUMBER: _ClassVar[int]
    DENY_AUTHOR_IDS_FIELD_NUMBER: _ClassVar[int]
    NO_REPEATS_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SURFACE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    k: int
    exclude_item_ids: _containers.RepeatedScalarFieldContainer[int]
    beam_width: int
    exclude_seen: bool
    allow_tags: _containers.RepeatedScalarFieldContainer[int]
    deny_tags: _containers.RepeatedScalarFieldContainer[int]
    allow_author_ids: _containers.RepeatedScalarFieldContainer[int]
    deny_author_ids: _containers.RepeatedScalarFieldContainer[int]
    no_repeats: bool
    explain: bool
    page_token: str
    request_id: str
    surface: str
    context: _containers.ScalarMap[str, str]
    time_ms: int
    def __init__(self, user_id: _Optional[str] = ..., k: _Optional[int] = ..., exclude_item_ids: _Optional[_Iterable[int]] = ..., beam_width: _Optional[int] = ..., exclude_seen: _Optional[bool] = ..., allow_tags: _Optional[_Iterable[int]] = ..., deny_tags: _Optional[_Iterable[int]] = ..., allow_author_ids: _Optional[_Iterable[int]] = ..., deny_author_ids: _Optional[_Iterable[int]] = ..., no_repeats: _Optional[bool] = ..., explain: _Optional[bool] = ..., page_token: _Optional[str] = ..., request_id: _Optional[str] = ..., surface: _Optional[str] = ..., context: _Optional[_Mapping[str, str]] = ..., time_ms: _Optional[int] = ...) -> None: ...

class RecommendResponse(_message.Message):
    __slots__ = ("items", "source", "state_version", "bundle_version", "freshness", "segments", "degraded", "request_id", "next_page_token", "timings_ms")
    class TimingsMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FRESHNESS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_MS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[RecommendedItem]
    source: Source
    state_version: int
    bundle_version: str
    freshness: Freshness
    segments: Segments
    degraded: _containers.RepeatedScalarFieldContainer[Degradation]
    request_id: str
    next_page_token: str
    timings_ms: _containers.ScalarMap[str, float]
    def __init__(self, items: _Optional[_Iterable[_Union[RecommendedItem, _Mapping]]] = ..., source: _Optional[_Union[Source, str]] = ..., state_version: _Optional[int] = ..., bundle_version: _Optional[str] = ..., freshness: _Optional[_Union[Freshness, _Mapping]] = ..., segments: _Optional[_Union[Segments, _Mapping]] = ..., degraded: _Optional[_Iterable[_Union[Degradation, str]]] = ..., request_id: _Optional[str] = ..., next_page_token: _Optional[str] = ..., timings_ms: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RecommendedItem(_message.Message):
    __slots__ = ("item", "score", "sid", "source", "reason")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    item: _item_pb2.Item
    score: float
    sid: _containers.RepeatedScalarFieldContainer[int]
    source: Source
    reason: Reason
    def __init__(self, item: _Optional[_Union[_item_pb2.Item, _Mapping]] = ..., score: _Optional[float] = ..., sid: _Optional[_Iterable[int]] = ..., source: _Optional[_Union[Source, str]] = ..., reason: _Optional[_Union[Reason, _Mapping]] = ...) -> None: ...

class Freshness(_message.Message):
    __slots__ = ("newest_event_time_ms", "summary_lag", "age_ms")
    NEWEST_EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_LAG_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    newest_event_time_ms: int
    summary_lag: int
    age_ms: int
    def __init__(self, newest_event_time_ms: _Optional[int] = ..., summary_lag: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class Segments(_message.Message):
    __slots__ = ("recent", "mid_term", "lifecycle")
    RECENT_FIELD_NUMBER: _ClassVar[int]
    MID_TERM_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    recent: int
    mid_term: int
    lifecycle: int
    def __init__(self, recent: _Optional[int] = ..., mid_term: _Optional[int] = ..., lifecycle: _Optional[int] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("shares", "attended")
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ATTENDED_FIELD_NUMBER: _ClassVar[int]
    shares: StreamShares
    attended: _containers.RepeatedCompositeFieldContainer[AttendedInteraction]
    def __init__(self, shares: _Optional[_Union[StreamShares, _Mapping]] = ..., attended: _Optional[_Iterable[_Union[AttendedInteraction, _Mapping]]] = ...) -> None: ...

class StreamShares(_message.Message):
    __slots__ = ("recent", "mid_term", "lifecycle", "repeats")
    RECENT_FIELD_NUMBER: _ClassVar[int]
    MID_TERM_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    recent: float
    mid_term: float
    lifecycle: float
    repeats: float
    def __init__(self, recent: _Optional[float] = ..., mid_term: _Optional[float] = ..., lifecycle: _Optional[float] = ..., repeats: _Optional[float] = ...) -> None: ...

class AttendedInteraction(_message.Message):
    __slots__ = ("item", "event_time_ms", "attention")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    item: _item_pb2.Item
    event_time_ms: int
    attention: float
    def __init__(self, item: _Optional[_Union[_item_pb2.Item, _Mapping]] = ..., event_time_ms: _Optional[int] = ..., attention: _Optional[float] = ...) -> None: ...

class RecommendBatchRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RecommendRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[RecommendRequest, _Mapping]]] = ...) -> None: ...

class RecommendBatchResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[RecommendBatchEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[RecommendBatchEntry, _Mapping]]] = ...) -> None: ...

class RecommendBatchEntry(_message.Message):
    __slots__ = ("request_id", "status", "response")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    status: _status_pb2.Status
    response: RecommendResponse
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., response: _Optional[_Union[RecommendResponse, _Mapping]] = ...) -> None: ...
