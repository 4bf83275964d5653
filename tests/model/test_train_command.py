"""`gemstream train`: its configuration file, its errors, its output."""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from model.bundle import Trained, load_bundle, save_bundle
from model.errors import CatalogueError, ModelError, TrainingError, TrainingRunError
from model.training.config import TrainConfig
from model.training.memory import memory_errors
from model.training.run_directory import RunDirectory
from services.cli.train import read_train_config, train
from services.errors import SettingsError
from services.settings import load_settings

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
        ("[train.items]\ncooccurrence_weight = 0", "one source must be above 0"),
        ("[train]\nminutes = nan", "train.minutes: expected a finite number"),
        ("[train.stages]\nshares = [0.5, 0.5]", "train.stages.shares: Not enough values"),
        ("train = 5", "train: expected a table, found 5"),
        ("[train]\nnum_threads = 100000", "num_threads is 100000; it must be at most 1024"),
        ('[train]\ntarget_kinds = ["bought"]', "target_kinds has bought; there are view, click"),
        ("[train]\ntarget_kinds = [1]", "train.target_kinds.*: expected str, found 1"),
        ("[train]\nseed = 9223372036854775808", "seed is 9223372036854775808"),
        ("[train]\nminutes = -1.0", "minutes is -1.0; it must be above 0$"),
        ("[train.network.features]\nitem_buckets = 1000000000000", "item_buckets is 1000000000000"),
        ("[train.items]\ncooccurrence_width = 100000", "cooccurrence_width is 100000"),
        ("[train.network.lifecycle]\ntop_r = 100000", "top_r is 100000; it must be at most 65535"),
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


def invoke(app: typer.Typer, log_path: Path, tmp_path: Path, settings: str, *more: str) -> Result:
    path = tmp_path / "gemstream.toml"
    path.write_text(settings)
    out = str(tmp_path / "bundle")
    return CliRunner().invoke(app, [str(log_path), "--out", out, "--config", str(path), *more])


@pytest.mark.parametrize(
    ("table", "items", "message"),
    [
        ("text_weight = 1.0", None, "give an items file"),
        ("text_weight = 1.0", {"item_id": [1, 2]}, "none of the .* has a title"),
        ("", {"item_id": [7, 8, 7]}, "item 7 is in it twice"),
        ("", {"item_id": []}, "there is no item in it"),
    ],
)
def test_what_cannot_be_meant_is_an_error(
    app: typer.Typer,
    log_path: Path,
    tmp_path: Path,
    table: str,
    items: dict[str, list[int]] | None,
    message: str,
) -> None:
    more = []
    if items is not None:
        path = tmp_path / "items.parquet"
        ids = pa.array(items["item_id"], pa.uint64())
        pyarrow.parquet.write_table(pa.table({"item_id": ids}), path)
        more = ["--items", str(path)]
    settings = SETTINGS.replace("[train.items]", f"[train.items]\n{table}")
    result = invoke(app, log_path, tmp_path, settings, *more)
    assert isinstance(result.exception, CatalogueError)
    assert re.search(message, str(result.exception))
    assert not (tmp_path / "bundle").exists()


def test_what_may_be_meant_is_a_warning(app: typer.Typer, log_path: Path, tmp_path: Path) -> None:
    settings = SETTINGS.replace("[6, 6, 6]", "[600, 6, 6]").replace(
        "[train.items]", '[train.items]\nvectors = "none.npz"\ncontent_weight = 0.0'
    )
    result = invoke(app, log_path, tmp_path, settings)
    assert result.exit_code == 0, result.output
    assert "none.npz, is not used: content_weight is 0" in result.output
    assert "more codes than there are items" in result.output
    assert "no time was left for stage 'selection'" in result.output


@pytest.mark.parametrize(
    ("setting", "instead", "message"),
    [
        ("max_steps = 3", "minutes = 0.0001", "preparing took .* s.*--minutes [0-9.]+ or more"),
        (
            "[train]",
            '[train]\ntarget_kinds = ["follow"]',
            ", 0 of them targets: .*train.target_kinds",
        ),
    ],
)
def test_where_nothing_can_be_learned_there_is_no_bundle(
    app: typer.Typer, log_path: Path, tmp_path: Path, setting: str, instead: str, message: str
) -> None:
    result = invoke(app, log_path, tmp_path, SETTINGS.replace(setting, instead))
    assert isinstance(result.exception, TrainingError)
    assert re.search(message, str(result.exception))
    assert not (tmp_path / "bundle").exists()


def test_one_run_at_a_time_is_in_a_directory(
    app: typer.Typer, log_path: Path, tmp_path: Path
) -> None:
    with RunDirectory(tmp_path / "bundle.run").claim():
        result = invoke(app, log_path, tmp_path, SETTINGS, "--restart")
    assert isinstance(result.exception, TrainingRunError)
    assert "another run is going on" in str(result.exception)


def test_memory_that_is_refused_is_a_training_error() -> None:
    with pytest.raises(TrainingError, match="item_buckets"), memory_errors(TrainConfig()):
        torch.empty(2**60)
    with pytest.raises(RuntimeError, match="another"), memory_errors(TrainConfig()):
        raise RuntimeError("another")


def test_a_run_directory_that_disappears_is_said(
    app: typer.Typer, log_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_remove(trained: Trained, out: Path) -> str:
        shutil.rmtree(tmp_path / "bundle.run")
        return save_bundle(trained, out)

    monkeypatch.setattr("model.training.train.save_bundle", save_and_remove)
    result = invoke(app, log_path, tmp_path, SETTINGS)
    assert isinstance(result.exception, TrainingRunError)
    assert "bundle.run disappeared" in str(result.exception)
    assert load_bundle(tmp_path / "bundle").version
