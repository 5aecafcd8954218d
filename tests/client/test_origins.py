"""Named and generated origins, and their progress."""

import pytest

from ingester.client import Client, OriginClash, Unavailable
from ingester.client.delivery import OriginLease
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import SmallDaemon, unavailable


def test_a_writer_yields_to_a_newer_stream_of_its_origin(
    daemon: SmallDaemon, client: Client
) -> None:
    def refuse(n: int) -> None:
        raise unavailable("superseded")

    daemon.before = refuse
    with pytest.raises(Unavailable) as refused:
        client.write("ns", "t", batch(1), origin="o", first_sequence=1)
    assert refused.value.code == "superseded"
    assert daemon.seen == 1


def test_a_named_origin_resumes_at_the_daemons_position(
    daemon: SmallDaemon, client: Client
) -> None:
    client.write("ns", "t", [batch(1), batch(2)], origin="o")
    client.write("ns", "t", [batch(3)], origin="o")
    assert [m and m["sequence"] for m in daemon.metadata] == [1, 2, 3]
    assert values(daemon) == [1, 2, 3]


def test_repeating_a_given_sequence_adds_nothing(daemon: SmallDaemon, client: Client) -> None:
    client.write("ns", "t", [batch(1), batch(2)], origin="o", first_sequence=1)
    again = client.write("ns", "t", [batch(1), batch(2), batch(3)], origin="o", first_sequence=1)
    assert again.duplicates == 2
    assert values(daemon) == [1, 2, 3]


def test_a_batch_mistaken_for_anothers_is_reported(daemon: SmallDaemon, client: Client) -> None:
    writer = client.writer("ns", "t", SCHEMA, origin="o")
    daemon.sequences["ns", "t", "o"] = 5
    daemon.rows["ns", "t"] = [batch(0)]
    with pytest.raises(OriginClash, match="sequence 1"):
        writer.write(batch(1)).result(10)


def test_a_generated_origin_is_reused_after_its_writer_closed(
    daemon: SmallDaemon, client: Client
) -> None:
    for n in range(5):
        client.write("ns", "t", batch(n))
    assert len({command["origin"] for command in daemon.commands}) == 1
    with client.writer("ns", "t", SCHEMA) as one, client.writer("ns", "t", SCHEMA) as two:
        assert one.origin != two.origin
    assert values(daemon) == list(range(5))


def test_with_numbered_rows_a_sequence_is_the_number_of_the_last_row() -> None:
    lease = OriginLease("o", 101, exclusive=False, numbers_rows=True)
    assert [lease.take(rows) for rows in (1, 10, 5)] == [101, 111, 116]
    lease = OriginLease("o", 101, exclusive=False)
    assert [lease.take(rows) for rows in (1, 10, 5)] == [101, 102, 103]
