"""`gemstream train`: its configuration file, its errors, its output."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import typer
from typer.testing import CliRunner

from model.bundle import load_bundle
from model.errors import ModelError
from services.cli.output import CommandError
from services.cli.train import _read_config, train
from state.event_log import EventLog

SETTINGS = """
max_steps = 3
batch_size = 8
min_item_count = 2
evaluation_users = 4
num_threads = 1
[network]
num_blocks = 1
[network.layer]
width = 8
num_heads = 2
ffn_width = 8
[network.features]
item_buckets = 64
[history]
recent_len = 8
mid_term_len = 16
chunk_len = 4
max_history = 1000
[tokenizer]
codebook_size = 6
vector_width = 8
"""


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(train)
    return app


@pytest.fixture
def log_path(event_log: EventLog, tmp_path: Path) -> Path:
    path = tmp_path / "events.parquet"
    users = [event_log.user_ids[i] for i in event_log.user_index]
    columns = {name: event_log.rows[name] for name in ("item_id", "event_time_ms", "tag")}
    pyarrow.parquet.write_table(pa.table({"user_id": users, **columns}), path)
    return path


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_becomes_a_bundle(
    app: typer.Typer, log_path: Path, tmp_path: Path, as_json: bool
) -> None:
    (tmp_path / "train.toml").write_text(SETTINGS)
    arguments = [
        str(log_path),
        "--out",
        str(tmp_path / "bundle"),
        "--config",
        str(tmp_path / "train.toml"),
    ]
    result = CliRunner().invoke(app, [*arguments, "--seed", "3", *(["--json"] if as_json else [])])
    assert result.exit_code == 0, result.output
    bundle = load_bundle(tmp_path / "bundle")
    if as_json:
        assert json.loads(result.stdout)["bundle_version"] == bundle.version
    else:
        assert "popularity" in result.stdout
        assert "dense" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bath_size = 3", "unknown setting 'bath_size' in TrainConfig"),
        ("[network.layer]\nwidht = 3", "unknown setting 'widht' in LayerConfig"),
        ("batch_size = 0", "batch_size is 0"),
        ("batch_size = 'many'", "batch_size"),
        ("[history]\nrecent_len = 0", "recent_len is 0"),
        ("= 3", "cannot be read"),
    ],
    ids=["key", "nested key", "limit", "type", "history", "syntax"],
)
def test_configuration_errors_name_the_setting(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(CommandError, match=message):
        _read_config(path, {})


def test_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("minutes = 9\nseed = 1")
    config = _read_config(path, {"minutes": 2.0})
    assert (config.minutes, config.seed) == (2.0, 1)


def test_our_errors_become_one_line(app: typer.Typer, log_path: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    result = CliRunner().invoke(app, [str(log_path), "--out", str(tmp_path / "full")])
    assert isinstance(result.exception, ModelError)  # services/cli/main.py prints its text
    assert "not a bundle" in str(result.exception)
