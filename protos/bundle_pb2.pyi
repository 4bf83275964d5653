from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeBundlesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadBundleRequest(_message.Message):
    __slots__ = ("path", "share")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    path: str
    share: float
    def __init__(self, path: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class ShareBundleRequest(_message.Message):
    __slots__ = ("share",)
    SHARE_FIELD_NUMBER: _ClassVar[int]
    share: float
    def __init__(self, share: _Optional[float] = ...) -> None: ...

class PromoteBundleRequest(_message.Message):
    __slots__ = ("bundle_version",)
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    def __init__(self, bundle_version: _Optional[str] = ...) -> None: ...

class UnloadBundleRequest(_message.Message):
    __slots__ = ("bundle_version",)
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    def __init__(self, bundle_version: _Optional[str] = ...) -> None: ...

class ServedBundles(_message.Message):
    __slots__ = ("primary", "candidate", "as_configured")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    AS_CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    primary: ServedBundle
    candidate: ServedBundle
    as_configured: bool
    def __init__(self, primary: _Optional[_Union[ServedBundle, _Mapping]] = ..., candidate: _Optional[_Union[ServedBundle, _Mapping]] = ..., as_configured: _Optional[bool] = ...) -> None: ...

class ServedBundle(_message.Message):
    __slots__ = ("bundle_version", "path", "share", "engine", "loaded_at_ms", "answers", "degraded", "cached_users", "cached_bytes", "catalogue_items")
    class DegradedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    CACHED_USERS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    path: str
    share: float
    engine: str
    loaded_at_ms: int
    answers: int
    degraded: _containers.ScalarMap[str, int]
    cached_users: int
    cached_bytes: int
    catalogue_items: int
    def __init__(self, bundle_version: _Optional[str] = ..., path: _Optional[str] = ..., share: _Optional[float] = ..., engine: _Optional[str] = ..., loaded_at_ms: _Optional[int] = ..., answers: _Optional[int] = ..., degraded: _Optional[_Mapping[str, int]] = ..., cached_users: _Optional[int] = ..., cached_bytes: _Optional[int] = ..., catalogue_items: _Optional[int] = ...) -> None: ...
