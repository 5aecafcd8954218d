"""The operator's page as a real browser renders a status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ingester.server.http.page import assemble
from tests.drivers.browser import Browser, Tab, needs_browser
from tests.server.http.serving import example_status
from tests.server.http.stage import Stage

AT = "2026-11-26T08:10:00Z"
pytestmark = needs_browser
SETTLED = "document.documentElement.dataset.rounds > {}"
TEXTS = """Object.fromEntries([...document.querySelectorAll("[id]")].map(
    (each) => [each.id, each.innerText.replace(/\\s+/g, " ").trim()]))"""


@pytest.fixture(scope="module", autouse=True)
def stage() -> Iterator[Stage]:
    """The page's server, with a browser."""
    with Stage() as stage, Browser.start() as browser, browser.tab() as tab:
        global _STAGE, _TAB
        _STAGE, _TAB = stage, tab
        yield stage


_STAGE: Stage
_TAB: Tab


def shown(status: Any, *done: str) -> dict[str, str]:
    """The text of each element with an id, after these user actions.

    Args:
        status: the daemon's status; with ``token`` it requires that; ``page`` is its page of
            tables.
        done: the text of a button or a link to click; ``token:TEXT`` types and enters a token;
            ``order:NAME`` chooses the order of the tables.
    """
    answers = {"/api/status": status, "/api/status/tables": status.get("page")}
    _STAGE.answers, _STAGE.token, _STAGE.asked = answers, status.get("token"), []
    tab = _TAB
    tab.open(_STAGE.url)
    tab.until(SETTLED.format(0))
    for each in done:
        do(tab, each)
    assert tab.complaints == []
    found: dict[str, str] = tab.evaluate(TEXTS)
    kept = tab.evaluate("JSON.stringify({...sessionStorage})")
    address = tab.evaluate("location.href + document.cookie + JSON.stringify({...localStorage})")
    tab.evaluate("sessionStorage.clear()")
    return {**found, "asked": " ".join(_STAGE.asked), "kept": kept, "address": address}


def do(tab: Tab, act: str) -> None:
    """Perform one action, and wait for its effect."""
    rounds = tab.evaluate("document.documentElement.dataset.rounds")
    kind, _, what = act.partition(":")
    if kind == "token":
        tab.evaluate("document.getElementById('token').focus()")
        tab.type(what)
        tab.press("Enter")
    elif kind == "order":
        tab.evaluate(
            f"((o) => {{ o.value = {json.dumps(what)}; o.dispatchEvent(new Event('change')) }})"
            "(document.getElementById('order'))"
        )
    else:
        tab.evaluate(
            "[...document.querySelectorAll('button, a')]"
            f".find((each) => each.innerText === {json.dumps(act)}).click()"
        )
    tab.until(SETTLED.format(rounds))


def example(**more: Any) -> dict[str, Any]:
    status: dict[str, Any] = msgspec.to_builtins(example_status())
    return {**status, **more}


def test_a_status_is_shown_without_an_error() -> None:
    page = shown(example())
    assert "Ready: accepts writes, answers queries" in page["state"]
    assert page["lost"] == ""
    assert "sensors.readings" in page["tables"]


def test_a_daemon_that_asks_for_a_token_is_shown_with_it_and_it_is_kept_in_the_tab() -> None:
    asking = example(token="igt_secret")
    page = shown(asking)
    assert "requires a token" in page["entry"]
    assert page["tables"] == ""
    assert "not known here" in shown(asking, "token:wrong")["entry"]
    page = shown(asking, "token: igt_secret ")
    assert "sensors.readings" in page["tables"]
    assert json.loads(page["kept"]) == {"token": "igt_secret"}
    assert "igt_secret" not in page["asked"]
    forgotten = shown(asking, "token:igt_secret", "Forget the token")
    assert json.loads(forgotten["kept"]) == {}
    assert "igt_secret" not in page["address"]
    script = assemble()[0].decode()
    assert not any(word in script for word in ("localStorage", "document.cookie"))


def test_a_token_that_has_ended_leaves_no_good_word_and_nothing_in_the_way_of_the_next() -> None:
    first = shown(example(token="igt_first"), "token:wrong", "token:igt_first")
    assert "sensors.readings" in first["tables"]
    assert _TAB.evaluate("document.title") == "pod-0: ready"
    _STAGE.token = "igt_next"
    do(_TAB, "Pause")
    assert _TAB.evaluate("document.title") == "⚠ ingester: requires a token"
    assert _TAB.evaluate("document.getElementById('since').innerText") == ""
    assert _TAB.evaluate("document.getElementById('why').role") == "alert"
    do(_TAB, "token:igt_next")
    assert "Ready" in _TAB.evaluate("document.getElementById('state').innerText")
    assert _TAB.evaluate("document.title") == "⏸ pod-0: ready", "it is paused"
    _TAB.evaluate("sessionStorage.clear()")


