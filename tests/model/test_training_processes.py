"""`gemstream train` as real processes: killed and resumed, and several under torchrun."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model.bundle import load_bundle
from model.training.metrics import read_metrics
from services.ports import free_port
from tests.model.test_train_command import SETTINGS
from tests.model.test_training_parallel import ROOT

DEADLINE_S = 120.0
TRAIN = ["-m", "services.cli", "train"]


def start(log: Path, where: Path, *launcher: str, steps: int = 15) -> "subprocess.Popen[str]":
    where.mkdir(exist_ok=True)
    settings = SETTINGS.replace("max_steps = 3", f"max_steps = {steps}\ncheckpoint_every_s = 0.0")
    (where / "gemstream.toml").write_text(settings)
    command = [*(launcher or (sys.executable,)), *TRAIN, str(log), "--json", "--out",
               str(where / "bundle"), "--config", str(where / "gemstream.toml")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]") -> str:
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    return output


def rows(where: Path) -> list[tuple[object, ...]]:
    """All metrics but the clock's."""
    found = read_metrics(where / "bundle.run" / "metrics.csv")
    return [tuple(v for name, v in vars(row).items() if name != "tokens_per_s") for row in found]


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bundle(log_path: Path, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for stage in ("repeats", "dense"):
        process = start(log_path, killed)
        give_up_at = time.monotonic() + DEADLINE_S
        while not any(row[0] == stage for row in rows(killed)):
            assert time.monotonic() < give_up_at
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)  # between two looks
        process.kill()
        process.communicate()
        assert not (killed / "bundle").exists()
    report = json.loads(finish(start(log_path, killed)))
    finish(start(log_path, whole))
    file = Path("bundle") / "network.safetensors"
    expected = load_file(whole / file)
    assert all(torch.equal(t, expected[name]) for name, t in load_file(killed / file).items())
    assert rows(killed) == rows(whole)
    assert report["stages"][0]["steps"] == 15


@pytest.mark.slow
def test_the_documented_torchrun_command_trains_a_bundle(log_path: Path, tmp_path: Path) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    options = (
        "--nproc-per-node",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(free_port()),
    )
    report = json.loads(finish(start(log_path, tmp_path, torchrun, *options, steps=6)))
    assert report["processes"] == 2
    assert load_bundle(tmp_path / "bundle").version == report["bundle_version"]
