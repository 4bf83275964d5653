"""Records of quarantined users become letters, all others stay, and none is lost or doubled."""

from aiokafka import ConsumerRecord
from hypothesis import given, strategies as st

from protos.interaction_pb2 import INTERACTION_KIND_FORGET, Interaction
from stream.decode import Decoder, DecoderConfig
from stream.set_aside import set_aside
from tests.state.builders import START_MS

DECODER = Decoder(DecoderConfig(), 1)
WHY = {"ann": "chunk 3: damaged", "bob": "head: damaged"}


def record(offset: int, user: str, what: str) -> ConsumerRecord:
    message = Interaction(
        event_id=f"e{offset}", user_id=user, item_id=1 + offset, event_time_ms=START_MS + offset
    )
    if what == "forget":
        message.kinds.append(INTERACTION_KIND_FORGET)
    values = {"delete": None, "rubbish": b"rubbish"}
    value = values.get(what, message.SerializeToString())
    return ConsumerRecord(
        "interactions", 0, offset, START_MS, 0, user.encode(), value, None, 5, 5, ()
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ann", "bob", "eve", "fay"]),
            st.sampled_from(["event"] * 5 + ["forget", "delete", "rubbish"]),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_every_record_goes_one_way(log: list[tuple[str, str]]) -> None:
    records = [record(offset, user, what) for offset, (user, what) in enumerate(log)]
    whole = DECODER.decode(0, records)
    decoded = set_aside(whole, records, WHY)
    deleted = {user for user, what in log if what == "delete"}
    waiting = [
        offset
        for offset, (user, what) in enumerate(log)
        if user in WHY and user not in deleted and what != "rubbish"
    ]
    assert [letter.record.offset for letter in decoded.quarantined] == waiting
    for letter in decoded.quarantined:
        user = log[letter.record.offset][0]
        assert letter.record is records[letter.record.offset]
        assert letter.reason == f"user {user!r} is quarantined: {WHY[user]}"
    arrivals = decoded.arrivals
    kept = [*arrivals.offsets.tolist(), *(each.offset for each in arrivals.deletions)]
    rejected = [letter.record.offset for letter in decoded.rejected]
    assert sorted([*kept, *rejected, *waiting]) == list(range(len(log)))
    assert arrivals.position == whole.arrivals.position
    users = [key.decode() for key in arrivals.user_keys]
    assert users == [log[offset][0] for offset in arrivals.offsets.tolist()]
    assert (arrivals.rows["item_id"] == arrivals.offsets + 1).all()