def test_what_acts_or_does_not_show_in_a_name_is_shown_by_its_number() -> None:
    evil = "a\x1b[2J\u202eb\u200b\x9b\U000e0041<b>"
    status = example(errors=[{"at": AT, "event": evil, "message": evil, "level": "error"}])
    status["tables"][0]["table"] = evil
    status["identity"]["ingester_id"] = evil
    page = shown(status)
    assert page["lost"] == ""
    for part in ("tables", "name", "errors"):
        assert r"a\u001b[2J\u202eb\u200b\u009b\ue0041<b>" in page[part], part
    assert not any(hidden in text for hidden in "\x1b\u202e\u200b\x9b" for text in page.values())


def test_all_tables_are_there_by_pages() -> None:
    one = example()["tables"][0]
    few = example(counts={"tables": 10_000})
    assert "9,999 more, with less in memory, are listed by name." in shown(few)["turning"]
    last = {**one, "table": "<b>last</b>"}
    few["page"] = {"list": "tables", "total": 10_000, "items": [last], "next": "a/b c"}
    page = shown(few, "order:name", "Next page")
    assert page["lost"] == ""
    assert "sensors.<b>last</b>" in page["tables"]
    assert "11 to 11 of 10,000 tables" in page["turning"]
    assert "/api/status/tables?limit=10&after=a%2Fb+c" in page["asked"]
    back = shown(few, "order:name", "Next page", "order:busy")
    assert "sensors.readings" in back["tables"]
    assert "9,999 more" in back["turning"]
    assert shown(example())["turning"] == "1 to 1 of 1 table"


def test_namespaces_are_shown_beside_their_quotas_and_who_has_more_than_its_share() -> None:
    quota = {"buffer_bytes": 8 << 20, "streams": 4, "bytes_per_s": 1 << 20, "requests_per_s": 0}
    none = dict.fromkeys((*quota, "tables", "partitions"), 0)
    has = {"queued_bytes": 0, "partitions": 3, "tables": 1, "writers": 2, "answers": 0}
    greedy = {"namespace": "greedy", "bytes": 6 << 20, "over_share": True, "refused": 17}
    modest = {"namespace": "modest", "bytes": 1 << 10, "over_share": False, "refused": 0}
    namespaces = [greedy | has | {"quota": none | quota}, modest | has | {"quota": none}]
    page = shown(example(namespaces=namespaces, counts={"namespaces": 31}))["namespaces"]
    assert "6 MiB of 8 MiB" in page
    assert "2 of 4" in page
    assert "1 MiB/s" in page
    assert "1 KiB" in page
    assert page.count("yes: refused first") == 1
    assert "11 more in /api/status/namespaces" in page
    assert "No namespace uses anything yet" in shown(example(namespaces=[]))["namespaces"]


def test_the_log_in_the_store_is_shown_once_a_batch_asks_for_it() -> None:
    assert "store" not in shown(example())["log"]
    table = {"namespace": "shop", "table": "<b>", "operations": 5}
    used = {"ack": "store", "disk": False, "state": "failing", "puts": 40, "put_bytes": 5 << 20}
    slow = {"put_s": 1.6, "failed_puts": 3, "last_error": "503", "oldest_waiting_s": 12.0}
    lost = {"lost": [{**table, "epoch": 1}, {**table, "epoch": 2}]}
    status = example()
    status["store_log"] |= {**used, **slow, **lost, "waiting_bytes": 3 << 20}
    whole = shown(status)
    assert "Log in the store" in whole["now"]
    assert "Log on disk" not in whole["now"]
    page = whole["log"]
    assert "Acknowledged at store; no log on disk" in page
    assert "Syncs" not in page
    assert "failing 40 PUTs, 5 MiB, 40 ms each; 3 failed" in page
    assert "Waiting for a PUT 3 MiB, oldest 12 s" in page
    assert "Lost with a disk 10 operations of 1 table" in page
    assert "Last error 503" in page
    del status["store_log"]
    assert shown(status)["lost"] == ""


def test_checkpoints_are_counted_in_all_and_by_table() -> None:
    status = example(checkpoints={"count": 4100, "bytes": 3 << 20, "pending": 2})
    status["tables"][0]["checkpoints"] = {"count": 4099, "bytes": 1, "pending": 2}
    page = shown(status)
    assert "4,100 checkpoints of sources, 3 MiB; 2 not in object storage yet." in page["origins"]
    assert "4,099" in page["tables"]
    durable = shown(example(checkpoints={"count": 1, "bytes": 9, "pending": 0}))
    assert "1 checkpoint of sources, 9 B; all in object storage." in durable["origins"]
    none = shown(example(checkpoints={"count": 0, "bytes": 0, "pending": 0}))
    assert "checkpoint" not in none["origins"]


