"""Settings: strict, complete, and with errors that name the key."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.output import CommandError
from services.deployment import check_before_start
from services.errors import SettingsError
from services.settings import load_settings
from services.supervisor import EX_CONFIG


def test_defaults_need_no_file() -> None:
    settings = load_settings(None, {"data_dir": None})
    assert settings.history.recent_len == 256
    assert settings.data_dir == Path("data")


def test_file_then_environment_then_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text('bootstrap = "file:1"\nbundle = "b"\n[history]\nrecent_len = 10\n')
    settings = load_settings(path, {})
    assert (settings.bootstrap, settings.history.recent_len) == ("file:1", 10)
    assert settings.bundle == tmp_path / "b"
    monkeypatch.setenv("GEMSTREAM_KAFKA", "env:1")
    assert load_settings(path, {}).bootstrap == "env:1"
    assert load_settings(path, {"bootstrap": "option:1"}).bootstrap == "option:1"


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("recent_length = 5", "recent_length"),
        ("[history]\nrecent = 5", "recent"),
        ("[history]\nrecent_len = 5.5", "expected int, found 5.5"),
        ('[history]\nrecent_len = "5"', "expected int, found '5'"),
        ("[history]\nrecent_len = true", "expected int, found True"),
        ("[history]\nmid_term_len = 100", "mid_term_len is 100; it must be at least"),
        ("[topics]\nnum_partitions = 0", "num_partitions is 0"),
        ("[inference_node]\nbeam_width = 0", "beam_width is 0"),
        ("[inference_node]\nnum_threads = 100000", "num_threads is 100000; it must be at most 256"),
        ("[compression_worker]\nnum_threads = 0", "num_threads is 0; it must be at least 1"),
        ("[inference_node]\nlittle_history = -1", r"little_history is -1; it must be at least 0$"),
        ("[inference_node]\nmax_per_first_code = 0", "max_per_first_code is 0"),
        (
            "[inference_node]\nmax_per_first_code = 2\nexact_search = true",
            "max_per_first_code and exact_search are both set",
        ),
        ("history = ", "gemstream.toml"),
        ("[history]\nlate = 'burn'", "history.late: expected 'store' or 'drop', found 'burn'"),
        ("history = 5", "history: expected a table, found 5"),
        ('[state_node]\nlisten = "127.0.0.1:99999"', "listen is '127.0.0.1:99999'.*host:port"),
        ('[state_node]\nadvertise = "owner"', "advertise is 'owner'"),
        ('[inference_node]\nlisten = ":50052"', "listen is ':50052'"),
        ('[inference_node]\nstate_address = "owner:http"', "state_address is 'owner:http'"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, phrase: str) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=phrase):
        load_settings(path, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="none.toml"):
        load_settings(tmp_path / "none.toml", {})


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_bytes('# für "alle"\n'.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"gemstream.toml: byte 3 is not UTF-8"):
        load_settings(path, {})


def test_what_training_alone_reads_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text("[train]\nminutes = 5\n[history]\nrecent_len = 10\n")
    assert load_settings(path, {}).history.recent_len == 10


def test_a_short_token_is_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMSTREAM_ADMIN_TOKEN", "short")
    settings = load_settings(None, {"data_dir": tmp_path})
    with pytest.raises(SettingsError, match="GEMSTREAM_ADMIN_TOKEN holds 5 characters"):
        check_before_start(settings, ["state-node"])
    for role in ("state-node", "inference-node"):
        ran = CliRunner().invoke(app, ["run", role, "--bootstrap", "127.0.0.1:1"])
        assert isinstance(ran.exception, CommandError)
        assert ran.exception.exit_code == EX_CONFIG
        assert "GEMSTREAM_ADMIN_TOKEN" in str(ran.exception)
