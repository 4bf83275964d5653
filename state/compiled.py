"""Python loops as machine code: numba, for the few places that touch every byte of a poll."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile `function` at its first call for the types it is called with, and run it without the GIL.

    Machine code is kept in `__pycache__` or, where that is read-only, in the user's cache directory (NUMBA_CACHE_DIR
    overrides both); where nothing is writable every process compiles anew. The kept code is dropped when the function's
    own file changes, and only then: a compiled function may use functions and constants of its own file, but nothing
    of other files. What it needs of those is an argument.
    """
    return _compiled(function, fastmath=False)


def compiled_sums(function: _Function) -> _Function:
    """As `compiled`, for sums of floating-point numbers in whatever order is quickest: their last bits may differ."""
    return _compiled(function, fastmath={"reassoc", "contract"})


def _compiled(function: _Function, fastmath: bool | set[str]) -> _Function:
    def made(*, cache: bool) -> _Function:
        compile_ = njit(cache=cache, nogil=True, forceinline=True, fastmath=fastmath)
        return cast(_Function, compile_(function))

    try:
        return made(cache=True)
    except RuntimeError:  # no directory to keep it in
        return made(cache=False)
