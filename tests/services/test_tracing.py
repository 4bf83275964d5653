"""One span per call: the caller's trace goes on, stages and ids are on it, errors are errors."""

import subprocess
import sys
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from protos import recommender_pb2 as wire, recommender_pb2_grpc
from services.clients import StateClient
from services.tracing import TracingConfig, start_tracing, tracing_to
from tests.services.nodes import FakeOwner, recommending

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
NOT_SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def stub(
    exporter: InMemorySpanExporter,
) -> AsyncIterator["recommender_pb2_grpc.RecommenderServiceAsyncStub"]:
    tracing = tracing_to(SimpleSpanProcessor(exporter), 1.0, "inference-node")
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, tracing=tracing) as address:
            async with grpc.aio.insecure_channel(address) as channel:
                yield recommender_pb2_grpc.RecommenderServiceStub(channel)


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


async def test_a_call_is_a_span_of_the_callers_trace(
    stub: "recommender_pb2_grpc.RecommenderServiceAsyncStub", exporter: InMemorySpanExporter
) -> None:
    request = wire.RecommendRequest(
        user_id="ann", request_id="r-1", surface="home", context={"device": "tv"}
    )
    await stub.Recommend(request, metadata=SAMPLED)
    span = only(exporter)
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    assert parent is not None
    assert (f"{context.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, PARENT)
    assert (span.name, span.kind) == ("gemstream.v1.RecommenderService/Recommend", SpanKind.SERVER)
    attributes = dict(span.attributes or {})
    assert attributes["gemstream.request_id"] == "r-1"
    assert attributes["gemstream.surface"] == "home"
    assert attributes["gemstream.context.device"] == "tv"
    assert attributes["rpc.grpc.status_code"] == 0
    for stage in ("read", "search", "total"):
        spent = attributes[f"gemstream.{stage}_ms"]
        assert isinstance(spent, float)
        assert spent > 0
    assert span.resource.attributes["service.name"] == "gemstream-inference-node"


async def test_a_refused_call_is_an_error(
    stub: "recommender_pb2_grpc.RecommenderServiceAsyncStub", exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Recommend(wire.RecommendRequest(user_id=""))
    span = only(exporter)
    assert span.parent is None
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["rpc.grpc.status_code"] == 3
    assert not span.events


async def test_a_caller_that_does_not_sample_is_followed(
    stub: "recommender_pb2_grpc.RecommenderServiceAsyncStub", exporter: InMemorySpanExporter
) -> None:
    await stub.Recommend(wire.RecommendRequest(user_id="ann"), metadata=NOT_SAMPLED)
    assert exporter.get_finished_spans() == ()


async def test_a_batch_says_how_many_failed(
    stub: "recommender_pb2_grpc.RecommenderServiceAsyncStub", exporter: InMemorySpanExporter
) -> None:
    requests = [wire.RecommendRequest(user_id="ann"), wire.RecommendRequest()]
    await stub.RecommendBatch(wire.RecommendBatchRequest(requests=requests))
    attributes = dict(only(exporter).attributes or {})
    assert (attributes["gemstream.requests"], attributes["gemstream.failed"]) == (2, 1)


async def test_the_state_nodes_span_is_a_child_of_the_inference_nodes() -> None:
    exporter, owner = InMemorySpanExporter(), FakeOwner()
    owner.add("ann", 20)
    roles = [
        tracing_to(SimpleSpanProcessor(exporter), 1.0, role)
        for role in ("state-node", "inference-node")
    ]
    async with owner.serving(tracing=roles[0]) as state, StateClient(state, 5.0) as users:
        async with recommending(users, tracing=roles[1]) as address:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
                await stub.Recommend(wire.RecommendRequest(user_id="ann"), metadata=SAMPLED)
    read, recommend = exporter.get_finished_spans()
    assert read.name == "gemstream.v1.StateService/GetUserState"
    parent, context = read.parent, recommend.get_span_context()
    assert parent is not None
    assert context is not None
    assert (parent.trace_id, parent.span_id) == (context.trace_id, context.span_id)
    assert f"{parent.trace_id:032x}" == TRACE


def test_off_by_default_and_then_not_even_imported() -> None:
    assert start_tracing(TracingConfig(), "state-node") is None
    code = (
        "import sys, services.wiring.roles; from services.tracing import *; "
        "start_tracing(TracingConfig(), 'x'); sys.exit('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
