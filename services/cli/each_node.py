"""One question to several nodes, and their answers as people or programs read them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from services.channels import Target
from services.cli.output import message_document, print_json

Answer = TypeVar("Answer", bound=Message)


def ask_each(
    targets: Sequence[Target],
    ask: Callable[[Target], Answer],
    show: Callable[[str, Answer], None],
    *,
    as_json: bool,
) -> None:
    """One node after the other; the first that refuses ends it. In JSON, one document by address."""
    documents: dict[str, Any] = {}
    for target in targets:
        answer = ask(target)
        documents[target.address] = message_document(answer)
        if not as_json:
            show(target.address, answer)
    if as_json:
        print_json(documents)
