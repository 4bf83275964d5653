"""The one table of status codes: what our errors are to callers, and what callers' status codes are to us."""

from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from services.errors import (
    DataLoss,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    ServiceError,
    TimedOut,
    Unauthenticated,
    Unreachable,
)
from state.errors import CorruptValue, InvalidInteraction, RolloutRefused, StoreClosed

STATUS_OF: dict[type[Exception], grpc.StatusCode] = {
    InvalidInteraction: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    RolloutRefused: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
    StoreClosed: grpc.StatusCode.UNAVAILABLE,
    CorruptValue: grpc.StatusCode.DATA_LOSS,
}
"""The text of these errors is meant for callers; any other becomes INTERNAL without its text."""

_DETAILS = "grpc-status-details-bin"


def status_code(error: Exception) -> grpc.StatusCode:
    """What an error is to callers; INTERNAL for all that are not in the table."""
    codes = (code for kind, code in STATUS_OF.items() if isinstance(error, kind))
    return next(codes, grpc.StatusCode.INTERNAL)


def rpc_status(error: Exception) -> status_pb2.Status:
    """Code, text and details for callers: RetryInfo where waiting helps."""
    code = status_code(error)
    if code is grpc.StatusCode.INTERNAL:
        return status_pb2.Status(code=code.value[0], message="internal error; see the server's log")
    status = status_pb2.Status(code=code.value[0], message=str(error))
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromMilliseconds(max(1, round(error.retry_after_s * 1_000)))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def trailing_metadata(status: status_pb2.Status) -> tuple[tuple[str, bytes], ...]:
    """What carries the details of a call that failed; none where there are none."""
    return ((_DETAILS, status.SerializeToString()),) if status.details else ()


def from_rpc_error(error: Any, address: str) -> Exception:
    """The error of ours that a gRPC error means."""
    code, text = error.code(), error.details()
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(text)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut(f"no answer from {address} in time: {text}")
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(f"no answer from {address}: {text}")
    if code is grpc.StatusCode.DATA_LOSS:
        return DataLoss(f"{address} found damage: {text}")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(f"{address} refused the call: {text}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(_retry_after_s(error), f"{address} refused the call: {text}")
    return ServiceError(f"{address} answered {code.name}: {text}")


def _retry_after_s(error: Any) -> float:
    """What RetryInfo says; 0 where there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS:
            info = error_details_pb2.RetryInfo()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    return float(info.retry_delay.ToMilliseconds()) / 1_000
    return 0.0
