"""How many threads a network may have: OpenMP does not survive any number."""

from model.errors import ModelConfigError

MAX_NUM_THREADS = 256


def check_num_threads(num_threads: int) -> None:
    """Raises ModelConfigError for a number that no process can have."""
    if not 1 <= num_threads <= MAX_NUM_THREADS:
        raise ModelConfigError(f"num_threads is {num_threads}; it must be 1 to {MAX_NUM_THREADS}")
