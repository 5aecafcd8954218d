"""Listeners reachable from other machines need TLS and tokens, or an explicit `insecure`."""

from __future__ import annotations

import pytest

from ingester.config.addresses import is_loopback, says_loopback
from ingester.config.exposure import check_exposure, exposed_listeners, is_insecure
from ingester.config.settings import ConfigError, Settings
from ingester.config.sources import load
from tests.drivers.names import leads_to

TLS = {"tls.cert": "c.pem", "tls.key": "k.pem"}
TOKENS = {"auth.tokens": "tokens.json"}


def settings(**flags: object) -> Settings:
    """Settings from flags alone; two underscores stand for a dot."""
    return load({key.replace("__", "."): value for key, value in flags.items()}, {}).settings


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("ingester.example", False),
        # A name may begin like a loopback address and still belong to another machine.
        ("127.0.0.1.example", False),
        ("localhost.example", False),
    ],
)
def test_only_what_this_machine_alone_reaches_is_the_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["127.0.0.1"], True),
        (["127.0.0.1", "::1"], True),
        (["0.0.0.0"], False),
        (["127.0.0.1", "10.0.0.1"], False),
        (["fe80::1%lo"], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("name", ["x.localhost", "localhost"])
def test_a_name_is_the_loopback_only_where_all_its_addresses_are(
    name: str, addresses: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads_to(monkeypatch, name, addresses)
    assert is_loopback(name) is expected
    assert says_loopback(name)
    made = settings(flight__listen=f"{name}:0")
    assert exposed_listeners(made) == ([] if expected else ["flight.listen"])


@pytest.mark.parametrize("listener", ["flight__listen", "http__listen"])
def test_a_listener_for_others_needs_both_tls_and_tokens(listener: str) -> None:
    name = listener.replace("__", ".")
    for given, missing, there in (
        ({}, ["tls.cert", "auth.tokens"], []),
        (TLS, ["auth.tokens"], ["tls.cert"]),
        (TOKENS, ["tls.cert"], ["auth.tokens"]),
    ):
        made = settings(**{listener: "0.0.0.0:0"}, **given)
        assert exposed_listeners(made) == [name]
        assert is_insecure(made)
        with pytest.raises(ConfigError, match="--insecure") as caught:
            check_exposure(made)
        assert caught.value.key == name
        assert all(each in str(caught.value) for each in missing)
        assert not any(each in str(caught.value) for each in there)
    secure = settings(**{listener: "0.0.0.0:0"}, **TLS, **TOKENS)
    check_exposure(secure)
    assert not is_insecure(secure)
    wanted = settings(**{listener: "0.0.0.0:0"}, insecure=True)
    check_exposure(wanted)
    assert is_insecure(wanted)


def test_the_loopback_needs_nothing() -> None:
    check_exposure(Settings())
    assert not is_insecure(Settings(insecure=True))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"tls.cert": "c"}, "tls.key"),
        ({"tls.key": "k"}, "tls.cert"),
        ({"tls.client_ca": "a"}, "tls.client_ca"),
    ],
)
def test_half_of_what_tls_needs_is_refused_by_the_missing_setting(
    given: dict[str, object], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(given, {})
    assert caught.value.key == key
