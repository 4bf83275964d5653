from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CompressionJob(_message.Message):
    __slots__ = ("user_id", "lifecycle_boundary", "owner_address", "bundle_version")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    OWNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    lifecycle_boundary: int
    owner_address: str
    bundle_version: str
    def __init__(self, user_id: _Optional[str] = ..., lifecycle_boundary: _Optional[int] = ..., owner_address: _Optional[str] = ..., bundle_version: _Optional[str] = ...) -> None: ...
