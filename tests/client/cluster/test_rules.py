"""The rules for preference order, addresses and circuit breakers, without connections."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.client import Client, InvalidRequest, OriginState, Unreachable
from ingester.client.cluster import merging
from ingester.client.cluster.daemons import (
    FIRST_S,
    MOST_S,
    Addresses,
    Health,
    addresses_of,
    names_several,
    ranked,
    resolved,
)

MEMBERS = st.lists(st.text("abcdef0123:.", min_size=1, max_size=12), min_size=1, unique=True)
KEYS = st.tuples(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))


@given(KEYS, MEMBERS, st.randoms())
def test_only_keys_of_an_added_or_removed_daemon_move(key, members, random):  # type: ignore[no-untyped-def]
    order = ranked(key, members)
    assert sorted(order) == sorted(members)
    shuffled = [*members, members[0]]
    random.shuffle(shuffled)
    assert ranked(key, shuffled) == order, "everybody ranks alike"
    gone = random.choice(members)
    assert ranked(key, [each for each in members if each != gone]) == [
        each for each in order if each != gone
    ], "the others keep their order, so that only the first choice of some is another"


def test_keys_are_spread_evenly_and_their_parts_stay_distinct() -> None:
    members = [f"grpc://10.0.0.{n}:8082" for n in range(5)]
    first = Counter(ranked(("ns", "t", f"client-{n}"), members)[0] for n in range(5000))
    assert all(900 < first[member] < 1100 for member in members), first
    apart = [ranked(("ab", "c"), members), ranked(("a", "bc"), members), ranked(("abc",), members)]
    assert len({tuple(order) for order in apart}) > 1


def test_kinds_of_endpoints_are_distinguished() -> None:
    assert addresses_of(["a:1", "grpc+tls://b:2", "a:1"], "grpc") == Addresses(
        ("grpc://a:1", "grpc+tls://b:2")
    )
    assert str(addresses_of(" a:1 , b:2", "grpc")) == "grpc://a:1,grpc://b:2"
    named = addresses_of("dns+grpc+tls://ingester.default:8082", "grpc")
    assert (named.name, named.host) == ("grpc+tls://ingester.default:8082", "ingester.default")
    assert str(named) == "dns+grpc+tls://ingester.default:8082"
    assert not any(map(names_several, ("grpc://a:1", ["a:1"], ("a:1",), None, 5)))
    with Client(["a:1"]) as one, Client("a:1") as same:
        assert one.endpoint == same.endpoint == "grpc://a:1"
    assert names_several(["dns+grpc://a:1"])
    assert addresses_of(["dns+grpc://a:1"], "grpc").name == "grpc://a:1"


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ([], "names no daemon"),
        ("a:1,", "names no daemon in one of its parts"),
        (["a:1", 5], "expected an address"),
        ("a:1,http://b:8080", "not the HTTP port"),
        ("dns+grpc://a:1,b:2", "a DNS name must be the only endpoint"),
        (["dns+grpc://a:1", "b:2"], "a DNS name must be the only endpoint"),
        ("dns+grpc://a", "names no port"),
    ],
)
def test_an_endpoint_without_daemons_is_refused(endpoint: object, says: str) -> None:
    assert names_several(endpoint)
    with pytest.raises(InvalidRequest, match=says):
        addresses_of(endpoint, "grpc")


def test_a_dns_name_has_one_daemon_per_record() -> None:
    found = resolved("grpc://pods:8082", lambda *_: ["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"])
    assert found == ["grpc://10.0.0.1:8082", "grpc://10.0.0.2:8082", "grpc://[::1]:8082"]

    def unknown(*_: object) -> list[str]:
        raise OSError("Name or service not known")

    with pytest.raises(Unreachable, match="dns\\+grpc://pods:8082: the name cannot be looked up"):
        resolved("grpc://pods:8082", unknown)
    with pytest.raises(Unreachable, match="has no address"):
        resolved("grpc://pods:8082", lambda *_: [])


def test_a_circuit_opens_for_longer_each_time_and_closes_when_the_daemon_answers() -> None:
    health, error, now = Health(), Unreachable("gone"), 0.0
    waits = []
    for _ in range(10):
        health.failed("b", error, now, 0.0)
        # A second failure of a call already in progress does not lengthen the pause.
        health.failed("b", error, now, 0.0)
        at = health.next_due()
        assert at is not None
        assert not health.due(at - 0.001)
        assert health.due(at) == ["b"]
        waits.append(at - now)
        now = at
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits[-1] == MOST_S
    assert health.order(["b", "a", "c"]) == ["a", "c", "b"]
    health.failed("a", error, now + 1, 1.0)
    assert health.order(["a", "b", "c"]) == ["c", "b", "a"], "the soonest of them first"
    health.answered("b")
    assert health.usable("b")
    assert health.error("a") is error


def test_progress_contradicted_by_a_daemon_is_not_claimed() -> None:
    here = OriginState("o", memory_sequence=9, open=True, marks=(3, 9), there=(True, False))
    there = OriginState(
        "o", memory_sequence=7, durable_sequence=7, table_newest=7, marks=(7,), there=(True,)
    )
    (both,) = merging.origins([[here], [there], []])
    assert both == OriginState(
        "o",
        memory_sequence=9,
        durable_sequence=None,
        open=True,
        table_newest=7,
        marks=(3, 7, 9),
        there=(True, True, False),
    )
    (after,) = merging.origins([[OriginState("o", memory_sequence=9, durable_sequence=8)], [there]])
    assert after.durable_sequence == 7


def test_an_origin_is_in_files_as_far_as_every_daemon_says() -> None:
    here = OriginState("o", memory_sequence=9, durable_sequence=9, files_sequence=4)
    older = OriginState("o", memory_sequence=7, durable_sequence=7)
    (both,) = merging.origins([[here], [older]])
    assert (both.durable_sequence, both.files_sequence) == (7, 4)
    nothing = OriginState("o", memory_sequence=9, durable_sequence=9, files_sequence=None)
    (both,) = merging.origins([[nothing], [older]])
    assert (both.durable_sequence, both.files_sequence) == (7, None)
