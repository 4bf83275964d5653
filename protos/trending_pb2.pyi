from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WindowCounts(_message.Message):
    __slots__ = ("next_offset", "item_ids", "tags", "counts")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    item_ids: _containers.RepeatedScalarFieldContainer[int]
    tags: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, next_offset: _Optional[int] = ..., item_ids: _Optional[_Iterable[int]] = ..., tags: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionTrending(_message.Message):
    __slots__ = ("partition", "as_of_ms", "half_life_ms", "total_weight", "item_ids", "tags", "weights")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    HALF_LIFE_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    as_of_ms: int
    half_life_ms: int
    total_weight: float
    item_ids: _containers.RepeatedScalarFieldContainer[int]
    tags: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, partition: _Optional[int] = ..., as_of_ms: _Optional[int] = ..., half_life_ms: _Optional[int] = ..., total_weight: _Optional[float] = ..., item_ids: _Optional[_Iterable[int]] = ..., tags: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...
