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
    try:
        return cast(_Function, njit(cache=True, nogil=True, forceinline=True)(function))
    except RuntimeError:  # no directory to keep it in
        return cast(_Function, njit(nogil=True, forceinline=True)(function))
