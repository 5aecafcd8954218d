"""No push begins whose record could not be read again: without it, nothing can be rolled back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from ingester.pushes.record import PushPlan, decode, encode, new_push
from ingester.pushes.regions.tables import replay_text
from ingester.pushes.spark import push
from ingester.pushes.spark.result import PushRefused
from ingester.pushes.store import PushStore
from persist.store import ObjectStore
from tests.pushes.world import BEGAN, ONCE, in_order

SURROGATE = "day\udc80"


def refused(**arguments: Any) -> str:
    """Return why a push with these arguments is refused, before its frame is looked at."""
    call = {"df": None, "namespace": "shop", "table": "visits", **arguments}
    with pytest.raises(PushRefused) as told:
        push(cast(Any, call.pop("df")), **call)
    return str(told.value)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"n": 5}, "params: 'n': 5 is of type int, not text: write '5'"),
        ({"n": None}, "params: 'n': None is of type NoneType, not text: write 'None'"),
        ({"n": True}, "params: 'n': True is of type bool, not text: write 'True'"),
        ({"n": ["a"]}, "params: 'n': ['a'] is of type list, not text: write \"['a']\""),
        ({"n": b"x"}, "params: 'n': b'x' is of type bytes, not text: write \"b'x'\""),
        ({5: "n"}, "params: the name 5 is of type int, not text: write '5'"),
        ({"n": SURROGATE}, r"params: 'n': 'day\udc80' is not valid Unicode"),
        ({SURROGATE: "n"}, r"params: the name 'day\udc80' is not valid Unicode"),
        (5, "params: 5 is not a mapping of names to texts"),
        ([("n", "5")], "params: [('n', '5')] is not a mapping of names to texts"),
    ],
)
def test_parameters_that_could_not_be_read_again_are_refused(
    params: Any, says: str, store: ObjectStore
) -> None:
    assert refused(params=params) == says
    with pytest.raises(ValueError, match="params"):
        new_push("p1", ("shop", "visits"), in_order("a"), params, BEGAN)
    assert list(store.list("")) == []


@pytest.mark.parametrize("text", ["", "0", "null", "ü 日本 \x00 \n", "x" * 100_000])
def test_any_text_is_kept_as_a_parameter(text: str, store: ObjectStore) -> None:
    record = new_push("p1", ("shop", "visits"), in_order("a"), {text: text}, BEGAN)
    PushStore(store, ONCE).begin(record, "c1", BEGAN)
    assert PushStore(store, ONCE).newest("p1").record.params == {text: text}


@pytest.mark.parametrize(
    "plan",
    [
        PushPlan(replay_since=cast(Any, 3)),
        PushPlan(primary_key=cast(Any, (3,))),
        PushPlan(sort_by=(SURROGATE,)),
        PushPlan(schema=cast(Any, "text")),
        PushPlan(partition_by=cast(Any, (object(),))),
    ],
)
def test_no_other_part_of_a_push_makes_its_record_unreadable(plan: PushPlan) -> None:
    with pytest.raises(ValueError, match="push 'p1' cannot be stored: "):
        new_push("p1", ("shop", "visits"), in_order("a"), {}, BEGAN, plan)
    record = new_push("p1", ("shop", "visits"), in_order("a"), {"n": "5"}, BEGAN, PushPlan())
    assert decode(encode(record)) == record
    assert decode(encode(msgspec.structs.replace(record))) == record


@pytest.mark.parametrize(
    ("since", "means"),
    [
        (None, None),
        ("start", "start"),
        (3, "3"),
        ("3", "3"),
        (datetime(2026, 11, 26, 8, tzinfo=UTC), "2026-11-26T08:00:00+00:00"),
        ("2026-11-26T08:00:00Z", "2026-11-26T08:00:00Z"),
    ],
)
def test_rows_may_be_replayed_since_a_number_or_a_time(since: object, means: str | None) -> None:
    assert replay_text(since) == means


@pytest.mark.parametrize("since", [-1, True, 1.5, "", "soon", SURROGATE, b"start", "9" * 5000])
def test_any_other_start_of_replayed_rows_is_refused(since: object) -> None:
    said = refused(replay_since=since)
    assert said.startswith("replay_since ") or "digits" in said
    assert "\udc80" not in said
    said = refused(replay_since=datetime(2026, 11, 26, 8))
    assert "a time with zone such as 2026-11-26T08:00:00Z" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"push_id": 5}, "push_id: expected a name, not 5"),
        ({"push_id": ""}, "push_id: expected a name, not ''"),
        ({"push_id": "a/b"}, "push_id 'a/b' does not match"),
        ({"push_id": SURROGATE}, r"push_id 'day\udc80' does not match"),
        ({"table": None}, "table: expected a name, not None"),
        ({"namespace": "a b"}, "namespace 'a b' does not match"),
        ({"primary_key": "id"}, "primary_key='id': expected a list, such as primary_key=['id']"),
        ({"sort_by": [5]}, "sort_by=[5]: expected a list of names"),
        ({"partition_by": 5}, "partition_by=5: expected a list of names"),
        ({"expected_rows": -1}, "expected_rows=-1: expected at least 0"),
        ({"expected_rows": "7"}, "expected_rows='7': expected an integer"),
        ({"target_file_bytes": 0}, "target_file_bytes=0: expected at least 1"),
        ({"df": "no frame"}, "df: expected a DataFrame of a classic session, not str"),
    ],
)
def test_every_other_argument_is_refused_by_name(arguments: dict[str, Any], says: str) -> None:
    assert says in refused(**arguments)
