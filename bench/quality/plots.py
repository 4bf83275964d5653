"""The picture of a data set's figures: rankers side by side, by history length and by reach of the target."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PANELS = {
    "recall_at_20_by_length": "recall@20 by history length",
    "recall_at_20_by_reach": "share of targets in the first 20, by reach",
}
_WIDTH = 0.8


def draw(figures: Mapping[str, Mapping[str, Any]], name: str, path: Path) -> None:
    """Bars of every ranker in `figures` as SVG. Raises OSError when `path` cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, (panel, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        bars = {ranker: of_ranker.get(panel, {}) for ranker, of_ranker in figures.items()}
        groups = list(dict.fromkeys(group for of_ranker in bars.values() for group in of_ranker))
        width = _WIDTH / max(len(bars), 1)
        for place, (ranker, of_ranker) in enumerate(bars.items()):
            lefts = [x - _WIDTH / 2 + place * width for x in range(len(groups))]
            heights = [of_ranker.get(group, 0.0) for group in groups]
            axes.bar(lefts, heights, width, align="edge", label=ranker)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
