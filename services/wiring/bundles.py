"""What answers from a bundle: recommender, queue, caches and catalogue, as configured."""

import logging
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from model.bundle import Bundle, load_bundle
from model.bundle_manifest import read_manifest
from model.engine_choice import EngineChoice
from model.live_catalogue import LiveCatalogue
from model.recommender import Recommender
from services.bundle_router import Bundles
from services.catalogue_follower import CatalogueFollower
from services.clients import RoutedStateClient, StateClient
from services.cold_start import ColdStart
from services.generation import Generator
from services.live_popularity import LivePopularity
from services.served_bundle import ServedBundle
from services.settings import Settings
from services.trending import Trending
from services.wiring.parts import bootstrap_of, check_history
from stream.item_records import follow_items

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BundleLoader:
    """As services.bundle_router.BundleLoader."""

    settings: Settings
    users: StateClient | RoutedStateClient
    trending: Trending
    executor: Executor
    """The one thread that runs the networks of all bundles."""

    def configured(self) -> Bundles:
        """The bundles of the settings."""
        candidate = self.settings.inference_node.candidate
        primary = self.load(self.settings.bundle)
        if candidate.bundle is None:
            return Bundles(primary)
        return Bundles(primary, self.load(candidate.bundle), candidate.share)

    def version(self, path: Path) -> str:
        """Of the bundle in a directory."""
        return read_manifest(path)[0]

    def load(self, path: Path) -> ServedBundle:
        """Read a bundle and prepare what answers from it."""
        config = self.settings.inference_node
        bundle = load_bundle(path)
        check_history(bundle, self.settings)
        recommender = self._recommender(bundle)
        cold_start = ColdStart(recommender, self.trending.items, config.little_history)
        return ServedBundle(
            path=path.absolute(),
            generator=Generator(
                recommender, self.users, self.executor, cold_start, config.batching, config.caches
            ),
            catalogue=self._catalogue(bundle, recommender),
            popularity=self._popularity(bundle, recommender),
            follows=self.settings.bootstrap is not None,
            engine_name=recommender.engine_name,
            sources=cold_start.served,
        )

    def _recommender(self, bundle: Bundle) -> Recommender:
        config = self.settings.inference_node
        engine = EngineChoice(
            config.engine, config.beam_width, config.batching.max_batch, config.num_threads
        )
        recommender = Recommender(
            bundle,
            config.beam_width,
            max_per_first_code=config.max_per_first_code,
            exact=config.exact_search,
            engine=engine,
        )
        recommender.warm_up()
        return recommender

    def _popularity(self, bundle: Bundle, recommender: Recommender) -> LivePopularity:
        trained_s = bundle.network.config.repeats.popularity_half_life_s
        counted_s = self.settings.trending.half_life_s
        if counted_s != trained_s:
            log.info(
                "items are as popular as when bundle %s was trained: it knows a half-life of %g s, that of [trending] is %g s",
                bundle.version,
                trained_s,
                counted_s,
            )
        return LivePopularity(self.trending, trained_s, recommender.set_popularity)

    def _catalogue(self, bundle: Bundle, recommender: Recommender) -> CatalogueFollower:
        """Without Kafka it stays the bundle's own. New items have SIDs of the bundle's own tokenizer."""
        settings = self.settings
        live = LiveCatalogue(bundle, settings.catalogue.keep_versions, recommender.prepare)
        recommender.swap(live.view)
        return CatalogueFollower(
            live,
            lambda start_offset: follow_items(
                bootstrap_of(settings), settings.topics, start_offset
            ),
            recommender.swap,
            settings.catalogue,
        )
