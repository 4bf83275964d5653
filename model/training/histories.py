"""All users' histories in one array, and where they can be cut into a context and what follows it.

A basket is a run of a user's interactions with one event time. A cut is the first interaction of a basket that holds a
target: the context is everything of the user before it. Last baskets are held out: everybody's, or those of some users, drawn
at random.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from model.errors import TrainingError
from state.event_log import EventLog
from state.interaction import Rows, are_dislikes, have_kinds

Index = npt.NDArray[np.int64]

FEWEST_SHARE = 4
"""An even batch of long histories has at least one over this of the contexts that batches have on average."""


@dataclass(frozen=True)
class Histories:
    """Interactions in (user, event time) order. Positions index `rows`."""

    rows: Rows
    users: Index
    """Per interaction, its user."""
    user_start: Index
    """Per interaction, the position of its user's first one."""
    basket_end: Index
    """Per interaction, the position behind its basket."""
    basket_size: Index
    are_targets: npt.NDArray[np.bool_]
    """Per interaction, whether to recommend its item there would have been right."""
    num_targets: Index
    """Per interaction, targets of its basket."""
    train_cuts: Index
    held_out_cuts: Index
    """Starts of the last baskets with a target that are held out; their users have another one."""
    train_end: Index
    """Per interaction, the position behind its user's last trainable interaction."""

    def by_length(self, cuts: Index) -> Index:
        """Cuts in order of the history before them: batches of neighbours hold little padding."""
        return cuts[np.argsort(cuts - self.user_start[cuts], kind="stable")]

    def targets_at(self, cut: int) -> npt.NDArray[np.uint64]:
        """Distinct items of the targets in the basket at a cut, ascending."""
        basket = slice(cut, int(self.basket_end[cut]))
        return np.unique(self.rows["item_id"][basket][self.are_targets[basket]])

    @cached_property
    def newest_train_cuts(self) -> Index:
        """Every user's last training cut."""
        users = self.users[self.train_cuts]
        return self.train_cuts[np.append(users[1:] != users[:-1], True)]


def targets_among(rows: Rows, target_kinds: Collection[str]) -> npt.NDArray[np.bool_]:
    """Mask of the interactions of `target_kinds`, or of all where there are none; dislikes never are targets."""
    wanted = ~are_dislikes(rows)
    return wanted & have_kinds(rows, target_kinds) if target_kinds else wanted


def build_histories(
    events: EventLog,
    num_held_out: int | None = None,
    seed: int = 0,
    target_kinds: Collection[str] = (),
) -> Histories:
    """Sort by user, find baskets and hold out the last ones: of `num_held_out` users, or of all.

    Targets are those of `targets_among`. Raises TrainingError when no user has two baskets to train on besides the held-out one, or none that is trained on holds a target.
    """
    order = np.argsort(events.user_index, kind="stable")
    rows, users = events.rows[order], events.user_index[order]
    times = rows["event_time_ms"]
    new_user = np.append(True, users[1:] != users[:-1])
    new_basket = new_user | np.append(True, times[1:] != times[:-1])
    user_starts, basket_starts = np.flatnonzero(new_user), np.flatnonzero(new_basket)
    user_ends = np.append(user_starts[1:], len(rows))
    lengths = np.diff(np.append(basket_starts, len(rows)))
    are_targets = targets_among(rows, target_kinds)
    num_before = np.append(0, np.cumsum(are_targets))
    num_targets = num_before[basket_starts + lengths] - num_before[basket_starts]
    asked = basket_starts[num_targets > 0]
    last_asked = np.append(asked, -1)[np.searchsorted(asked, user_ends) - 1]
    drawn = _draw(last_asked > user_starts, num_held_out, seed)
    train_end = np.repeat(np.where(drawn, last_asked, user_ends), user_ends - user_starts)
    cuts = asked[~new_user[asked]]
    histories = Histories(
        rows=rows,
        users=users,
        user_start=np.repeat(user_starts, user_ends - user_starts),
        basket_end=np.repeat(basket_starts + lengths, lengths),
        basket_size=np.repeat(lengths, lengths),
        are_targets=are_targets,
        num_targets=np.repeat(num_targets, lengths),
        train_cuts=cuts[cuts < train_end[cuts]],
        held_out_cuts=last_asked[drawn],
        train_end=train_end,
    )
    if not len(histories.train_cuts):
        raise TrainingError(
            f"{len(events.user_ids)} users with {len(rows)} interactions, {num_before[-1]} of them targets: nobody has three "
            "baskets (two to train on, one held out); give a longer event log, or other train.target_kinds"
        )
    return histories


def _draw(possible: npt.NDArray[np.bool_], most: int | None, seed: int) -> npt.NDArray[np.bool_]:
    """At most `most` of those that are possible."""
    if most is None or possible.sum() <= most:
        return possible
    drawn = np.zeros(len(possible), np.bool_)
    chosen = np.random.default_rng(seed).permutation(np.flatnonzero(possible))[:most]
    drawn[chosen] = True
    return drawn


def mixed_by_length(histories: Histories, cuts: Index, batch_size: int, seed: int) -> list[Index]:
    """Batches of similar history length in random order: the first ones speak for all."""
    cuts = histories.by_length(cuts)
    batches = [cuts[i : i + batch_size] for i in range(0, len(cuts), batch_size)]
    np.random.default_rng(seed).shuffle(batches)
    return batches


def draw_cuts(
    histories: Histories,
    num_cuts: int,
    batch_size: int,
    random: np.random.Generator,
    favoured: Sequence[tuple[Index, float]] = (),
    even_len: int | None = None,
) -> list[Index]:
    """Random training cuts in batches of similar history length, so that little of a batch is padding.

    Each of `favoured` are cuts and the share of all contexts that is drawn from them; the rest is drawn from all cuts. With `even_len`,
    batches hold about as many interactions each, of the newest `even_len` of every context, instead of as many contexts.
    """
    cuts = random.choice(histories.train_cuts, num_cuts)
    kinds, begin = random.random(num_cuts) if favoured else np.ones(num_cuts), 0.0
    for some, share in favoured:
        drawn = (kinds >= begin) & (kinds < begin + share)
        cuts[drawn] = random.choice(some, int(drawn.sum()))
        begin += share
    cuts = histories.by_length(cuts)
    ends = np.arange(batch_size, num_cuts, batch_size)
    if even_len is not None:
        lengths = np.minimum(cuts - histories.user_start[cuts], even_len)
        ends = _even_ends(lengths, len(ends) + 1, max(1, batch_size // FEWEST_SHARE))
    batches = np.split(cuts, ends)
    random.shuffle(batches)
    return batches


def _even_ends(lengths: Index, num_parts: int, fewest: int) -> Index:
    """Where all parts but the last end, so that their lengths sum to about as much; none has less than `fewest` members."""
    sums = np.cumsum(lengths)
    nth = np.arange(1, num_parts)
    ends = np.searchsorted(sums, sums[-1] * nth / num_parts)
    ends = np.maximum.accumulate(np.maximum(ends, fewest) - fewest * nth) + fewest * nth
    return np.minimum(ends, len(lengths) - fewest * (num_parts - nth))