def a_push(**changed: Any) -> dict[str, Any]:
    """A push that waits in its second region, as `/api/status` shows it."""
    gate = {"hook": "MinimumDelay", "reason": "7 minutes to go"}
    step = {"method": "pre_version_swap", "since": AT, "next_at": AT, "waits": [gate]}
    eu = {"name": "eu", "status": "SERVING", "since": AT, "table_version": 8, "previous": 7}
    us = {"name": "us", "status": "WAITING", "since": AT, "table_version": 3, "previous": None}
    rest: dict[str, Any] = {"reason": "", "step": None, "lagging": [], "unreachable_since": None}
    regions = [{**rest, **eu}, {**rest, **us, "step": step, "lagging": ["<b>report</b>"]}]
    push: dict[str, Any] = {
        **{"push_id": "nightly", "namespace": "shop", "table": "visits", "order": "in_order"},
        **{"target": None, "status": "WAITING", "since": AT, "began_at": AT, "ended_at": None},
        **{"ending": None, "step": None, "unreachable_since": None, "regions": regions},
        "events": [{"at": AT, "region": "eu", "what": "SERVING"}],
        "kept_in": {"region": "eu", "url": "s3://lake/eu"},
        **{"leader": {"controller": "batch-7", "at": AT}, "led": True, "told_s": 3.0},
    }
    return {**push, **changed}


def test_a_push_is_shown_with_its_regions_and_who_is_waited_for() -> None:
    page = shown(example(pushes=[a_push()]))["pushes"]
    assert "shop.visits: push nightly" in page
    assert "v8 (previous: v7)" in page and "v3" in page
    assert "followers: <b>report</b>" in page  # escaped, so shown as text
    assert "pre_version_swap waits (MinimumDelay: 7 minutes to go)" in page
    assert "called again at 2026-11-26 08:10:00 Z" in page
    assert "eu: SERVING" in page
    assert "No controller" not in page
    left = shown(example(pushes=[a_push(led=False, told_s=312.0)]))["pushes"]
    assert "No controller: last status 5 min 12 s ago." in left


def test_pushes_that_have_ended_are_few_words_and_what_cannot_be_read_is_named() -> None:
    ending = {"kind": "rollback", "reason": "nulls in price", "at": AT}
    ended = [a_push(push_id=f"p{n}", ended_at=AT, ending=ending, led=False) for n in range(3)]
    unreadable = [{"path": "_push_status/x", "reason": "it is no push status"}]
    reading = {"read_at": AT, "failure": "store away", "left_out": 7, "unreadable": unreadable}
    page = shown(example(pushes=ended, push_reading=reading))["pushes"]
    assert page.count("Version") == 1, "one is shown in full"
    assert page.count("rollback: nulls in price") == 3
    assert "Not updated since 2026-11-26 08:10:00 Z: store away" in page
    assert "_push_status/x cannot be shown: it is no push status" in page
    assert "7 older pushes are not shown" in page


def test_a_daemon_without_pushes_and_an_older_one_have_no_card_of_them() -> None:
    status = example()
    assert "push" not in shown(status).get("pushes", "")
    del status["pushes"], status["push_reading"]
    assert shown(status)["lost"] == ""


def test_followers_are_shown_with_what_they_show_and_have_prepared() -> None:
    one: dict[str, Any] = {"namespace": "shop", "table": "visits", "table_version": 7}
    followers = [
        {**one, "name": "<b>lost</b>", "alive": False, "prepared": []},
        {**one, "name": "reports", "alive": True, "prepared": [8, 9]},
    ]
    page = shown(example(followers=followers))["followers"]
    assert "shop.visits reports yes v7 v8, v9 shop.visits <b>lost</b> no v7" in page
    many = example(followers=followers, counts={"followers": 103})
    assert "3 more in /api/status/followers." in shown(many)["followers"]
    status = example()
    del status["followers"]
    assert shown(status)["lost"] == "", "an older daemon says nothing of them"


