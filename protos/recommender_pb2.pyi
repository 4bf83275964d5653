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
SOURCE_UNSPECIFIED: Source
SOURCE_PERSONAL: Source
SOURCE_POPULAR: Source
SOURCE_TRENDING: Source
DEGRADATION_UNSPECIFIED: Degradation
DEGRADATION_STATE_UNAVAILABLE: Degradation
DEGRADATION_SUMMARY_MISSING: Degradation
DEGRADATION_SUMMARY_BEHIND: Degradation

class RecommendRequest(_message.Message):
    __slots__ = ("user_id", "k", "exclude_item_ids", "beam_width")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    BEAM_WIDTH_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    k: int
    exclude_item_ids: _containers.RepeatedScalarFieldContainer[int]
    beam_width: int
    def __init__(self, user_id: _Optional[str] = ..., k: _Optional[int] = ..., exclude_item_ids: _Optional[_Iterable[int]] = ..., beam_width: _Optional[int] = ...) -> None: ...

class RecommendResponse(_message.Message):
    __slots__ = ("items", "source", "state_version", "bundle_version", "freshness", "segments", "degraded")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FRESHNESS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[RecommendedItem]
    source: Source
    state_version: int
    bundle_version: str
    freshness: Freshness
    segments: Segments
    degraded: _containers.RepeatedScalarFieldContainer[Degradation]
    def __init__(self, items: _Optional[_Iterable[_Union[RecommendedItem, _Mapping]]] = ..., source: _Optional[_Union[Source, str]] = ..., state_version: _Optional[int] = ..., bundle_version: _Optional[str] = ..., freshness: _Optional[_Union[Freshness, _Mapping]] = ..., segments: _Optional[_Union[Segments, _Mapping]] = ..., degraded: _Optional[_Iterable[_Union[Degradation, str]]] = ...) -> None: ...

class RecommendedItem(_message.Message):
    __slots__ = ("item", "score", "sid", "source")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    item: _item_pb2.Item
    score: float
    sid: _containers.RepeatedScalarFieldContainer[int]
    source: Source
    def __init__(self, item: _Optional[_Union[_item_pb2.Item, _Mapping]] = ..., score: _Optional[float] = ..., sid: _Optional[_Iterable[int]] = ..., source: _Optional[_Union[Source, str]] = ...) -> None: ...

class Freshness(_message.Message):
    __slots__ = ("newest_event_time_ms", "summary_lag")
    NEWEST_EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_LAG_FIELD_NUMBER: _ClassVar[int]
    newest_event_time_ms: int
    summary_lag: int
    def __init__(self, newest_event_time_ms: _Optional[int] = ..., summary_lag: _Optional[int] = ...) -> None: ...

class Segments(_message.Message):
    __slots__ = ("recent", "mid_term", "lifecycle")
    RECENT_FIELD_NUMBER: _ClassVar[int]
    MID_TERM_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    recent: int
    mid_term: int
    lifecycle: int
    def __init__(self, recent: _Optional[int] = ..., mid_term: _Optional[int] = ..., lifecycle: _Optional[int] = ...) -> None: ...
