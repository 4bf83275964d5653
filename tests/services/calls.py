"""`gemstream` called in this process: quick, where nothing is about processes."""

import contextlib
import io
import json
import logging
from dataclasses import dataclass
from typing import Any
from unittest import mock

from services.cli.main import main


@dataclass(frozen=True)
class Done:
    """How a call ended."""

    code: int
    stdout: str
    stderr: str

    def document(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.stdout)


def call(*arguments: str) -> Done:
    """`gemstream ARGUMENTS`; wide enough that no table is cut."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    aiokafka = logging.getLogger("aiokafka")
    level = aiokafka.level
    with (
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        mock.patch("sys.argv", ["gemstream", *arguments]),
        mock.patch.dict("os.environ", {"COLUMNS": "300"}),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            aiokafka.setLevel(level)
    return Done(code, stdout.getvalue(), stderr.getvalue())
