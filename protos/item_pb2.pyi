from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Item(_message.Message):
    __slots__ = ("item_id", "author_id", "tag", "title", "duration_ms")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_ID_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    item_id: int
    author_id: int
    tag: int
    title: str
    duration_ms: int
    def __init__(self, item_id: _Optional[int] = ..., author_id: _Optional[int] = ..., tag: _Optional[int] = ..., title: _Optional[str] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class CatalogueEntry(_message.Message):
    __slots__ = ("item", "content", "seen_with", "expires_at_ms")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SEEN_WITH_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    item: Item
    content: _containers.RepeatedScalarFieldContainer[float]
    seen_with: _containers.RepeatedScalarFieldContainer[int]
    expires_at_ms: int
    def __init__(self, item: _Optional[_Union[Item, _Mapping]] = ..., content: _Optional[_Iterable[float]] = ..., seen_with: _Optional[_Iterable[int]] = ..., expires_at_ms: _Optional[int] = ...) -> None: ...
