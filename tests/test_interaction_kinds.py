"""The kinds of the wire and the kinds of an event log are the same, but for the one that is a request."""

from protos.interaction_pb2 import INTERACTION_KIND_FORGET, InteractionKind
from state.interaction import KIND_NAMES, KINDS_MASK


def test_names_are_those_of_the_wire() -> None:
    wire = {
        number: name.removeprefix("INTERACTION_KIND_").lower()
        for name, number in InteractionKind.items()
        if number != INTERACTION_KIND_FORGET
    }
    assert wire == dict(enumerate(KIND_NAMES))
    assert bin(KINDS_MASK).count("1") == len(KIND_NAMES) - 1


def test_a_request_is_never_a_kind_of_an_interaction() -> None:
    assert not KINDS_MASK >> INTERACTION_KIND_FORGET & 1
