"""Takes the records of quarantined users out of a poll: what their state cannot take waits as dead letters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np

from stream.decode import Decoded, Record, Rejected


def set_aside(
    decoded: Decoded, records: Sequence[Record], quarantined: Mapping[str, str]
) -> Decoded:
    """`decoded` of `records`, without those of the users in `quarantined` (and why they are).

    A user of whom everything is deleted in this poll is left in it: that is the way out.
    """
    arrivals = decoded.arrivals
    deleted = {each.user_id for each in arrivals.deletions if not each.item_id}
    reasons = {
        user_id.encode(): f"user {user_id!r} is quarantined: {why}"
        for user_id, why in quarantined.items()
        if user_id not in deleted
    }
    waits = np.fromiter((user in reasons for user in arrivals.user_keys), np.bool_)
    reason_at = {
        offset: reasons[user]
        for user, offset in zip(
            compress(arrivals.user_keys, waits), arrivals.offsets[waits].tolist(), strict=True
        )
    }
    for each in arrivals.deletions:
        if (reason := reasons.get(each.user_id.encode())) is not None:
            reason_at[each.offset] = reason
    if not reason_at:
        return decoded
    kept = replace(
        arrivals,
        user_keys=list(compress(arrivals.user_keys, ~waits)),
        offsets=arrivals.offsets[~waits],
        rows=arrivals.rows[~waits],
        deletions=[each for each in arrivals.deletions if each.offset not in reason_at],
    )
    letters = [
        Rejected(record, reason_at[record.offset])
        for record in records
        if record.offset in reason_at
    ]
    return replace(decoded, arrivals=kept, quarantined=letters)
