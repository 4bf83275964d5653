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
from services.cli.train import read_train_config, train
from services.errors import SettingsError
from services.settings import load_settings
from state.event_log import EventLog

SETTINGS = """
[history]
recent_len = 8
mid_term_len = 16
chunk_len = 4
max_history = 1000
[inference_node]
beam_width = 8
[train]
max_steps = 3
batch_size = 8
min_item_count = 2
evaluation_users = 4
num_threads = 1
[train.network]
num_blocks = 1
[train.network.layer]
width = 8
num_heads = 2
ffn_width = 8
[train.network.features]
item_buckets = 64
[train.items]
cooccurrence_width = 8
[train.tokenizer]
codebook_sizes = [6, 6, 6]
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
    (tmp_path / "gemstream.toml").write_text(SETTINGS)
    arguments = [
        str(log_path),
        "--out",
        str(tmp_path / "bundle"),
        "--config",
        str(tmp_path / "gemstream.toml"),
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
        ("[train]\nbath_size = 3", "train: unknown setting 'bath_size'"),
        ("[train.network.layer]\nwidht = 3", "train.network.layer: unknown setting 'widht'"),
        ("[train]\nbatch_size = 0", "batch_size is 0"),
        ("[train]\nbatch_size = '32'", "train.batch_size: expected int, found '32'"),
        ("[train.tokenizer]\ncodebook_sizes = [256.9]", "expected int, found 256.9"),
        ("[train.tokenizer]\nbalance = 0.5", "balance is 0.5"),
        ("[train.items]\ncooccurrence_weight = 0", "one source above 0"),
        ("[train]\nminutes = nan", "train.minutes: expected a finite number"),
        ("[train.stages]\nshares = [0.5, 0.5]", "train.stages.shares: Not enough values"),
        ("train = 5", "train: expected a table, found 5"),
        ("[history]\nrecent_len = 0", "recent_len is 0"),
        ("[train.history]\nrecent_len = 8", "move it to .history."),
        ("[rocks]\nmax_files = 1", "rocks: unknown setting 'max_files'"),
        ("= 3", "is not TOML"),
    ],
)
def test_configuration_errors_name_the_setting(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_train_config(path, {})


def test_one_file_serves_and_trains(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text(SETTINGS)
    assert load_settings(path, {}).history == read_train_config(path, {}).history
    assert read_train_config(path, {}).network.layer.width == 8


def test_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text("[train]\nminutes = 9\nseed = 1")
    config = read_train_config(path, {"minutes": 2.0})
    assert (config.minutes, config.seed) == (2.0, 1)


def test_our_errors_become_one_line(app: typer.Typer, log_path: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    result = CliRunner().invoke(app, [str(log_path), "--out", str(tmp_path / "full")])
    assert isinstance(result.exception, ModelError)  # services/cli/main.py prints its text
    assert "not a bundle" in str(result.exception)
