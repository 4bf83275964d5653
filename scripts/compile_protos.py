"""Compiles protos/*.proto into the committed Python modules and type stubs."""

import sys
from pathlib import Path

from google.rpc import status_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def compile_protos(out_dir: Path) -> None:
    """Write the generated modules and stubs under `out_dir/protos`. Raises RuntimeError when protoc fails."""
    sources = sorted(f"protos/{path.name}" for path in (ROOT / "protos").glob("*.proto"))
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    arguments = ["protoc", f"-I{ROOT}", f"--plugin=protoc-gen-mypy_grpc={plugin}"]
    # Google's own, which are not compiled: google/rpc, and google/protobuf.
    packages = Path(status_pb2.__file__).parents[2]
    arguments += [f"-I{packages}", f"-I{Path(protoc.__file__).parent / '_proto'}"]
    arguments += [
        f"--{kind}={out_dir}"
        for kind in ("python_out", "pyi_out", "grpc_python_out", "mypy_grpc_out")
    ]
    if protoc.main([*arguments, *sources]) != 0:
        raise RuntimeError(f"protoc failed on {', '.join(sources)}")
    _drop_empty_service_modules(out_dir / "protos")


def _drop_empty_service_modules(folder: Path) -> None:
    """A file without a service gets an empty `_pb2_grpc` module from protoc; it is noise."""
    for module in folder.glob("*_pb2_grpc.py"):
        if "class " not in module.read_text():
            module.unlink()
            module.with_suffix(".pyi").unlink(missing_ok=True)


if __name__ == "__main__":
    compile_protos(ROOT)
    sys.exit(0)
