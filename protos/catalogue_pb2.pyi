from protos import item_pb2 as _item_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ItemState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ITEM_STATE_UNSPECIFIED: _ClassVar[ItemState]
    ITEM_STATE_SERVED: _ClassVar[ItemState]
    ITEM_STATE_PENDING: _ClassVar[ItemState]
    ITEM_STATE_EXPIRED: _ClassVar[ItemState]
    ITEM_STATE_REMOVED: _ClassVar[ItemState]
    ITEM_STATE_REFUSED: _ClassVar[ItemState]

class ItemSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ITEM_SOURCE_UNSPECIFIED: _ClassVar[ItemSource]
    ITEM_SOURCE_BUNDLE: _ClassVar[ItemSource]
    ITEM_SOURCE_TOPIC: _ClassVar[ItemSource]
ITEM_STATE_UNSPECIFIED: ItemState
ITEM_STATE_SERVED: ItemState
ITEM_STATE_PENDING: ItemState
ITEM_STATE_EXPIRED: ItemState
ITEM_STATE_REMOVED: ItemState
ITEM_STATE_REFUSED: ItemState
ITEM_SOURCE_UNSPECIFIED: ItemSource
ITEM_SOURCE_BUNDLE: ItemSource
ITEM_SOURCE_TOPIC: ItemSource

class DescribeCatalogueRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RollbackCatalogueRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeCatalogueRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CatalogueDescription(_message.Message):
    __slots__ = ("bundle_version", "versions", "held", "caught_up", "following", "pending_items", "hidden_items", "offered_items", "removed_items", "refused_items")
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    PENDING_ITEMS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_ITEMS_FIELD_NUMBER: _ClassVar[int]
    OFFERED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    versions: _containers.RepeatedCompositeFieldContainer[CatalogueVersion]
    held: bool
    caught_up: bool
    following: bool
    pending_items: int
    hidden_items: int
    offered_items: int
    removed_items: int
    refused_items: int
    def __init__(self, bundle_version: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[CatalogueVersion, _Mapping]]] = ..., held: _Optional[bool] = ..., caught_up: _Optional[bool] = ..., following: _Optional[bool] = ..., pending_items: _Optional[int] = ..., hidden_items: _Optional[int] = ..., offered_items: _Optional[int] = ..., removed_items: _Optional[int] = ..., refused_items: _Optional[int] = ...) -> None: ...

class CatalogueVersion(_message.Message):
    __slots__ = ("number", "next_offset", "items", "sids", "changes", "created_at_ms", "rebuild_s", "newest_record_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SIDS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REBUILD_S_FIELD_NUMBER: _ClassVar[int]
    NEWEST_RECORD_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    next_offset: int
    items: int
    sids: int
    changes: int
    created_at_ms: int
    rebuild_s: float
    newest_record_ms: int
    def __init__(self, number: _Optional[int] = ..., next_offset: _Optional[int] = ..., items: _Optional[int] = ..., sids: _Optional[int] = ..., changes: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., rebuild_s: _Optional[float] = ..., newest_record_ms: _Optional[int] = ...) -> None: ...

class ListItemsRequest(_message.Message):
    __slots__ = ("state", "source", "after_item_id", "limit")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    state: ItemState
    source: ItemSource
    after_item_id: int
    limit: int
    def __init__(self, state: _Optional[_Union[ItemState, str]] = ..., source: _Optional[_Union[ItemSource, str]] = ..., after_item_id: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListItemsResponse(_message.Message):
    __slots__ = ("items", "refused")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ItemDescription]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedRecord]
    def __init__(self, items: _Optional[_Iterable[_Union[ItemDescription, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[RefusedRecord, _Mapping]]] = ...) -> None: ...

class DescribeItemRequest(_message.Message):
    __slots__ = ("item_id",)
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    item_id: int
    def __init__(self, item_id: _Optional[int] = ...) -> None: ...

class ItemDescription(_message.Message):
    __slots__ = ("item", "state", "source", "sid", "bucket", "expires_at_ms", "reason", "events")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    item: _item_pb2.Item
    state: ItemState
    source: ItemSource
    sid: _containers.RepeatedScalarFieldContainer[int]
    bucket: int
    expires_at_ms: int
    reason: str
    events: int
    def __init__(self, item: _Optional[_Union[_item_pb2.Item, _Mapping]] = ..., state: _Optional[_Union[ItemState, str]] = ..., source: _Optional[_Union[ItemSource, str]] = ..., sid: _Optional[_Iterable[int]] = ..., bucket: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., reason: _Optional[str] = ..., events: _Optional[int] = ...) -> None: ...

class RefusedRecord(_message.Message):
    __slots__ = ("key", "offset", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: str
    offset: int
    reason: str
    def __init__(self, key: _Optional[str] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
