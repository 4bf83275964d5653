"""What the documents say is true: settings, commands, contracts."""

import re
import textwrap
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from model.training.config import TrainConfig
from protos.trending_pb2 import PartitionTrending
from services.answer_stats import AnswerStats
from services.batcher import Batcher, BatchingConfig
from services.cli.main import app
from services.cli.train import read_train_config
from services.context_cache import ContextCache
from services.metrics.rollouts import RolloutCollector
from services.metrics.serving import (
    AnswerCollector,
    CatalogueCollector,
    GenerationCollector,
    RequestCollector,
    SourceCollector,
)
from services.metrics.workers import CompressionCollector, TrendingCollector
from services.request_stats import RequestStats
from services.settings import Settings, load_settings
from services.traffic_split import Role
from services.trending import Trending
from stream.trending_counts import TrendingConfig
from tests.services.test_catalogue_metrics import followed_catalogue
from tests.services.test_metric_collectors import busy_node, expose, rolling_stores

ROOT = Path(__file__).parent.parent


def documented_settings() -> str:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/settings.md").read_text(), re.S)
    return str(block)


def test_documented_settings_are_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text(documented_settings())
    documented = load_settings(path, {"data_dir": Path("data"), "bundle": Path("bundle")})
    assert documented == Settings()
    assert read_train_config(path, {}) == TrainConfig()


def test_every_setting_is_documented() -> None:
    uncommented = re.sub(r"^# (?=[a-z_]+ = )", "", documented_settings(), flags=re.M)
    train = asdict(TrainConfig())
    del train["history"]
    assert keys_of(tomllib.loads(uncommented)) == keys_of({**asdict(Settings()), "train": train})


def test_the_network_is_told_what_is_popular_with_the_documented_settings() -> None:
    text = (ROOT / "docs/network.md").read_text()
    (block,) = re.findall(r"^    \[trending\]\n(?:    .+\n)+", text, re.M)
    counting = TrendingConfig(**tomllib.loads(textwrap.dedent(block))["trending"])
    assert counting.half_life_s == TrainConfig().network.repeats.popularity_half_life_s


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


def test_every_metric_is_documented() -> None:
    table = (ROOT / "docs/metrics.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\|", table, re.M)
    assert sorted(
        (name, kind, set(labels.replace(",", " ").split())) for name, kind, labels in documented
    ) == sorted(exposed_metrics())


def heard_trending() -> Trending:
    """Something trends."""
    trending = Trending(TrendingConfig())
    trending.hear(PartitionTrending(half_life_ms=1, as_of_ms=1))
    return trending


def exposed_metrics() -> list[tuple[str, str, set[str]]]:
    """Name, type and labels of all of ours, from roles of which everything is known."""
    requests = RequestStats()
    requests.count("/a.B/C", "OK", 0.1)
    batcher: Batcher[None, None] = Batcher(lambda *_: [], ThreadPoolExecutor(1), BatchingConfig())
    contexts = ContextCache(0)
    contexts.parts["recent", "hit"] = contexts.keys["real"] = 1
    generating = SimpleNamespace(batcher=batcher, contexts=contexts)
    stats = AnswerStats()
    stats.count(Role.PRIMARY, "OK", 0.1, ["summary_missing"])
    collectors = [
        busy_node(),
        RolloutCollector(rolling_stores()),
        RequestCollector(requests),
        CompressionCollector({}, lambda: 0),
        GenerationCollector(lambda: {Role.PRIMARY: generating}),
        AnswerCollector(stats, lambda: {Role.PRIMARY: ("v1", 1.0)}, {("Recommend", "OK"): 1}),
        CatalogueCollector(followed_catalogue),
        TrendingCollector({}, lambda: {0: 1}),
        SourceCollector(lambda: {Role.PRIMARY: {"personal": 1}}, heard_trending()),
    ]
    return [
        (
            family.name + "_total" * (family.type == "counter"),
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(expose(*collectors))
        if family.name.startswith("gemstream_")
    ]


def test_short_documents_stay_short() -> None:
    for name in ("docs/structure.md", "CONTRIBUTING.md"):
        assert len((ROOT / name).read_text().splitlines()) < 60
