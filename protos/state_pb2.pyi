from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetUserStateRequest(_message.Message):
    __slots__ = ("user_id", "bundle_version", "known")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    bundle_version: str
    known: KnownState
    def __init__(self, user_id: _Optional[str] = ..., bundle_version: _Optional[str] = ..., known: _Optional[_Union[KnownState, _Mapping]] = ...) -> None: ...

class KnownState(_message.Message):
    __slots__ = ("epoch", "hole_end_offset", "version", "lifecycle_boundary", "sealed_end", "summary_boundary")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLE_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    SEALED_END_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hole_end_offset: int
    version: int
    lifecycle_boundary: int
    sealed_end: int
    summary_boundary: int
    def __init__(self, epoch: _Optional[int] = ..., hole_end_offset: _Optional[int] = ..., version: _Optional[int] = ..., lifecycle_boundary: _Optional[int] = ..., sealed_end: _Optional[int] = ..., summary_boundary: _Optional[int] = ...) -> None: ...

class UserState(_message.Message):
    __slots__ = ("meta", "chunks", "tail", "summary", "history_unchanged", "summary_unchanged", "hole_end_offset")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    HISTORY_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    HOLE_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    meta: UserMeta
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    tail: _containers.RepeatedScalarFieldContainer[bytes]
    summary: Summary
    history_unchanged: bool
    summary_unchanged: bool
    hole_end_offset: int
    def __init__(self, meta: _Optional[_Union[UserMeta, _Mapping]] = ..., chunks: _Optional[_Iterable[bytes]] = ..., tail: _Optional[_Iterable[bytes]] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ..., history_unchanged: _Optional[bool] = ..., summary_unchanged: _Optional[bool] = ..., hole_end_offset: _Optional[int] = ...) -> None: ...

class GetSeenItemsRequest(_message.Message):
    __slots__ = ("user_id", "known")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    known: KnownSeen
    def __init__(self, user_id: _Optional[str] = ..., known: _Optional[_Union[KnownSeen, _Mapping]] = ...) -> None: ...

class KnownSeen(_message.Message):
    __slots__ = ("epoch", "hole_end_offset", "end")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLE_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hole_end_offset: int
    end: int
    def __init__(self, epoch: _Optional[int] = ..., hole_end_offset: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class SeenItems(_message.Message):
    __slots__ = ("epoch", "hole_end_offset", "first_position", "start", "end", "item_id_deltas")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLE_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_DELTAS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hole_end_offset: int
    first_position: int
    start: int
    end: int
    item_id_deltas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., hole_end_offset: _Optional[int] = ..., first_position: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., item_id_deltas: _Optional[_Iterable[int]] = ...) -> None: ...

class UserMeta(_message.Message):
    __slots__ = ("version", "length", "first_position", "lifecycle_boundary", "tail_start", "newest_event_time_ms", "epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    TAIL_START_FIELD_NUMBER: _ClassVar[int]
    NEWEST_EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    length: int
    first_position: int
    lifecycle_boundary: int
    tail_start: int
    newest_event_time_ms: int
    epoch: int
    def __init__(self, version: _Optional[int] = ..., length: _Optional[int] = ..., first_position: _Optional[int] = ..., lifecycle_boundary: _Optional[int] = ..., tail_start: _Optional[int] = ..., newest_event_time_ms: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("bundle_version", "boundary", "count", "accumulators", "tokens", "num_tokens", "built_at_ms", "item_statistics")
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATORS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUILT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ITEM_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    boundary: int
    count: int
    accumulators: bytes
    tokens: bytes
    num_tokens: int
    built_at_ms: int
    item_statistics: bytes
    def __init__(self, bundle_version: _Optional[str] = ..., boundary: _Optional[int] = ..., count: _Optional[int] = ..., accumulators: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., num_tokens: _Optional[int] = ..., built_at_ms: _Optional[int] = ..., item_statistics: _Optional[bytes] = ...) -> None: ...

class GetRolledRequest(_message.Message):
    __slots__ = ("user_id", "bundle_version", "max_chunks")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    bundle_version: str
    max_chunks: int
    def __init__(self, user_id: _Optional[str] = ..., bundle_version: _Optional[str] = ..., max_chunks: _Optional[int] = ...) -> None: ...

class Rolled(_message.Message):
    __slots__ = ("summary", "chunks", "end_boundary", "lifecycle_boundary", "epoch")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    END_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    summary: Summary
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    end_boundary: int
    lifecycle_boundary: int
    epoch: int
    def __init__(self, summary: _Optional[_Union[Summary, _Mapping]] = ..., chunks: _Optional[_Iterable[bytes]] = ..., end_boundary: _Optional[int] = ..., lifecycle_boundary: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class PutSummaryRequest(_message.Message):
    __slots__ = ("user_id", "summary", "base_boundary", "epoch")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    BASE_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    summary: Summary
    base_boundary: int
    epoch: int
    def __init__(self, user_id: _Optional[str] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ..., base_boundary: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("user_id", "reason", "bundle_version")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    reason: str
    bundle_version: str
    def __init__(self, user_id: _Optional[str] = ..., reason: _Optional[str] = ..., bundle_version: _Optional[str] = ...) -> None: ...

class ReportFailureResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutSummaryResponse(_message.Message):
    __slots__ = ("stored", "complete")
    STORED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    complete: bool
    def __init__(self, stored: _Optional[bool] = ..., complete: _Optional[bool] = ...) -> None: ...
