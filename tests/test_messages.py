"""The values that travel."""

from uuid import RFC_4122, UUID

import pytest

from kserve_torch.messages import NOTHING, Reply, RowReply, fresh_id


def test_fresh_ids_are_random_uuids_that_differ() -> None:
    ids = [fresh_id() for _ in range(1000)]
    assert len(set(ids)) == len(ids)
    for text in ids:
        found = UUID(text)
        assert (str(found), found.version, found.variant) == (text, 4, RFC_4122)


def test_nothing_stays_empty() -> None:
    with pytest.raises(TypeError, match="stays empty"):
        NOTHING["a"] = 1  # type: ignore[index]
    assert not NOTHING


def test_the_results_of_a_reply() -> None:
    reply = Reply(model="m", version="1.0", rows=[RowReply(result=1), RowReply(result="b")])
    assert reply.results == [1, "b"]
    assert reply.timing.batch_rows == 0
