"""New items in a trained bundle, content from a file, and the bundle's card."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress
from typer.testing import CliRunner

from model.bundle import Bundle, load_bundle
from model.bundle_card import bundle_card
from model.catalogue import CatalogueItem
from model.errors import BundleError, CatalogueError, ModelConfigError
from model.item_knowledge import NewItem
from model.new_items import assign_sids, with_new_items
from model.query import Query
from model.recommender import Recommender
from model.tokenizer.item_vectors import ItemVectorConfig
from model.tokenizer.tokenizer import RqVaeConfig, TokenizerConfig
from model.training.train import train
from services.cli.main import app
from state.event_log import EventLog
from tests.model.worlds import SMALL

NEW = CatalogueItem(1_000_001, tag=1, title="new")


def taste(bundle: Bundle, number: int) -> list[int]:
    """The items of one taste, of fifteen each, that are in the catalogue."""
    ids = [int(item_id) for item_id in bundle.catalogue.item_ids]
    return [item_id for item_id in ids if (item_id - 1) // 15 == number]


def test_company_gives_a_new_item_the_codes_of_its_company(bundle: Bundle) -> None:
    found = assign_sids(bundle, [NewItem(item=NEW, seen_with=taste(bundle, 2))])
    first_codes = [
        bundle.catalogue.sid_of_item(int(index))[0]
        for index in bundle.catalogue.find(np.array(taste(bundle, 2), np.uint64))
    ]
    assert found.shape == (1, 3)
    assert found[0, 0] in first_codes


def test_new_items_can_be_recommended_and_nothing_else_changes(bundle: Bundle) -> None:
    larger = with_new_items(bundle, [NewItem(item=NEW, seen_with=taste(bundle, 1))])
    assert larger.version == bundle.version
    assert len(larger.catalogue) == len(bundle.catalogue) + 1
    (index,) = larger.catalogue.find(np.array([NEW.item_id], np.uint64))
    assert larger.catalogue.item(int(index)) == NEW
    for old, item in enumerate(bundle.catalogue):
        (place,) = larger.catalogue.find(np.array([item.item_id], np.uint64))
        assert larger.catalogue.sid_of_item(int(place)) == bundle.catalogue.sid_of_item(old)
        assert larger.item_vectors.vectors_RV[place].equal(bundle.item_vectors.vectors_RV[old])
    everything = Recommender(larger).popular(Query(k=len(larger.catalogue)))
    assert NEW.item_id in {one.item.item_id for one in everything}


def test_items_that_are_known_or_of_which_nothing_is_known_are_refused(bundle: Bundle) -> None:
    with pytest.raises(CatalogueError, match="new item 1000001: nothing is known"):
        assign_sids(bundle, [NewItem(item=NEW, seen_with=[10**9])])
    with pytest.raises(CatalogueError, match="twice"):
        with_new_items(bundle, [NewItem(item=bundle.catalogue.item(0), seen_with=[1])])
    with pytest.raises(ModelConfigError, match="have no .'content'"):
        assign_sids(bundle, [NewItem(item=NEW, content=np.ones(3, np.float32))])
    assert with_new_items(bundle, []) is bundle


def test_content_and_an_rq_vae_train_and_load(event_log: EventLog, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    ids = np.arange(1, 50)  # not all: some items lack content
    tastes = np.eye(4, dtype=np.float32)[(ids - 1) // 15]
    vectors = tastes + 0.1 * random.standard_normal((len(ids), 4)).astype(np.float32)
    np.savez(tmp_path / "content.npz", item_ids=ids, vectors=vectors)
    config = replace(
        SMALL,
        max_steps=3,
        items=ItemVectorConfig(
            cooccurrence_width=8, window=3, vectors=tmp_path / "content.npz", text_weight=0.5
        ),
        tokenizer=TokenizerConfig(
            kind="rq_vae",
            codebook_sizes=(6, 4, 2),
            max_bucket=8,
            rq_vae=RqVaeConfig(hidden_widths=(8,), latent_width=4, num_steps=50),
        ),
    )
    items = tmp_path / "items.csv"
    items.write_text("item_id,title\n" + "".join(f"{n},item {n}\n" for n in ids))
    train(event_log, items, config, tmp_path / "bundle", Progress(disable=True))
    bundle = load_bundle(tmp_path / "bundle")
    assert [block.name for block in bundle.item_vectors.blocks] == [
        "cooccurrence",
        "content",
        "text",
    ]
    assert (bundle.catalogue.columns["sids"] < [6, 4, 2]).all()
    found = assign_sids(bundle, [NewItem(item=NEW, content=np.eye(4, dtype=np.float32)[1])])
    assert (found < [6, 4, 2]).all()
    health = bundle_card(tmp_path / "bundle")["tokenizer"]["health"]
    assert [level["codebook_size"] for level in health["levels"]] == [6, 4, 2]


def test_a_card_tells_what_is_inside(bundle: Bundle, bundle_path: Path) -> None:
    result = CliRunner().invoke(app, ["bundle", "show", str(bundle_path), "--json"])
    assert result.exit_code == 0, result.output
    card = json.loads(result.stdout)
    assert card["version"] == bundle.version
    assert card["catalogue"] == {
        "items": len(bundle.catalogue),
        "fingerprint": bundle.catalogue.fingerprint,
    }
    weights = bundle.network.state_dict().values()
    assert card["network"]["parameters"]["all"] == sum(weight.numel() for weight in weights)
    assert card["tokenizer"]["config"]["codebook_sizes"] == [6, 6, 6]
    assert card["tokenizer"]["health"]["num_items"] == len(bundle.catalogue)
    assert card["item_vectors"]["width"] == 8
    assert len(card["training_report"]["stages"]) == 4
    assert card["training_report"]["target_kinds"] == []


def test_a_card_for_people_and_of_a_damaged_bundle(bundle_path: Path, tmp_path: Path) -> None:
    settings = tmp_path / "gemstream.toml"
    settings.write_text('bundle = "copy"')
    copy = Path(shutil.copytree(bundle_path, tmp_path / "copy"))
    shown = CliRunner().invoke(app, ["bundle", "show", "--config", str(settings)])
    assert shown.exit_code == 0, shown.output
    for word in (
        "fingerprint",
        "unexplained",
        "residual_kmeans",
        "but dislikes",
        "popularity",
        "decoder",
    ):
        assert word in shown.stdout
    (copy / "titles.json").write_text("[]")
    broken = CliRunner().invoke(app, ["bundle", "show", str(copy)])
    assert isinstance(broken.exception, BundleError)  # services/cli/main.py prints its text