def a_replication(**changed: Any) -> dict[str, Any]:
    """A replication with one skipped table, one being copied, and many being followed."""
    table: dict[str, Any] = {
        **{"source": "public.x", "reason": "", "since": AT, "helps": [], "notes": []},
        **dict.fromkeys(("rows_done", "rows_total", "bytes_done", "lag_bytes", "lag_s", "rows")),
    }
    aside = {"table": "<b>notes</b>", "phase": "set_aside", "reason": "it has no primary key"}
    copied = {"table": "orders", "phase": "copying", "rows_done": 250, "rows_total": 1000}
    tables = [{**table, **aside, "helps": ["ADD PRIMARY KEY"]}, {**table, **copied}]
    tables += [{**table, "table": f"t{n}", "phase": "following"} for n in range(300)]
    phases = {
        "set_aside": 1,
        "copying": 1,
        "catching_up": 0,
        "waiting": 0,
        "left": 2,
        "following": 5000,
    }
    replication: dict[str, Any] = {
        **{"origin": "pg", "namespace": "shop", "source": "db/shop", "slot": "ingester"},
        **{"state": "running", "reason": "", "position": "0/16B3748", "retries": 0, "rivals": 0},
        **{"lag_bytes": 4096, "lag_s": 0.4, "slot_bytes": 1 << 20, "reporter": "r"},
        **{"tables": tables, "left_out": {"left": 2, "following": 4700}, "phases": phases},
        **{"alive": True, "heard_at": AT, "heard_s": 0.6},
    }
    return {**replication, **changed}


def test_a_replication_is_shown_with_what_does_not_follow_first_and_the_rest_counted() -> None:
    page = shown(example(replications=[a_replication()]))["replications"]
    assert "shop from db/shop running" in page
    assert "Lag 400 ms, 4 KiB; the source retains 1 MiB of log for slot ingester" in page
    assert "1 set aside 1 copying 2 dropped at the source 5,000 following" in page
    assert "<b>notes</b> from public.x set aside" in page  # escaped, so shown as text
    assert "it has no primary key To do: ADD PRIMARY KEY" in page
    assert "250 of about 1,000 rows (25 %)" in page
    assert page.index("notes") < page.index("orders") < page.index("t0")
    assert (
        "Not shown: 2 dropped at the source, 4,990 following; all but 4,702 are in"
        " /api/status/replications." in page
    )
    assert "No reports" not in page and "Retrying" not in page


def test_a_replicator_that_is_not_well_is_told_before_its_tables() -> None:
    def page(**changed: Any) -> str:
        return shown(example(replications=[a_replication(**changed)]))["replications"]

    died = page(alive=False, heard_s=300.0)
    assert "No reports since 2026-11-26 08:10:00 Z (5 min 0 s ago)." in died
    assert "Lag 400 ms, 4 KiB at the last report" in died
    assert "Ended: the slot is lost." in page(alive=False, state="ended", reason="the slot is lost")
    trying = page(state="trying_again", reason="connection refused", retries=7)
    assert "Retrying: connection refused (7 failed sessions)" in trying
    assert "2 replicators report this origin." in page(rivals=1)
    many = [a_replication(origin=f"o{number}") for number in range(23)]
    assert (
        "3 more in /api/status/replications." in shown(example(replications=many))["replications"]
    )
    status = example()
    del status["replications"]
    assert shown(status)["lost"] == "", "an older daemon says nothing of them"


def test_a_daemon_that_anybody_reaches_says_so_on_top() -> None:
    assert shown(example())["security"] == ""
    certificate = {"ends_in_s": 40 * 86400.0, "not_after": AT, "problem": None}
    secure = {"insecure": False, "exposed": [], "tls": True, "tokens": True}
    assert shown(example(security=secure | {"certificate": certificate}))["security"] == ""
    opened = secure | {"insecure": True, "exposed": ["http.listen"], "tokens": False}
    page = shown(example(security=opened))
    assert "http.listen: other machines reach it without tokens, and may" in page["security"]
    late = certificate | {"ends_in_s": 86400.0, "problem": "tls.key: <b>"}
    page = shown(example(security=secure | {"certificate": late}))
    assert "The certificate expires at" in page["security"]
    assert "cannot be loaded: tls.key: <b>" in page["security"]
    assert page["lost"] == ""


def test_a_daemon_that_starts_or_drains_says_so_and_an_older_one_is_shown_with_less() -> None:
    status = example()
    status["identity"]["state"] = "draining"
    drain = {"state": "draining", "since": AT, "buffers": 3, "bytes": 2048, "tables": 1}
    page = shown({**status, "drain": {**drain, "problem": "the store is <b>away</b>"}})
    assert page["state"].startswith("Draining: refuses writes")
    assert "3 buffers, 2 KiB unflushed; the store is <b>away</b>" in page["identity"]
    status["identity"]["state"] = "starting"
    for name in ("alarms", "store_state", "disk", "oldest_unpersisted_s", "drain", "log_levels"):
        del status[name]
    page = shown(status)
    assert page["state"].startswith("Starting: not ready yet")
    assert page["lost"] == ""
    assert "The history is unavailable: no such path." in page["history"]
