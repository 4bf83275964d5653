"""The flat packages: ours are the ones imported, the wheel holds exactly them, files stay small."""

import importlib
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("protos", "state", "stream", "model", "services")


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_come_from_this_repository(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).parent == ROOT / name


def test_every_root_package_is_under_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
        "tests",
        "examples",
        "bench",
    }
    assert found == set(settings["tool"]["importlinter"]["root_packages"]) == set(PACKAGES)
    assert tuple(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == PACKAGES


def test_the_wheel_holds_exactly_the_packages(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        check=True,
        cwd=ROOT,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top_level = {name.partition("/")[0] for name in names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == set(PACKAGES)
    assert "services/kafka_jars.xml" in names


def test_importing_packages_or_the_command_loads_no_torch() -> None:
    code = (
        "import sys, protos, state, stream, model, services, services.cli.main; "
        "heavy = {'torch', 'faust', 'rocksdict'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_stay_small() -> None:
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if "_pb2" not in path.name and (lines := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
