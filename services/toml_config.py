"""TOML into configuration dataclasses: unknown keys and silent conversions are errors that name their place."""

import math
import tomllib
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import cattrs

from services.errors import SettingsError

Config = TypeVar("Config")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises SettingsError."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from error


def structure(path: Path, table: Any, kind: type[Config], prefix: str = "") -> Config:
    """`table`, found in `path` under the key `prefix`, as a `kind`. Raises SettingsError."""
    try:
        return _converter.structure(table, kind)
    except cattrs.BaseValidationError as error:
        raise SettingsError(f"{path}: {'; '.join(_explain(error, prefix))}") from error
    except TypeError as error:
        raise SettingsError(f"{path}: {prefix}: {error}") from error


def _explain(error: cattrs.BaseValidationError, prefix: str) -> list[str]:
    """One phrase per fault, behind the key it is about."""
    faults = cattrs.transform_error(error, path=prefix or "$", format_exception=_phrase)
    explained = []
    for fault in faults:
        text, _, place = fault.rpartition(" @ ")
        key = place.removeprefix("$").removeprefix(".")
        explained.append(f"{key}: {text}" if key else text)
    return explained


def _phrase(error: BaseException, _: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        names = ", ".join(repr(name) for name in sorted(error.extra_fields))
        return f"unknown setting {names}; docs/settings.md lists them all"
    return str(error)


def _exact(value: Any, kind: Any) -> Any:
    """No silent conversion between types: 5.7 is no integer and "5" is no number."""
    accepted: Any = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"expected {kind.__name__}, found {value!r}")
    if kind is float and not math.isfinite(value):
        raise TypeError(f"expected a finite number, found {value!r}")
    return kind(value)


def _is_literal(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin is Literal


def _one_of(value: Any, kind: Any) -> Any:
    choices = get_args(kind)
    if value not in choices:
        raise TypeError(f"expected {' or '.join(map(repr, choices))}, found {value!r}")
    return value


def _table_of(converter: cattrs.Converter, kind: Any) -> Callable[[Any, Any], Any]:
    from_table = converter.gen_structure_attrs_fromdict(kind)

    def structure_table(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"expected a table, found {value!r}")
        return from_table(value, kind)

    return structure_table


def _strict_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (int, float, str, bool):
        converter.register_structure_hook(kind, _exact)
    converter.register_structure_hook_factory(is_dataclass, lambda kind: _table_of(converter, kind))
    converter.register_structure_hook_func(_is_literal, _one_of)
    converter.register_structure_hook(Path, lambda value, _: Path(_exact(value, str)))
    return converter


_converter = _strict_converter()
