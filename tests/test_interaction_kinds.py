"""The kinds of the wire and the kinds of an event log are the same."""

from protos.interaction_pb2 import InteractionKind
from state.interaction import KIND_NAMES, KINDS_MASK


def test_names_are_those_of_the_wire() -> None:
    wire = [name.removeprefix("INTERACTION_KIND_").lower() for name in InteractionKind.keys()]  # noqa: SIM118
    assert tuple(wire) == KIND_NAMES
    assert bin(KINDS_MASK).count("1") == len(KIND_NAMES) - 1
