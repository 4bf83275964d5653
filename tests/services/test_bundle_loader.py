"""What a node prepares of a bundle before requests come."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest import mock

from rich.progress import Progress

from model.engine_config import EngineConfig
from model.item_placement import Removal
from model.training.train import train
from services.clients import StateClient
from services.settings import InferenceNodeConfig, Settings
from services.trending import Trending
from services.wiring.bundles import BundleLoader
from tests.model.worlds import SCORING, make_event_log


def test_builds_of_a_loaded_bundle_prepare_its_recommender(tmp_path: Path) -> None:
    config = replace(SCORING, max_steps=3)
    train(make_event_log(), None, config, tmp_path / "bundle", Progress(disable=True))
    engine = EngineConfig(name="torch", precision="fp32")
    settings = Settings(
        bundle=tmp_path / "bundle",
        history=config.history,
        inference_node=InferenceNodeConfig(num_threads=1, engine=engine),
    )
    with ThreadPoolExecutor(1) as executor, mock.patch("model.searched.ItemScorer") as scorer:
        scorer.side_effect = lambda _, catalogue, *__: mock.Mock(
            catalogue=catalogue, score=lambda _: None
        )
        loader = BundleLoader(
            settings, cast(StateClient, None), Trending(settings.trending), executor
        )
        live = loader.load(settings.bundle).catalogue.live
        assert scorer.call_count == 1
        live.hear([(1, Removal())], 1)
        batch = live.take()
        assert batch is not None
        view = live.build(batch).view
    assert scorer.call_count == 2
    assert scorer.call_args.args[1] is view.catalogue
