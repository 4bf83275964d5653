"""What the documents say is true: settings, commands, contracts."""

import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from services.cli.main import app
from services.settings import Settings, load_settings

ROOT = Path(__file__).parent.parent


def test_documented_settings_are_the_defaults(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/settings.md").read_text(), re.S)
    path = tmp_path / "gemstream.toml"
    path.write_text(block)
    documented = load_settings(path, {"data_dir": Path("data"), "bundle": Path("bundle")})
    assert documented == Settings()


def test_every_setting_is_documented() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/settings.md").read_text(), re.S)
    uncommented = re.sub(r"^# (?=[a-z_]+ = )", "", block, flags=re.M)
    assert keys_of(tomllib.loads(uncommented)) == keys_of(asdict(Settings()))


def keys_of(table: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in table.items():
        found |= keys_of(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return found


def test_commands_of_the_readme_exist() -> None:
    used = set(re.findall(r"^    gemstream (\w+)", (ROOT / "README.md").read_text(), re.M))
    shown = CliRunner().invoke(app, ["--help"]).output
    assert used
    assert [name for name in used if f" {name} " not in shown] == []


def test_short_documents_stay_short() -> None:
    for name in ("docs/structure.md", "CONTRIBUTING.md"):
        assert len((ROOT / name).read_text().splitlines()) < 60
