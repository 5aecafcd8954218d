"""HTTP access: open routes, routes that need a token, and routes without an entry in the table."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response

from ingester.errors import AccessDenied, NotAuthenticated
from ingester.server.auth.access import Access
from ingester.server.auth.rights import Caller, parse_grants
from ingester.server.http.app import create_app
from ingester.server.http.entrance import Entrance, TurnedAway
from tests.server.http.serving import RunningServer, TurnableSource


class OneToken:
    """A token store with one token, which may read one namespace."""

    def knows(self, token: str) -> bool:
        """Every token is of this kind."""
        return True

    def caller(self, token: str) -> Caller:
        """The owner of the token."""
        if token != "igt_one":
            raise NotAuthenticated("the token is not known here")
        return Caller("one", "1", parse_grants(["sensors:read"]))


@pytest.fixture
def asking() -> Iterator[RunningServer]:
    """A server that requires a token for everything except metrics."""
    access = Access(opened=["metrics"])
    access.trust(OneToken())
    server = RunningServer(create_app(TurnableSource(), Entrance(access, ["ingester.example"])))
    yield server
    server.stop()


def test_what_is_open_needs_no_token_and_the_rest_says_how_to_ask(asking: RunningServer) -> None:
    for path in ("/", "/health/live", "/health/ready", "/metrics"):
        assert asking.request(path).status == 200
    refused = asking.request("/api/status")
    assert (refused.status, refused.headers["www-authenticate"]) == (
        *(401, 'Bearer realm="ingester"'),
    )
    assert json.loads(refused.body)["code"] == "unauthenticated"
    assert asking.request("/api/status", Authorization="Bearer igt_two").status == 401
    assert asking.request("/api/status", Authorization="Basic igt_one").status == 401
    assert asking.request("/api/status", Authorization="bearer igt_one").status == 200


def test_a_name_of_the_settings_is_answered_and_another_one_is_not(asking: RunningServer) -> None:
    assert asking.request("/metrics", Host="ingester.example:8080").status == 200
    refused = asking.request("/metrics", Host="\x1b[2Jevil.example".replace("\x1b", "%1b"))
    assert refused.status == 421
    assert "http.hosts" in json.loads(refused.body)["message"]
    assert asking.request("/health/live", Host="anything").status == 200


async def handle(request: Request) -> Response:
    """A handler that answers every request."""
    return Response(b"told")


def test_what_is_not_in_the_table_of_needs_is_refused_where_tokens_are_asked_for() -> None:
    access = Access()
    access.nobody().require("action forgotten", "shop")
    access.trust(OneToken())
    permit = access.admit(["Bearer igt_one"])
    permit.require("get all", "sensors")
    for namespace in ("sensors", None):
        with pytest.raises(AccessDenied, match="nothing that a token can have a right to"):
            permit.require("action forgotten", namespace)
    behind = Entrance(access).behind("/forgotten", handle)
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer igt_one")]
    request = Request({"type": "http", "headers": headers, "client": ("10.0.0.1", 1)})
    waiting = behind(request)
    with pytest.raises(TurnedAway, match="nothing that a token") as refused:
        waiting.__await__().send(None)
    assert refused.value.status == 403
