"""Where one library calls another: found, or refused before anything is changed."""

from __future__ import annotations

import platform

import pyarrow.flight
import pytest

from ingester.server.flight.interposition import Library, NotHere

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="known on x86-64 only")

assert pyarrow.flight  # loads the libraries

DEFAULTS = "_ZN5arrow3ipc14IpcReadOptions8DefaultsEv"


def test_functions_are_found_where_they_are() -> None:
    flight, arrow = Library("libarrow_flight.so"), Library("libarrow.so")
    assert flight.import_slot(DEFAULTS).value
    assert arrow.address(DEFAULTS)
    own = "grpc_resource_quota_create"
    assert flight.own_functions([own])[own] > 0
    with pytest.raises(NotHere, match="has no grpc_resource"):
        flight.address(own)  # not exported


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda: Library("libnothing.so"), "is not loaded"),
        (
            lambda: Library("libarrow_flight.so").import_slot("nothing"),
            "no table entry for nothing",
        ),
        (lambda: Library("libarrow_flight.so").own_functions(["nothing"]), "has no nothing"),
        (lambda: Library("libarrow_flight.so").address("nothing"), "has no nothing"),
        # It is called by the library itself, and by nobody by way of a table.
        (lambda: Library("libarrow.so").import_slot(DEFAULTS), "no table entry"),
    ],
)
def test_what_is_not_there_is_told(look: object, words: str) -> None:
    assert callable(look)
    with pytest.raises(NotHere, match=words):
        look()
