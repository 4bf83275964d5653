"""`gemstream bundle`: what a trained bundle is, and which ones are served."""

from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli import served_bundles
from services.cli.options import ConfigOption
from services.cli.output import JsonOption, bytes_text, print_json, print_table
from services.settings import load_settings

app = typer.Typer(
    help="What a trained bundle is, and which ones inference nodes serve.", no_args_is_help=True
)
app.command("load")(served_bundles.load)
app.command("share")(served_bundles.set_share)
app.command("promote")(served_bundles.promote)
app.command("unload")(served_bundles.unload)
app.command("status")(served_bundles.status)


@app.callback()
def group() -> None:
    """What a trained bundle is, and which ones inference nodes serve."""


@app.command()
def show(
    path: Annotated[
        Path | None, typer.Argument(help="Directory of the bundle. Default: the settings'.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a bundle and show its version, network, tokenizer, catalogue and training report."""
    from model.bundle_card import bundle_card

    card = bundle_card(path or load_settings(config, {}).bundle)
    if as_json:
        print_json(card)
        return
    _print_facts(card)
    parameters = card["network"]["parameters"]
    print_table(
        "Network", ("part", "parameters"), [(part, f"{n:,}") for part, n in parameters.items()]
    )
    if card["tokenizer"]["health"]:
        print_health(card["tokenizer"]["health"])
    print_report(card["training_report"])


def _print_facts(card: dict[str, Any]) -> None:
    tokenizer, history = card["tokenizer"]["config"], card["history"]
    sizes = " x ".join(str(size) for size in tokenizer["codebook_sizes"])
    facts = [
        ("directory", card["path"]),
        ("size", f"{bytes_text(sum(card['bytes'].values()))} in {len(card['bytes'])} files, verified"),
        ("history", f"recent {history['recent_len']}, mid-term up to {history['mid_term_len']}, chunks of {history['chunk_len']}"),
        ("layers", f"{card['network']['config']['layer']['width']} wide, {card['network']['config']['num_blocks']} decoder blocks"),
        ("tokenizer", f"{tokenizer['kind']}, {sizes} codes, item vectors {card['item_vectors']['width']} wide"),
        ("catalogue", f"{card['catalogue']['items']:,} items, fingerprint {card['catalogue']['fingerprint']}"),
        ("trained for", _targets(card["training_report"])),
    ]  # fmt: skip
    print_table(f"Bundle {card['version']}", ("what", "value"), facts)


def _targets(report: dict[str, Any]) -> str:
    kinds = report.get("target_kinds")
    if kinds is None:  # before there was a choice
        return "all interactions"
    return ", ".join(kinds) or "all interactions but dislikes"


def print_report(report: dict[str, Any]) -> None:
    """Stages and held-out recall of a training report."""
    print_table(
        "Stages",
        ("stage", "steps", "ended by", "train loss", "validation loss", "indexer loss", "top-k keeps"),
        [
            (
                stage["name"], stage["steps"], stage["ended"], _number(stage["train_loss"]),
                _number(stage["validation_loss"]), _number(stage["indexer_loss"]),
                _percent(stage["kept_attention_mass"]),
            )
            for stage in report.get("stages", [])
        ],
    )  # fmt: skip
    kept = [stage for stage in report.get("stages", []) if stage.get("kept_by_top_k")]
    if kept:
        print_table(
            "Attention mass that the indexers' best k interactions keep (whole: no segment is longer)",
            ("stage", *(top_ks := sorted(kept[0]["kept_by_top_k"], key=int))),
            [
                (stage["name"], *(_kept(stage["kept_by_top_k"][k]) for k in top_ks))
                for stage in kept
            ],
        )
    if recall := report.get("recall_at_20"):
        print_table(
            f"Recall@20 of {_baskets(recall)}",
            ("ranker", "recall"),
            [(name, _number(recall[name])) for name in ("network", "popularity")],
        )


def _baskets(recall: dict[str, Any]) -> str:
    asked = recall.get("asked_baskets", recall["baskets"])
    if recall["baskets"] == asked:
        return f"{asked} held-out baskets"
    return f"{recall['baskets']} of {asked} held-out baskets: more would have taken too long"


def print_health(health: dict[str, Any]) -> None:
    """A tokenizer's health, level by level."""
    levels = list(enumerate(health["levels"], 1))
    print_table(
        f"Codes: {health['num_items']:,} items, {health['num_sids']:,} SIDs, "
        f"{_percent(health['unique_ratio'])} alone, largest bucket {health['largest_bucket']}",
        ("level", "codes", "entropy, bits", "of best", "dead", "largest code"),
        [
            (
                number, level["codebook_size"], _number(level["entropy_bits"]),
                _percent(level["entropy_share"]), level["dead_codes"], level["largest_code"],
            )
            for number, level in levels
        ],
    )  # fmt: skip
    print_table(
        "Items that share all codes up to a level, and the variance those codes leave unexplained",
        ("up to level", "buckets", "mean", "p99", "largest", "unexplained"),
        [
            (
                number, level["num_buckets"], f"{level['mean_bucket']:.1f}",
                f"{level['p99_bucket']:.0f}", level["largest_bucket"], _percent(level["unexplained"]),
            )
            for number, level in levels
        ],
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _kept(share: float | None) -> str:
    """None: k is at least the length of every mid-term segment."""
    return "whole" if share is None else _percent(share)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
