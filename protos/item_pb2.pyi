from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

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
