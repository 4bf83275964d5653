"""Every engine against the plain one, whatever the batch and the number of beams."""

import ctypes
import gc
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from model.bundle import Bundle
from model.engine import Engine, TorchEngine
from model.engine_choice import EngineChoice
from model.engine_config import EngineConfig
from model.errors import ModelConfigError
from model.fused_decoder import FusedDecoder, Memory
from model.openvino_engine import OpenVinoEngine
from model.query import Query
from model.recommender import Recommender
from state.user_state import UserMeta, UserState
from tests.model.worlds import make_rows

BEAMS = 5


def inputs_of(bundle: Bundle, batch: int, width: int) -> tuple[Tensor, Tensor, Tensor, Memory]:
    recommender = Recommender(bundle)
    contexts = []
    for length in range(1, batch + 1):
        rows = make_rows(3 * length)
        state = UserState("someone", UserMeta(length=len(rows)), rows, None)
        contexts.append(recommender.encode_state(state))
    layer = bundle.network.config.layer
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(
        bundle.network.config.num_blocks,
        batch,
        width,
        1,
        2,
        layer.num_heads,
        layer.width // layer.num_heads,
        generator=generator,
    )
    x = torch.randn(batch, width, layer.width, generator=generator)
    memory = Memory.join([context.memory for context in contexts])
    return x, own, torch.tensor([0.0, -1e9, 0.0]), memory


@torch.inference_mode()
def check(engine: Engine, bundle: Bundle, batch: int, width: int, atol: float) -> None:
    inputs = inputs_of(bundle, batch, width)
    expected = TorchEngine(FusedDecoder(bundle.network.decoder)).step(*inputs)
    for found, wanted in zip(engine.step(*inputs), expected, strict=True):
        torch.testing.assert_close(found.float(), wanted, atol=atol, rtol=1e-4)


def test_openvino_steps_like_pytorch(bundle: Bundle) -> None:
    """Batches and widths between the compiled sizes are filled up, larger batches parted, larger widths are PyTorch's."""
    engine = OpenVinoEngine(FusedDecoder(bundle.network.decoder), BEAMS, "fp32", 1)
    for batch, width in [(1, BEAMS), (3, BEAMS), (1, BEAMS + 1), (9, 2), (1, 4 * BEAMS + 1)]:
        check(engine, bundle, batch, width, atol=1e-4)


class SignalStack(ctypes.Structure):
    """stack_t of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def signal_stack() -> tuple[int | None, int]:
    """Of this thread: where its next signal is handled."""
    stack = SignalStack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    return stack.address, stack.size


def test_compiled_models_leave_the_signal_stack_alone(bundle: Bundle) -> None:
    """Or the next signal would end the process."""
    before = signal_stack()
    for _ in range(2):
        engine = OpenVinoEngine(FusedDecoder(bundle.network.decoder), BEAMS, "fp32", 1)
        check(engine, bundle, 1, BEAMS, atol=1e-4)
        check(engine, bundle, 2, BEAMS, atol=1e-4)
        assert signal_stack() == before
    del engine
    gc.collect()
    assert signal_stack() == before


def test_bf16_is_the_same_up_to_rounding(bundle: Bundle) -> None:
    fused = FusedDecoder(bundle.network.decoder)
    check(TorchEngine(fused, "bf16"), bundle, 2, BEAMS, atol=0.1)
    if OpenVinoEngine.has_bf16():
        check(OpenVinoEngine(fused, BEAMS, "bf16", 1), bundle, 3, BEAMS - 1, atol=0.1)


def test_a_node_with_a_gpu_keeps_memory_there_and_gets_states_back(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's meta device, which computes shapes alone, stands for a GPU: it refuses to meet a tensor from elsewhere."""
    elsewhere, brought = torch.device("meta"), []

    def to_host(tensor: Tensor) -> Tensor:
        assert tensor.device == elsewhere
        brought.append(tensor.shape)
        return torch.zeros(tensor.shape)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("model.engine_choice.GPU", elsewhere)
    monkeypatch.setattr("model.engine.to_host", to_host)
    config = EngineConfig(device="cuda", precision="bf16")
    recommender = Recommender(bundle, BEAMS, engine=EngineChoice(config, BEAMS, 2, 1))
    assert recommender.engine_name == "torch meta bf16"
    rows = make_rows(19)
    context = recommender.encode_state(UserState("ann", UserMeta(length=19), rows, None))
    assert {tensor.device for tensor in context.memory.tensors} == {elsewhere}
    assert context.num_bytes > sum(tensor.nbytes for tensor in context.memory.tensors) > 0
    brought.clear()
    found = recommender.answer([context, context], [Query(k=5)] * 2)
    assert [len(items) for items in found] == [5, 5]
    assert brought


