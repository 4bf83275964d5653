"""A hash of the project's source that a module runs, so that figures of other code are not taken for its own."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PACKAGES = ("bench", "examples", "model", "state")


def code_version(*modules: str) -> str:
    """12 hex digits over these modules and all of the project that they import, however deep."""
    files, open_names = dict[str, Path](), list(modules)
    while open_names:
        name = open_names.pop()
        path = _file_of(name)
        if path is None or name in files:
            continue
        files[name] = path
        open_names += _imports(path)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name].read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _file_of(module: str) -> Path | None:
    if module.split(".")[0] not in _PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
