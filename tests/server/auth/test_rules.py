"""Pure rules: grants, tokens of a file, limits of the audit log, permitted Host names."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.errors import NotAuthenticated
from ingester.server.auth.audit import BURST, BURST_OF_ALL, MAX_PRINCIPALS, AuditLog
from ingester.server.auth.rights import NOBODY, RIGHTS, BadGrant, Caller, Grant, Right, parse_grant
from ingester.server.auth.tokens import (
    VERSION,
    BadTokens,
    TokenBook,
    TokenFile,
    WatchedTokens,
    change_tokens,
    encode_tokens,
    new_token,
    parse_tokens,
    revoked,
)
from ingester.server.http.entrance import Hosts

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
NAMESPACES = st.sampled_from(["a", "b", "*"])
GRANTS = st.builds(
    Grant, NAMESPACES, st.sets(st.sampled_from(RIGHTS), min_size=1).map(frozenset[Right])
)


@given(st.lists(GRANTS, max_size=4), st.sampled_from(RIGHTS), st.sampled_from(["a", "b", None]))
def test_a_right_is_there_exactly_if_a_grant_has_it(
    grants: list[Grant], right: Right, namespace: str | None
) -> None:
    expected = any(
        grant.namespace in ("*", namespace) and grant.rights & {right, "admin"} for grant in grants
    )
    assert Caller("x", "", tuple(grants)).may(right, namespace) == expected
    assert [parse_grant(str(grant)) for grant in grants] == grants


@given(st.text(max_size=20))
def test_a_grant_is_read_whole_or_refused(text: str) -> None:
    try:
        grant = parse_grant(text)
    except BadGrant:
        return
    assert grant.rights <= set(RIGHTS)
    assert grant.namespace and text.startswith(f"{grant.namespace}:")


def test_only_the_whole_secret_of_a_valid_token_lets_in() -> None:
    made, entry = new_token("etl", ["a:read"], NOW, NOW + timedelta(days=1))
    kept = TokenFile(VERSION, [entry])
    book = TokenBook(parse_tokens(encode_tokens(kept)))
    assert book.caller(made, NOW).name == "etl"
    _, other = new_token("x", ["a:read"], NOW)
    wrong = [made[:-1], made + "A", made.upper(), made.replace(entry.id, other.id), "igt_", ""]
    wrong += [f"igt_{entry.id}_{entry.sha256}", f"igt_{entry.id}_", made[:17] + "é" + made[18:]]
    for token in wrong:
        with pytest.raises(NotAuthenticated, match="not known here"):
            book.caller(token, NOW)
    with pytest.raises(NotAuthenticated, match="expired at 2026-11-27"):
        book.caller(made, NOW + timedelta(days=1))
    gone = TokenBook(revoked(kept, entry.id, NOW))
    with pytest.raises(NotAuthenticated, match="was revoked at"):
        gone.caller(made, NOW)
    assert (book.valid(NOW), gone.valid(NOW)) == (1, 0)


def test_a_file_that_cannot_be_used_leaves_the_tokens_of_before(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made, entry = new_token("etl", ["a:read"], NOW)
    change_tokens(path, lambda kept: TokenFile(VERSION, [entry]))
    watched = WatchedTokens(path)
    good = path.read_bytes()
    for spoil in (
        lambda: path.write_bytes(good[:-9]),
        lambda: path.write_bytes(good.replace(b'"version": 1', b'"version": 2')),
        lambda: path.write_bytes(good.replace(b"a:read", b"a:reed")),
        # A truncated file must not count as an empty one, which would revoke all tokens.
        lambda: path.write_bytes(b'{"version": 1}'),
        lambda: path.write_bytes(b'{"tokens": []}'),
        lambda: path.write_bytes(b"{}"),
        lambda: path.chmod(0o666),
        path.unlink,
    ):
        if path.exists():
            path.write_bytes(good)
        spoil()
        with pytest.raises(BadTokens):
            watched.look()
        assert not watched.look(), "told once"
        assert watched.failure is not None
        assert watched.caller(made).name == "etl"
    change_tokens(path, lambda kept: TokenFile(VERSION, []))
    assert watched.look()
    assert watched.failure is None
    with pytest.raises(NotAuthenticated):
        watched.caller(made)


def test_a_file_behind_a_link_that_is_swapped_is_seen(tmp_path: Path) -> None:
    # A mounted Kubernetes secret: FILE -> ..data/FILE, and ..data -> a folder per version.
    made = []
    for number in (1, 2):
        token, entry = new_token("etl", ["a:read"], NOW)
        made.append(token)
        file = tmp_path / f"..{number}" / "tokens.json"
        file.parent.mkdir()
        file.write_bytes(encode_tokens(TokenFile(VERSION, [entry])))
        file.chmod(0o440)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "tokens.json").symlink_to("..data/tokens.json")
    watched = WatchedTokens(tmp_path / "tokens.json")
    assert watched.caller(made[0]).name == "etl"
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert watched.look()
    assert watched.caller(made[1]).name == "etl"


def test_refusals_cannot_fill_the_disk_and_those_left_out_are_counted(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(str(file), lambda: now[0])
    caller = Caller("x\n\x1b[2J", "id", ())

    def refuse(times: int, peer: str = "ipv4:10.0.0.1:4711", who: Caller = caller) -> None:
        for _ in range(times):
            audit.refused(who, peer, "put", ("a", "t"), "forbidden", "m" * 10_000)

    refuse(1000)
    assert audit.lines == BURST
    now[0] = 1.0
    refuse(1)
    lines = file.read_text().splitlines()
    assert json.loads(lines[-1])["left_out"] == 1000 - BURST
    assert max(map(len, lines)) < 1000
    assert "\x1b" not in file.read_text()
    # Many different peers share one limit, and a bounded number of them is remembered.
    now[0] = 1000.0
    for number in range(2 * MAX_PRINCIPALS):
        refuse(1, f"ipv4:10.0.{number // 256}.{number % 256}:1", NOBODY)
    assert audit.lines == BURST + 1 + BURST_OF_ALL
    refuse(1)
    assert audit.lines == BURST + 2 + BURST_OF_ALL, "strangers hide nothing of those with a token"
    audit.done(caller, "", "action persist", ("a", None), "done")
    assert json.loads(file.read_text().splitlines()[-1])["action"] == "action persist"
    assert file.stat().st_mode & 0o777 == 0o640


def test_the_audit_log_is_opened_anew_after_it_was_moved_away(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(str(file))
    audit.noted("one", "done")
    file.rename(tmp_path / "audit.1")
    audit.noted("two", "done")
    audit.reopen()
    audit.noted("three", "done")
    assert [json.loads(line)["action"] for line in file.read_text().splitlines()] == ["three"]
    assert len((tmp_path / "audit.1").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("x.localhost:1", True),
        ("127.0.0.1:8080", True),
        ("10.1.2.3", True),
        ("[::1]:8080", True),
        ("[fe80::1]", True),
        ("ingester.example.org:8080", True),
        ("ingester.example.org.", True),
        ("pod-0.ingester.svc", True),
        ("", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evilingester.svc", False),
        ("ingester.example.org.evil.example", False),
        ("[evil.example]", False),
        ("ingester.example.org@evil.example", False),
    ],
)
def test_a_request_that_names_another_host_is_not_meant_for_this_one(
    host: str, allowed: bool
) -> None:
    assert Hosts(["ingester.example.org", ".ingester.svc"]).allow(host) == allowed


def test_what_a_caller_is_called_acts_on_no_terminal_and_a_line_stays_one(tmp_path: Path) -> None:
    evil = "a\x1b[2J\x9b\u202e\nb\x7f"
    file = tmp_path / "audit"
    audit = AuditLog(str(file))
    caller = Caller(evil, evil, ())
    audit.refused(caller, evil, evil, (evil, evil), "forbidden", evil)
    audit.done(caller, evil, evil, (evil, evil), "done")
    text = file.read_text()
    assert not any(c != "\n" and not c.isprintable() for c in text), text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(each["principal"], each["namespace"]) for each in lines] == [(evil, evil)] * 2
