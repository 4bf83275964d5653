"""The committed generated code is what the committed protos compile to."""

import filecmp
from pathlib import Path

from scripts.compile_protos import compile_protos

ROOT = Path(__file__).parent.parent


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    compile_protos(tmp_path)
    fresh = sorted(path.name for path in (tmp_path / "protos").iterdir())
    committed = sorted(path.name for path in (ROOT / "protos").glob("*_pb2*"))
    assert fresh == committed
    _, different, broken = filecmp.cmpfiles(
        tmp_path / "protos", ROOT / "protos", fresh, shallow=False
    )
    assert (different, broken) == ([], []), "run `make gen` and commit the result"
