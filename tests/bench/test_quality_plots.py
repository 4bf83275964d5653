"""A set's picture shows every ranker and bucket."""

from pathlib import Path

from bench.quality.plots import draw


def test_every_ranker_and_bucket_is_drawn(tmp_path: Path) -> None:
    figures = {
        "ours": {
            "recall_at_20_by_length": {"0-200": 0.2, "200+": 0.3},
            "recall_at_20_by_reach": {"recent": 0.6, "new": 0.1},
        },
        "counts": {"recall_at_20_by_length": {"0-200": 0.1}},
    }
    path = tmp_path / "plots" / "groceries.svg"
    draw(figures, "groceries", path)
    text = path.read_text()
    for drawn in ("ours", "counts", "0-200", "200+", "recent", "new", "groceries"):
        assert f"<!-- {drawn} -->" in text
