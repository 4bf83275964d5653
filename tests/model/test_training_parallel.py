"""Two processes train as one does: the same losses, the same gradients, the same weights."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model.errors import TrainingStopped
from model.layers import LayerConfig
from model.next_item import NextItemConfig
from model.training.config import StageRules
from model.training.data_parallel import joined_workers
from model.training.metrics import StepMetrics, read_metrics
from model.training.train import RunPlace, train
from services.ports import free_port
from tests.model.test_training_runs import SignalAt
from tests.model.worlds import SMALL, make_event_log

NUM_STEPS = 12
ROOT = Path(__file__).parent.parent.parent
CONFIG = replace(
    SMALL,
    network=replace(
        SMALL.network,
        layer=LayerConfig(width=16, num_heads=2, ffn_width=16, dropout=0.0),
        next_item=NextItemConfig(enabled=True, dropout=0.0),
        recent_positions="distance",
    ),
    batch_size=15,  # parts of unequal size
    even_batches=True,
    codes_every=2,
    max_steps=NUM_STEPS,
    stages=StageRules(shares=(0.4, 0.3, 0.3), evaluate_every=2),
)
COLUMNS = ("next_token_loss", "reconstruction_loss", "indexer_loss", "kept_attention_mass",
           "next_item_loss", "validation_loss", "gradient_norm")  # fmt: skip


def threads() -> list[str]:
    """Names of this process's threads, Python's and others'."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended meanwhile
            names.append((task / "comm").read_text().strip())
    return names


def run_here(where: Path, stop_after: int = 0) -> None:
    """What each of the processes runs."""
    torch.set_num_threads(1)
    with joined_workers() as workers:
        place = RunPlace(where / "run", workers)
        train(make_event_log(), None, CONFIG, where / "bundle", SignalAt(stop_after), place)


def torchrun(where: Path, stop_after: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
               __file__, str(where), str(stop_after)]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def metrics(where: Path) -> list[StepMetrics]:
    return [row for row in read_metrics(where / "run" / "metrics.csv") if row.stage != "repeats"]


@pytest.mark.slow
def test_two_processes_train_like_one_and_stop_together(tmp_path: Path) -> None:
    """Under torchrun until a signal before the last step; one process alone makes that one."""
    both, alone = tmp_path / "both", tmp_path / "alone"
    together = torchrun(both, stop_after=2 * NUM_STEPS - 1)
    run_here(alone)
    output, _ = together.communicate(timeout=120)
    assert together.returncode == 0, output
    assert len(metrics(both)) == NUM_STEPS - 1
    run_here(both)

    one, two = metrics(alone), metrics(both)
    assert [(row.stage, row.step) for row in one] == [(row.stage, row.step) for row in two]
    for name in COLUMNS:
        expected, found = (
            np.array([getattr(row, name) for row in rows], float) for rows in (one, two)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=name)
    file = Path("bundle") / "network.safetensors"
    resumed = load_file(both / file)
    for name, tensor in load_file(alone / file).items():
        torch.testing.assert_close(resumed[name], tensor, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    with suppress(TrainingStopped):
        run_here(Path(sys.argv[1]), int(sys.argv[2]))
    left = [name for name in threads() if "gloo" in name]
    assert not left, f"these run into the end of the process, which may abort it: {left}"
