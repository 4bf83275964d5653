"""Limits of settings, one by one: the message names the setting that is wrong, and no other."""

from model.errors import ModelConfigError


def check_limits(config: object, *names: str, least: float, most: float | None = None) -> None:
    """Raises ModelConfigError for the first of `names` whose value is below `least` or above `most`."""
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise ModelConfigError(f"{name} is {value}; it must be at least {least}")
        if most is not None and value > most:
            raise ModelConfigError(f"{name} is {value}; it must be at most {most}")
