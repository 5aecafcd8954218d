"""The error table covers every class and uses only the documented statuses and codes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.errors import ERRORS, IngesterError, InternalFailure, kind_of
from ingester.server.flight.refusals import flight_error

CODES = {
    "INVALID_ARGUMENT": {"invalid"},
    "NOT_FOUND": {"not_found"},
    "UNIMPLEMENTED": {"unimplemented"},
    "UNAVAILABLE": {
        "memory",
        "saturated",
        "disk_full",
        "limit",
        "store",
        "stale",
        "superseded",
        "stopping",
        "fenced",
        "owner",
        "made_anew",
        "unavailable",
    },
    "DEADLINE_EXCEEDED": {"timeout"},
    "UNAUTHENTICATED": {"unauthenticated"},
    "PERMISSION_DENIED": {"forbidden"},
    "INTERNAL": {"internal"},
}
TYPES = {
    "INVALID_ARGUMENT": pa.ArrowInvalid,
    "NOT_FOUND": pa.ArrowKeyError,
    "UNIMPLEMENTED": pa.ArrowNotImplementedError,
    "UNAVAILABLE": fl.FlightUnavailableError,
    "DEADLINE_EXCEEDED": fl.FlightTimedOutError,
    "UNAUTHENTICATED": fl.FlightUnauthenticatedError,
    "PERMISSION_DENIED": fl.FlightUnauthorizedError,
    "INTERNAL": fl.FlightInternalError,
}


def _classes(root: type[IngesterError] = IngesterError) -> Iterator[type[IngesterError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


def test_every_error_is_in_the_table() -> None:
    # The client's errors have a class hierarchy of their own.
    assert {c for c in _classes() if c.__module__ == "ingester.errors"} == set(ERRORS)
    assert {c.__module__ for c in _classes()} == {"ingester.errors"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_an_error_has_a_status_a_code_and_an_exit_code_of_the_contract(
    error: type[IngesterError],
) -> None:
    kind = kind_of(error("values"))
    assert kind.code in CODES[kind.status]
    assert kind.exit_code == (4 if kind.status == "UNAVAILABLE" else 1)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_an_error_leaves_as_the_type_of_its_status_with_its_message(
    error: type[IngesterError],
) -> None:
    kind = ERRORS[error]
    shown = flight_error(error("column 'v': 3 values", retry_after_s=1.5, details={"version": 7}))
    assert isinstance(shown, TYPES[kind.status])
    assert str(shown) == "column 'v': 3 values"
    if isinstance(shown, fl.FlightError):
        assert json.loads(shown.extra_info) == {
            "code": kind.code,
            "message": "column 'v': 3 values",
            "retry_after_s": 1.5,
            "version": 7,
        }


def test_a_retry_is_promised_only_where_it_helps() -> None:
    shown = flight_error(InternalFailure("no"))
    assert isinstance(shown, fl.FlightError)
    assert "retry_after_s" not in json.loads(shown.extra_info)


def test_an_unknown_failure_shows_an_id_and_none_of_its_text() -> None:
    shown = flight_error(KeyError("/secret/path.py"))
    assert isinstance(shown, fl.FlightInternalError)
    assert "secret" not in str(shown)
    assert json.loads(shown.extra_info)["code"] == "internal"
