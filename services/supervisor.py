"""Keep several child processes running: restart with backoff, stop together, give up on bad configuration."""

import shutil
import sys
from collections.abc import Sequence


def die_with_parent(argv: Sequence[str]) -> list[str]:
    """The same command, killed by the kernel when the thread that started it ends (Linux alone).

    `setpriv` sets this up and then becomes the command: unlike a `preexec_fn`, it is safe beside
    the threads of gRPC and PyTorch.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return [setpriv, "--pdeathsig", "KILL", "--", *argv] if setpriv else list(argv)
