"""What an inference node says of its catalogue."""

from collections import Counter
from types import SimpleNamespace
from typing import cast

from model.catalogue_view import CatalogueView
from model.live_catalogue import CatalogueVersion, LiveCatalogue
from services.catalogue_config import CatalogueConfig
from services.catalogue_follower import CatalogueFollower, Read
from services.metrics.serving import CatalogueCollector
from tests.services.exposed_samples import parse
from tests.services.test_metric_collectors import expose


def followed_catalogue() -> CatalogueFollower:
    """Of a version with a record of long ago, and one item refused."""
    version = CatalogueVersion(
        number=3, next_offset=9, num_items=7, num_sids=5, num_changes=1,
        created_at_ms=1, rebuild_s=0.5, newest_record_ms=1,
    )  # fmt: skip
    live = SimpleNamespace(
        versions=[version], pending={1: None}, counts=Counter(), is_held=True, next_offset=9
    )

    def swap(_: CatalogueView) -> None: ...

    follower = CatalogueFollower(
        cast(LiveCatalogue, live), cast(Read, None), swap, CatalogueConfig()
    )
    follower.rebuild_s.observe(0.5)
    follower.num_unreadable = 2
    return follower


def test_figures_of_the_served_version() -> None:
    samples = parse(expose(CatalogueCollector(followed_catalogue)))
    figures = {
        name[0].removeprefix("gemstream_catalogue_"): value
        for name, value in samples.items()
        if name[0].startswith("gemstream_catalogue_") and len(name) == 1
    }
    assert figures.pop("newest_record_age_seconds") > 1e9
    assert figures == {
        "items": 7,
        "sids": 5,
        "version": 3,
        "offset": 9,
        "pending_items": 1,
        "refused_items": 2,
        "held": 1,
        "following": 0,
        "rebuild_seconds_count": 1,
        "rebuild_seconds_sum": 0.5,
    }
