from protos import interaction_pb2 as _interaction_pb2
from protos import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeUserRequest(_message.Message):
    __slots__ = ("user_id", "newest")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    newest: int
    def __init__(self, user_id: _Optional[str] = ..., newest: _Optional[int] = ...) -> None: ...

class UserDescription(_message.Message):
    __slots__ = ("user_id", "partition", "meta", "recent", "mid_term", "lifecycle", "chunks", "stored_bytes", "dirty", "summaries", "newest", "owned")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    MID_TERM_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRTY_FIELD_NUMBER: _ClassVar[int]
    SUMMARIES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    partition: int
    meta: _state_pb2.UserMeta
    recent: int
    mid_term: int
    lifecycle: int
    chunks: int
    stored_bytes: int
    dirty: bool
    summaries: _containers.RepeatedCompositeFieldContainer[SummaryDescription]
    newest: _containers.RepeatedCompositeFieldContainer[_interaction_pb2.Interaction]
    owned: bool
    def __init__(self, user_id: _Optional[str] = ..., partition: _Optional[int] = ..., meta: _Optional[_Union[_state_pb2.UserMeta, _Mapping]] = ..., recent: _Optional[int] = ..., mid_term: _Optional[int] = ..., lifecycle: _Optional[int] = ..., chunks: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., dirty: _Optional[bool] = ..., summaries: _Optional[_Iterable[_Union[SummaryDescription, _Mapping]]] = ..., newest: _Optional[_Iterable[_Union[_interaction_pb2.Interaction, _Mapping]]] = ..., owned: _Optional[bool] = ...) -> None: ...

class SummaryDescription(_message.Message):
    __slots__ = ("bundle_version", "boundary", "count", "built_at_ms", "stored_bytes")
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BUILT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    boundary: int
    count: int
    built_at_ms: int
    stored_bytes: int
    def __init__(self, bundle_version: _Optional[str] = ..., boundary: _Optional[int] = ..., count: _Optional[int] = ..., built_at_ms: _Optional[int] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    def __init__(self, user_id: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    def __init__(self, partition: _Optional[int] = ...) -> None: ...

class DeleteInteractionsRequest(_message.Message):
    __slots__ = ("user_id", "item_id", "wait_ms")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    item_id: int
    wait_ms: int
    def __init__(self, user_id: _Optional[str] = ..., item_id: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class DeleteInteractionsResponse(_message.Message):
    __slots__ = ("partition", "offset", "applied")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    applied: bool
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., applied: _Optional[bool] = ...) -> None: ...

class DescribeStoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoreDescription(_message.Message):
    __slots__ = ("partitions", "disk_bytes", "dirty_users", "counters", "recent_len", "mid_term_len", "chunk_len", "max_history", "resting_users", "oldest_dirty_s")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRTY_USERS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    RECENT_LEN_FIELD_NUMBER: _ClassVar[int]
    MID_TERM_LEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_HISTORY_FIELD_NUMBER: _ClassVar[int]
    RESTING_USERS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_DIRTY_S_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    disk_bytes: int
    dirty_users: int
    counters: _containers.ScalarMap[str, int]
    recent_len: int
    mid_term_len: int
    chunk_len: int
    max_history: int
    resting_users: int
    oldest_dirty_s: float
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ..., disk_bytes: _Optional[int] = ..., dirty_users: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., recent_len: _Optional[int] = ..., mid_term_len: _Optional[int] = ..., chunk_len: _Optional[int] = ..., max_history: _Optional[int] = ..., resting_users: _Optional[int] = ..., oldest_dirty_s: _Optional[float] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("partition", "next_offset", "users", "owned", "end_offset", "phase", "holes", "lag_records", "lag_s", "checkpoint", "checkpoint_failures", "quarantined_users", "num_quarantined_users")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_USERS_FIELD_NUMBER: _ClassVar[int]
    NUM_QUARANTINED_USERS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    next_offset: int
    users: int
    owned: bool
    end_offset: int
    phase: str
    holes: _containers.RepeatedCompositeFieldContainer[Hole]
    lag_records: int
    lag_s: float
    checkpoint: CheckpointDescription
    checkpoint_failures: int
    quarantined_users: _containers.RepeatedScalarFieldContainer[str]
    num_quarantined_users: int
    def __init__(self, partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., users: _Optional[int] = ..., owned: _Optional[bool] = ..., end_offset: _Optional[int] = ..., phase: _Optional[str] = ..., holes: _Optional[_Iterable[_Union[Hole, _Mapping]]] = ..., lag_records: _Optional[int] = ..., lag_s: _Optional[float] = ..., checkpoint: _Optional[_Union[CheckpointDescription, _Mapping]] = ..., checkpoint_failures: _Optional[int] = ..., quarantined_users: _Optional[_Iterable[str]] = ..., num_quarantined_users: _Optional[int] = ...) -> None: ...

class Hole(_message.Message):
    __slots__ = ("start_offset", "end_offset", "accepted_at_ms")
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    start_offset: int
    end_offset: int
    accepted_at_ms: int
    def __init__(self, start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., accepted_at_ms: _Optional[int] = ...) -> None: ...

class TakeCheckpointsRequest(_message.Message):
    __slots__ = ("partition", "prune", "full")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRUNE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    partition: int
    prune: bool
    full: bool
    def __init__(self, partition: _Optional[int] = ..., prune: _Optional[bool] = ..., full: _Optional[bool] = ...) -> None: ...

class TakeCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "failures")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointDescription]
    failures: _containers.RepeatedCompositeFieldContainer[CheckpointFailure]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointDescription, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[CheckpointFailure, _Mapping]]] = ...) -> None: ...

class CheckpointDescription(_message.Message):
    __slots__ = ("partition", "next_offset", "created_at_ms", "files", "bytes", "uploaded_bytes", "seconds", "unchanged")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    next_offset: int
    created_at_ms: int
    files: int
    bytes: int
    uploaded_bytes: int
    seconds: float
    unchanged: bool
    def __init__(self, partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., files: _Optional[int] = ..., bytes: _Optional[int] = ..., uploaded_bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., unchanged: _Optional[bool] = ...) -> None: ...

class CheckpointFailure(_message.Message):
    __slots__ = ("partition", "reason")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    partition: int
    reason: str
    def __init__(self, partition: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
