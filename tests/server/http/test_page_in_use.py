"""The operator's page in use: alarms, an unreachable daemon, keyboard, phone, a real daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from msgspec.structs import replace

from ingester.observability.status import StoreState
from ingester.server.http.app import create_app
from tests.drivers.browser import Browser, Tab, needs_browser
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, persist, put
from tests.server.http import scenes
from tests.server.http.serving import RunningServer, serving

pytestmark = needs_browser
ROUNDS = "Number(document.documentElement.dataset.rounds || 0)"
FOCUSED = "document.activeElement.innerText || document.activeElement.id"
STORE_IS_BACK = StoreState(state="ok", since="2026-11-26T18:00:00Z")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser.start() as browser:
        yield browser


def look(tab: Tab, url: str) -> None:
    """Open the page, and wait until it shows a status."""
    tab.open(url)
    tab.until(f"{ROUNDS} > 0")


def next_round(tab: Tab) -> None:
    """Refresh now, and wait until the answer is shown."""
    before = tab.evaluate(ROUNDS)
    tab.press("r")
    tab.until(f"{ROUNDS} > {before}")


def test_alarms_stand_on_top_are_read_out_once_and_ready_is_said_only_where_it_is_so(
    browser: Browser,
) -> None:
    source = scenes.store_away()
    with serving(source) as server, browser.tab() as tab:
        look(tab, server.url)
        text = tab.evaluate("document.body.innerText")
        assert "Degraded: accepts writes to open tables only, queries of files fail" in text
        assert "Ready" not in text
        assert text.index("Critical store-away") < text.index("Warning persist-failing")
        assert text.index("persist-failing") < text.index("Rows written") < text.index("Tables\n")
        assert tab.evaluate("document.title").startswith("(2) ⚠ pod-0")
        assert tab.text("announce") == "2 alarms: store-away, persist-failing."
        tab.evaluate("""window.said = [];
            new MutationObserver(() => said.push(document.getElementById("announce").innerText))
                .observe(document.getElementById("announce"), {childList: true, characterData: true,
                    subtree: true})""")
        next_round(tab)
        assert tab.evaluate("said.length") == 0, "nothing is new"
        source.shown = replace(source.shown, alarms=[], store_state=STORE_IS_BACK)
        next_round(tab)
        assert tab.evaluate("said.at(-1)") == "Cleared: store-away, persist-failing."
        assert tab.text("state") == "Ready: accepts writes, answers queriesNo alarms."
        assert tab.complaints == []


def test_plots_are_full_from_the_first_moment_and_have_their_text(browser: Browser) -> None:
    with serving(scenes.disk_full()) as server, browser.tab() as tab:
        look(tab, server.url)
        labels = tab.evaluate(
            "[...document.querySelectorAll('svg[role=img]')].map((e) => e.ariaLabel)"
        )
        assert len(labels) == 8
        assert all("last 15 min: " in label for label in labels)
        assert "Rows written, last 15 min: now 0/s; lowest 0/s, highest " in labels[0]
        # No writes for four minutes: the latency curve ends there and is not drawn up to now.
        (latency,) = [label for label in labels if label.startswith("Write latency")]
        assert re.search("p99 now \\W, p50 now \\W;", latency)
        ends = tab.evaluate(
            "document.querySelector('[data-key=\"Write latency\"] path.edge').getBBox().width"
        )
        assert 200 < ends < 240, "eleven of fifteen minutes, of 300 px"


def test_a_daemon_that_stood_still_has_a_gap_as_long_as_that(browser: Browser) -> None:
    source = scenes.well()
    source.ring.add(scenes.NOW + 605, {"rows_per_s": 1.0})
    with serving(source) as server, browser.tab() as tab:
        look(tab, server.url)
        plot = 'document.querySelector(\'[data-key="Rows written"] '
        assert "last 25 min: now 1/s" in tab.evaluate(plot + "svg').ariaLabel")
        before, after = tab.evaluate(plot + "path.edge').getAttribute('d')").split("M")[1:]
        assert 176 < float(before.rsplit("L")[-1].split(" ")[0]) < 181, "890 of 1,495 s, of 300 px"
        assert after.startswith("300.0 ")


def test_a_daemon_that_is_gone_leaves_its_figures_greyed_and_with_their_age(
    browser: Browser,
) -> None:
    server = RunningServer(create_app(scenes.well()))
    with browser.tab() as tab:
        look(tab, server.url)
        server.stop()
        tab.press("r")
        tab.until("!document.getElementById('lost').hidden")
        assert "The daemon is unreachable" in tab.text("lost")
        assert "Showing last known values from 20" in tab.text("lost")
        assert tab.evaluate("getComputedStyle(document.getElementById('main')).filter") != "none"
        assert tab.evaluate("document.getElementById('state').hidden"), "it says ready no more"
        assert tab.evaluate("document.getElementById('lost').getAttribute('role')") == "alert"
        assert "612 k/s" in tab.text("now")


def test_a_page_that_nobody_sees_asks_for_nothing(browser: Browser) -> None:
    source = scenes.well()
    with serving(source) as server, browser.tab() as tab:
        look(tab, server.url)
        seen = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});"
        turn = "document.dispatchEvent(new Event('visibilitychange'))"
        tab.evaluate(seen.format("true") + turn)
        rounds = tab.evaluate(ROUNDS)
        # Longer than the page's refresh interval.
        tab.evaluate("new Promise((done) => setTimeout(done, 2300))")
        assert tab.evaluate(ROUNDS) == rounds
        assert "Paused" in tab.text("refreshed")
        assert tab.evaluate("document.title") == "⏸ pod-0: ready", "its name is seen all the same"
        tab.evaluate(seen.format("false") + turn)
        tab.until(f"{ROUNDS} > {rounds}", within_s=1.5)
        assert tab.evaluate("document.title") == "pod-0: ready"


def test_everything_is_done_by_keys_and_focus_stays_where_it_is(browser: Browser) -> None:
    with serving(scenes.many_tables()) as server, browser.tab() as tab:
        look(tab, server.url)
        tab.press("Tab")
        assert tab.evaluate(FOCUSED) == "Skip to content"
        tab.press("/")
        assert tab.evaluate(FOCUSED) == "find"
        tab.type("orders_0")
        tab.until("document.getElementById('turning').innerText.includes('of 13 tables')")
        tab.press("r")  # typed into the field, where single letters are not shortcuts
        tab.until("document.getElementById('tables').innerText.includes('No table matches')")
        tab.evaluate("document.getElementById('find').value = ''")
        tab.type("orders_002")
        tab.until("document.getElementById('turning').innerText.includes('1 to 1 of 1 table')")
        for _ in range(4):  # order, rows, the scrolling table, its first link
            tab.press("Tab")
        assert tab.evaluate(FOCUSED).endswith("orders_002")
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        next_round(tab)
        assert tab.evaluate(FOCUSED).endswith("orders_002")
        tab.press("Enter")
        tab.until("location.hash.startsWith('#/tables/')")
        # The scene has no table details, so the page shows the daemon's error with a way back.
        tab.until("document.getElementById('tables').innerText.includes('is not open at')")
        assert tab.evaluate("document.activeElement.id") == "tables-card"
        tab.press("Escape")
        tab.until("location.hash === '#tables-card' && !document.getElementById('order').disabled")
        tab.press("?")
        assert tab.evaluate("document.getElementById('keys').open")
        tab.press("Escape")
        assert not tab.evaluate("document.getElementById('keys').open")
        tab.press("p")
        tab.until("document.getElementById('refreshed').innerText.startsWith('Paused. From')")
        assert tab.complaints == []


@pytest.mark.parametrize("name", scenes.SCENES)
def test_a_phone_cuts_nothing_off_without_saying_so(browser: Browser, name: str) -> None:
    with serving(scenes.SCENES[name]()) as server, browser.tab(390, 844, dark=True) as tab:
        look(tab, server.url)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        cut, hinted = tab.evaluate("""["scrollWidth > clientWidth + 1", ""].map((_, i) =>
            [...document.querySelectorAll(".wide")].filter((e) => i
                ? e.lastElementChild.offsetHeight > 0
                : e.firstElementChild.scrollWidth > e.firstElementChild.clientWidth + 1).length)""")
        assert cut == hinted > 0
        outside = tab.evaluate("""[...document.querySelectorAll("main *, header *, nav *")].filter(
            (e) => !e.closest(".scroll, .unseen") && e.getBoundingClientRect().right > 391)
            .map((e) => e.outerHTML.slice(0, 80))""")
        assert outside == []
        # Text that does not fit would overlap its neighbour, even if both are inside the page.
        over = tab.evaluate("""[...document.querySelectorAll("figcaption, .tile")].filter(
            (e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)""")
        assert over == []


def test_a_wide_screen_scrolls_no_table_and_breaks_no_client_id(browser: Browser) -> None:
    source = scenes.well()
    made = "client-b5b04888a78f47099861b6e53f3a2c99"
    origins = [replace(each, origin=f"{made}{n}") for n, each in enumerate(source.shown.origins)]
    source.shown = replace(source.shown, origins=origins)
    with serving(source) as server, browser.tab(1280, 900) as tab:
        look(tab, server.url)
        assert tab.evaluate("document.querySelectorAll('.wide.cut').length") == 0
        heights = tab.evaluate("""[...document.querySelectorAll("#origins tbody tr")].map(
            (row) => row.offsetHeight)""")
        assert max(heights) < 40  # one line
        boxes = (
            """["now-card", "errors-card"].map((id) => document.getElementById(id).offsetWidth)"""
        )
        now, errors = tab.evaluate(boxes)
        assert now == errors
        assert tab.text("errors") == "None since the start."
        with serving(scenes.store_away()) as away:
            look(tab, away.url)
            now, errors = tab.evaluate(boxes)
            assert now > errors


def test_many_tables_push_nothing_off_the_screen(browser: Browser) -> None:
    with serving(scenes.many_tables()) as server, browser.tab(1280, 900) as tab:
        look(tab, server.url)
        assert "1 to 10 of 1,000 tables" in tab.text("turning")
        below = tab.evaluate("document.getElementById('memory-card').offsetTop")
        with serving(scenes.well()) as few:
            look(tab, few.url)
            assert below == tab.evaluate("document.getElementById('memory-card').offsetTop")
        # The sections after the tables begin on the second screen.
        assert below < 1400


def test_from_a_real_daemons_tables_to_partitions_and_files_and_back(
    browser: Browser, shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    days = pa.schema({"day": pa.string(), "<i>": pa.int64()})
    name = (table[0], f"{table[1]}-seen")
    create(client, name, days, partition_by=["identity(day)"], publish=["delta"], max_age_s=60.0)
    rows = [{"day": f"a/ü?{n}", "<i>": n} for n in range(12)]
    put(client, name, pa.RecordBatch.from_pylist(rows, days))
    persist(client, name)
    put(client, name, pa.RecordBatch.from_pylist(rows[:3], days))
    with browser.tab() as tab:
        look(tab, shared.http)
        tab.evaluate("document.getElementById('find').focus()")
        tab.type(name[1])
        tab.until("document.getElementById('turning').innerText.includes('of 1 table')")
        click(tab, ".".join(name))
        tab.until("document.getElementById('turning').innerText.includes('of 12 partitions')")
        assert "3 rows" in tab.text("tables") and "12 rows, 12 files" in tab.text("tables")
        assert "Published as delta" in tab.text("tables") and "Flushed after" in tab.text("tables")
        tab.press("n")
        tab.until("document.getElementById('turning').innerText.includes('11 to 12 of 12')")
        tab.press("b")
        tab.until("document.getElementById('turning').innerText.includes('1 to 10 of 12')")
        click(tab, "day_key=a%2F%C3%BC%3F1")
        tab.until("document.getElementById('turning').innerText.includes('1 to 1 of 1 file')")
        assert f"{shared.ready['ingester_id']}, epoch" in tab.text("tables")
        tab.evaluate("history.back()")
        tab.until("document.getElementById('turning').innerText.includes('of 12 partitions')")
        tab.evaluate("getSelection().selectAllChildren(document.querySelector('.trail'))")
        put(client, name, pa.RecordBatch.from_pylist(rows[:2], days))
        next_round(tab)
        assert "5 rows" in tab.text("tables")
        assert tab.evaluate("String(getSelection())").endswith(name[1]), "it is still selected"
        # The view has its own URL: another window shows the same.
        address = tab.evaluate("location.href")
        tab.open("about:blank")
        look(tab, address)
        tab.until("document.getElementById('turning').innerText.includes('of 12 partitions')")
        assert tab.complaints == []


def click(tab: Tab, text: str) -> None:
    """Click the link with this text."""
    found = f"[...document.querySelectorAll('a')].find((e) => e.innerText === {json.dumps(text)})"
    tab.evaluate(f"{found}.click()")


def test_each_picture_of_the_page_is_small_and_stands_in_a_document() -> None:
    pytest.importorskip("PIL")
    from tests.server.http.pictures import FOLDER, MOST_BYTES, PICTURES

    assert {file.name for file in FOLDER.iterdir()} >= set(PICTURES)
    assert all(file.stat().st_size < MOST_BYTES for file in FOLDER.iterdir())
    told = (FOLDER.parent / "operations.md").read_text()
    assert [name for name in PICTURES if f"pictures/{name}" not in told] == []