def test_a_gpu_that_is_asked_for_has_to_be_there(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    choice = EngineChoice(EngineConfig(device="cuda"), BEAMS, 1, 1)
    with pytest.raises(ModelConfigError, match=r"sees no GPU.*nvidia-smi.*device = \"auto\""):
        Recommender(bundle, BEAMS, engine=choice)
    with pytest.raises(ModelConfigError, match=r"set name to 'torch'"):
        EngineConfig(name="openvino", device="cuda")


def test_a_gpu_is_tried_beside_the_others(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("model.engine_choice.GPU", torch.device("cpu", 0))
    tried: list[str] = []

    def first(engines: Sequence[Engine], times_ms: Sequence[float]) -> Engine:
        tried.extend(engine.name for engine in engines)
        return engines[-1]

    monkeypatch.setattr("model.engine_choice._fastest", first)
    recommender = Recommender(bundle, BEAMS, engine=EngineChoice(EngineConfig(), BEAMS, 1, 1))
    assert tried[0] == "torch fp32"
    assert tried[-2:] == ["torch cpu:0 fp32", "torch cpu:0 bf16"]
    assert recommender.engine_name == "torch cpu:0 bf16"


def test_contexts_in_bf16_are_the_same_up_to_rounding(bundle: Bundle) -> None:
    """Roundings of 2^-8 over a few layers; a norm with bfloat16's own epsilon would show.

    All of the mid-term segment is selected here: which of two that score alike would be may differ.
    """
    config = EngineConfig(name="torch", precision="bf16")
    rounded = Recommender(bundle, BEAMS, engine=EngineChoice(config, BEAMS, 1, 1))
    rows = make_rows(12)
    state = UserState("someone", UserMeta(length=12), rows, None)
    expected, found = (
        recommender.encode_state(state) for recommender in (Recommender(bundle), rounded)
    )
    for one, other in zip(found.memory.streams, expected.memory.streams, strict=True):
        assert float((one - other).abs().max()) < 0.05 * max(1.0, float(other.abs().max()))
    torch.testing.assert_close(found.bos, expected.bos, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_the_choice_recommends_like_the_plain_engine(bundle: Bundle, name: str) -> None:
    config = EngineConfig(name=name, precision="fp32")  # type: ignore[arg-type]
    recommender = Recommender(bundle, BEAMS, engine=EngineChoice(config, BEAMS, 2, 1))
    rows = make_rows(19)
    state = UserState("someone", UserMeta(length=len(rows)), rows, None)
    expected = Recommender(bundle, BEAMS).recommend(state, Query(k=5))
    found = recommender.recommend(state, Query(k=5))
    assert [one.item for one in found] == [one.item for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_auto_takes_one_that_is_there(bundle: Bundle) -> None:
    recommender = Recommender(bundle, BEAMS, engine=EngineChoice(EngineConfig(), BEAMS, 1, 1))
    assert recommender.engine_name.split()[0] in ("torch", "openvino")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ModelConfigError, match=r"engine.name is 'tensorrt'"):
        EngineConfig(name="tensorrt")  # type: ignore[arg-type]
