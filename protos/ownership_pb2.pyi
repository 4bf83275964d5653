from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PartitionOwner(_message.Message):
    __slots__ = ("partition", "address")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    address: str
    def __init__(self, partition: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...
