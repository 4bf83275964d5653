"""The same histories give the same lists through Kafka, RocksDB and gRPC as offline."""

from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from bench.quality.served import BEAM_WIDTH, K, choose_cuts, compare, history_log, name_of, serve
from model.bundle import load_bundle
from model.training.batches import BatchBuilder
from model.training.evaluate import rank_at
from model.training.histories import build_histories
from model.training.train import train
from tests.model.worlds import SMALL, make_event_log

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_what_is_served_is_what_was_evaluated(tmp_path: Path) -> None:
    log = make_event_log()
    train(log, None, SMALL, tmp_path / "bundle", Progress(disable=True))
    bundle = load_bundle(tmp_path / "bundle")
    histories = build_histories(log)
    cuts = choose_cuts(histories, histories.held_out_cuts, 12)
    builder = BatchBuilder(
        histories, bundle.catalogue, bundle.network.config, bundle.history, 1_000
    )
    ranked = rank_at(bundle.network, bundle.trie, builder, cuts, BEAM_WIDTH)
    offline = [bundle.catalogue.item_ids[best][:K] for best in ranked]
    served = serve(bundle, histories, cuts, "torch_fp32")
    agreement = compare(histories, cuts, offline, served)
    assert agreement.users == 12
    assert agreement.same_list == 1.0
    assert agreement.recall_served == agreement.recall_offline > 0


def test_a_served_history_is_everything_before_the_cut() -> None:
    histories = build_histories(make_event_log())
    cuts = choose_cuts(histories, histories.train_cuts, 5)
    log = history_log(histories, cuts)
    assert np.all(np.diff(log.rows["event_time_ms"]) >= 0)
    assert len(set(log.event_ids)) == len(log.event_ids)
    for cut in cuts:
        of_user = log.rows[log.user_index == log.user_ids.index(name_of(histories.users[cut]))]
        expected = histories.rows[histories.user_start[cut] : cut]
        assert np.array_equal(of_user["item_id"], expected["item_id"])


def test_agreement_counts_order_and_items_apart() -> None:
    histories = build_histories(make_event_log())
    cuts = choose_cuts(histories, histories.train_cuts, 2)
    one, other = np.arange(4), np.array([1, 0, 2, 9])
    agreement = compare(histories, cuts, [one, one], [one, other])
    assert (agreement.same_list, agreement.same_items) == (0.5, 0.875)
