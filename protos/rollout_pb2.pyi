from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRolloutsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartRolloutRequest(_message.Message):
    __slots__ = ("bundle_version", "users_per_s")
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    USERS_PER_S_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    users_per_s: float
    def __init__(self, bundle_version: _Optional[str] = ..., users_per_s: _Optional[float] = ...) -> None: ...

class ChangeRolloutRequest(_message.Message):
    __slots__ = ("bundle_version",)
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    def __init__(self, bundle_version: _Optional[str] = ...) -> None: ...

class RetireBundleRequest(_message.Message):
    __slots__ = ("bundle_version", "users_per_s")
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    USERS_PER_S_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    users_per_s: float
    def __init__(self, bundle_version: _Optional[str] = ..., users_per_s: _Optional[float] = ...) -> None: ...

class Rollouts(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionRollouts]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionRollouts, _Mapping]]] = ...) -> None: ...

class PartitionRollouts(_message.Message):
    __slots__ = ("partition", "users", "rollout", "owed", "retired")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    users: int
    rollout: BundleWalk
    owed: int
    retired: _containers.RepeatedCompositeFieldContainer[BundleWalk]
    def __init__(self, partition: _Optional[int] = ..., users: _Optional[int] = ..., rollout: _Optional[_Union[BundleWalk, _Mapping]] = ..., owed: _Optional[int] = ..., retired: _Optional[_Iterable[_Union[BundleWalk, _Mapping]]] = ...) -> None: ...

class BundleWalk(_message.Message):
    __slots__ = ("bundle_version", "state", "users_per_s", "walked", "changed", "started_at_ms")
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USERS_PER_S_FIELD_NUMBER: _ClassVar[int]
    WALKED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    state: str
    users_per_s: float
    walked: int
    changed: int
    started_at_ms: int
    def __init__(self, bundle_version: _Optional[str] = ..., state: _Optional[str] = ..., users_per_s: _Optional[float] = ..., walked: _Optional[int] = ..., changed: _Optional[int] = ..., started_at_ms: _Optional[int] = ...) -> None: ...
