"""Results for people, at most 100 columns wide."""

from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 100
_NOTHING = "-"
_SHORT = {
    "recall_at_10": "R@10",
    "recall_at_20": "R@20",
    "recall_at_50": "R@50",
    "ndcg_at_10": "N@10",
    "new_recall_at_50": "new R@50",
}


def show(console: Console, name: str, figures: dict[str, Any]) -> None:
    """Metrics, differences to the first ranker, and R@20 by history length and by reach."""
    some = next(iter(figures.values()))
    seeds = ", ".join(map(str, some["seeds"]))
    title = f"{name}: {some['baskets']:,} cuts of {some['users']:,} users, seeds {seeds}; 95 %"
    _table(console, title, [*_SHORT.values(), "min"], {n: _metrics(f) for n, f in figures.items()})
    compared = {n: f["difference_to"] for n, f in figures.items() if "difference_to" in f}
    if compared:
        (first,) = next(iter(compared.values()))
        rows = {n: [_signed(f[first][metric]) for metric in _SHORT] for n, f in compared.items()}
        _table(console, f"less {first}", list(_SHORT.values()), rows)
    for what, key in (("history length", "length"), ("where the item was", "reach")):
        columns = some[f"recall_at_20_by_{key}"]
        rows = {
            n: [f"{value:.3f}" for value in f[f"recall_at_20_by_{key}"].values()]
            for n, f in figures.items()
        }
        _table(console, f"R@20 by {what}", list(columns), rows)
    for stratum in some.get("by_stratum", {}):
        strata = {n: f["by_stratum"][stratum] for n, f in figures.items()}
        first = next(iter(strata.values()))
        title = f"{stratum}: {first['targets']:.0f} targets, {first['new_targets']:.0f} of them new"
        columns = ["R@10", "R@20", "R@50", "new R@20", "new R@50"]
        keys = [f"{column.replace('R@', 'recall_at_').replace(' ', '_')}" for column in columns]
        _table(
            console,
            title,
            columns,
            {n: [f"{f[key]:.3f}" for key in keys] for n, f in strata.items()},
        )


def _table(console: Console, title: str, columns: list[str], rows: dict[str, list[str]]) -> None:
    table = Table("ranker", title=title, title_justify="left", width=WIDTH)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console.print(table)


def _metrics(figures: dict[str, Any]) -> list[str]:
    cells = []
    for metric in _SHORT:
        mean, (low, high) = figures[metric], figures["interval"][metric]
        cells.append(_NOTHING if mean is None else f"{_short(mean)} {_half(low, high)}")
    return [*cells, f"{figures['minutes']:.1f}"]


def _signed(difference: list[float | None]) -> str:
    mean, low, high = difference
    if mean is None or low is None or high is None:
        return _NOTHING
    return f"{'-' if mean < 0 else '+'}{_short(abs(mean))} {_half(low, high)}"


def _half(low: float, high: float) -> str:
    return f"±{(high - low) / 2:.3f}".replace("0.", ".")


def _short(value: float) -> str:
    """Four digits without the leading zero."""
    return f"{value:.4f}".removeprefix("0")
