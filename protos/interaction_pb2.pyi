from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InteractionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INTERACTION_KIND_UNSPECIFIED: _ClassVar[InteractionKind]
    INTERACTION_KIND_VIEW: _ClassVar[InteractionKind]
    INTERACTION_KIND_CLICK: _ClassVar[InteractionKind]
    INTERACTION_KIND_LIKE: _ClassVar[InteractionKind]
    INTERACTION_KIND_SHARE: _ClassVar[InteractionKind]
    INTERACTION_KIND_COMMENT: _ClassVar[InteractionKind]
    INTERACTION_KIND_FOLLOW: _ClassVar[InteractionKind]
    INTERACTION_KIND_PURCHASE: _ClassVar[InteractionKind]
    INTERACTION_KIND_LONG_VIEW: _ClassVar[InteractionKind]
    INTERACTION_KIND_DISLIKE: _ClassVar[InteractionKind]
    INTERACTION_KIND_FORGET: _ClassVar[InteractionKind]
INTERACTION_KIND_UNSPECIFIED: InteractionKind
INTERACTION_KIND_VIEW: InteractionKind
INTERACTION_KIND_CLICK: InteractionKind
INTERACTION_KIND_LIKE: InteractionKind
INTERACTION_KIND_SHARE: InteractionKind
INTERACTION_KIND_COMMENT: InteractionKind
INTERACTION_KIND_FOLLOW: InteractionKind
INTERACTION_KIND_PURCHASE: InteractionKind
INTERACTION_KIND_LONG_VIEW: InteractionKind
INTERACTION_KIND_DISLIKE: InteractionKind
INTERACTION_KIND_FORGET: InteractionKind

class Interaction(_message.Message):
    __slots__ = ("event_id", "user_id", "item_id", "author_id", "tag", "event_time_ms", "play_time_ms", "duration_ms", "kinds")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_ID_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    PLAY_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    user_id: str
    item_id: int
    author_id: int
    tag: int
    event_time_ms: int
    play_time_ms: int
    duration_ms: int
    kinds: _containers.RepeatedScalarFieldContainer[InteractionKind]
    def __init__(self, event_id: _Optional[str] = ..., user_id: _Optional[str] = ..., item_id: _Optional[int] = ..., author_id: _Optional[int] = ..., tag: _Optional[int] = ..., event_time_ms: _Optional[int] = ..., play_time_ms: _Optional[int] = ..., duration_ms: _Optional[int] = ..., kinds: _Optional[_Iterable[_Union[InteractionKind, str]]] = ...) -> None: ...
