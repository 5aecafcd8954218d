"""The query box of the operator's page in a real browser."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from ingester.errors import BadRequest, NotAuthenticated
from ingester.observability.status import SecurityStatus, SqlStatus
from ingester.server.auth.access import Access
from ingester.server.auth.rights import Caller, parse_grants
from ingester.server.http.app import create_app
from ingester.server.http.entrance import Entrance
from tests.drivers.browser import Browser, Tab, needs_browser
from tests.server.http.serving import RunningServer, TurnableSource, example_status
from tests.server.http.told_engine import Told

pytestmark = needs_browser
ROUNDS = "Number(document.documentElement.dataset.rounds || 0)"
SHOWN = "!document.getElementById('asking').closest('[hidden]')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests."""
    with Browser.start() as browser:
        yield browser


@contextmanager
def page(
    engine: Told, tokens: bool = False, opened: Collection[str] = (), available: bool = True
) -> Iterator[str]:
    """The address of a page of a daemon with this engine."""
    status = replace(
        example_status(),
        sql=SqlStatus(available=available),
        security=SecurityStatus(tokens=tokens),
    )
    access = Access(opened=opened)
    if tokens:
        access.trust(Tokens())
    source = TurnableSource(sql=engine, shown=status)
    server = RunningServer(create_app(source, Entrance(access)))
    try:
        yield server.url
    finally:
        server.stop()


class Tokens:
    """Tokens by their grant, such as ``shop:read``."""

    def knows(self, token: str) -> bool:
        """Every token is of this kind."""
        return True

    def caller(self, token: str) -> Caller:
        """Return the owner of the token."""
        if ":" not in token:
            raise NotAuthenticated("the token is not known here")
        return Caller("someone", "1", parse_grants([token]))


def run(tab: Tab, statement: str, wait: str = "said") -> str:
    """Write a statement, press Ctrl+Enter, and return what is said when it has ended."""
    tab.press("q")
    assert tab.evaluate("document.activeElement.id") == "statement"
    tab.evaluate("document.getElementById('statement').select()")
    tab.type(statement)
    for kind in ("keyDown", "keyUp"):
        tab.send(
            "Input.dispatchKeyEvent", type=kind, key="Enter", modifiers=2, windowsVirtualKeyCode=13
        )
    if wait == "said":
        tab.until("document.getElementById('stop').hidden")
    return tab.text("sql-said") + tab.text("sql-problem")


def enter(tab: Tab, token: str) -> None:
    """Enter a token, and wait for the status."""
    rounds = tab.evaluate(ROUNDS)
    tab.evaluate("document.getElementById('token').focus()")
    tab.type(token)
    tab.press("Enter")
    tab.until(f"{ROUNDS} > {rounds}")


def cells(tab: Tab, selector: str) -> list[Any]:
    """The texts of the answer's cells."""
    found: list[Any] = tab.evaluate(
        f"[...document.querySelectorAll('#sql-answer {selector}')].map((each) => each.textContent)"
    )
    return found


def test_names_and_values_are_text(browser: Browser) -> None:
    evil = "<img src=x onerror=document.title='evil'>\x1b[2J\u202e"
    shown = r"<img src=x onerror=document.title='evil'>\u001b[2J\u202e"
    engine = Told(
        {
            "SELECT": pa.table(
                {
                    evil: [evil, None],
                    "n": pa.array([2**60, -1]),
                    "two": pa.array(["a\nb", "NULL"]),
                    "nested": pa.array([{"<b>": [evil]}, None]),
                }
            ),
            "bad": BadRequest(f"Parser Error: {evil}\n    ^"),
            "none": pa.table({"a": pa.array([], "int64")}),
            "many": pa.table({"a": range(1001)}),
        }
    )
    with page(engine) as url, browser.tab() as tab:
        tab.open(url)
        tab.until(SHOWN)
        assert run(tab, "SELECT").startswith("2 rows; ")
        assert cells(tab, "th") == [
            *(f"{shown}string", "nint64", "twostring"),
            "nestedstruct<<b>: list<item: string>>",
        ]
        rows = cells(tab, "td")
        assert rows[:3] == [shown, str(2**60), "a\nb"]
        assert rows[3].startswith('{"<b>":["<img src=x')
        assert rows[4:] == ["NULL", "-1", "NULL", "NULL"]
        nulls = "[...document.querySelectorAll('#sql-answer td')].map((td) => td.childElementCount)"
        assert tab.evaluate(nulls) == [0, 0, 0, 0, 1, 0, 0, 1], "a NULL is not the text"
        assert tab.evaluate("document.querySelector('#sql-answer img')") is None
        assert tab.evaluate("document.querySelector('#sql-answer .scroll').tabIndex") == 0
        assert run(tab, "bad").startswith("Parser Error: <img")
        assert (
            tab.evaluate("document.getElementById('sql-problem').getAttribute('role')") == "alert"
        )
        assert cells(tab, "td") == []
        assert run(tab, "none").startswith("0 rows; ")
        assert cells(tab, "th") == ["aint64"]
        assert run(tab, "many").startswith("The first 1,000 rows; ")
        assert len(cells(tab, "td")) == 1000
        rounds = tab.evaluate(ROUNDS)
        tab.evaluate("document.activeElement.blur()")
        tab.press("r")
        tab.until(f"{ROUNDS} > {rounds}")
        assert len(cells(tab, "td")) == 1000, "polling leaves the answer alone"
        assert "evil" not in tab.evaluate("document.title")
        assert tab.complaints == []


def test_a_running_query_is_stopped_and_replaced(browser: Browser) -> None:
    engine = Told({"SELECT": pa.table({"a": [1]})})
    with page(engine) as url, browser.tab() as tab:
        tab.open(url)
        tab.until(SHOWN)
        assert run(tab, "endless", wait="") == "Running …"
        engine.wait_running(1)
        tab.evaluate("document.getElementById('stop').click()")
        tab.until("document.getElementById('stop').hidden")
        assert tab.text("sql-problem") == "Stopped."
        engine.wait_running(0)
        run(tab, "endless", wait="")
        engine.wait_running(1)
        assert run(tab, "SELECT").startswith("1 row; ")
        engine.wait_running(0)
        assert tab.complaints == []


def test_the_box_is_shown_to_those_who_may_ask(browser: Browser) -> None:
    engine = Told({"SELECT": pa.table({"secret": ["of shop"]})})
    with page(engine, tokens=True) as url, browser.tab() as tab:
        tab.open(url)
        tab.until(f"{ROUNDS} > 0")
        enter(tab, "shop:write")
        assert tab.evaluate(SHOWN) is False
        tab.evaluate("document.querySelector('[data-act=forget]').click()")
        tab.until("!document.getElementById('entry').hidden")
        enter(tab, "shop:read")
        tab.until(SHOWN)
        run(tab, "SELECT")
        assert cells(tab, "td") == ["of shop"]
        tab.evaluate("document.querySelector('[data-act=forget]').click()")
        tab.until("!document.getElementById('entry').hidden")
        enter(tab, "other:read")
        tab.until(SHOWN)
        assert cells(tab, "td") == [], "an answer belongs to its token"
        assert tab.complaints == []
    with page(engine, available=False) as url, browser.tab() as tab:
        tab.open(url)
        tab.until(f"{ROUNDS} > 0")
        assert tab.evaluate(SHOWN) is False
        assert tab.evaluate("document.getElementById('sql-card').hidden") is True


def test_an_open_status_asks_for_a_token_for_queries(browser: Browser) -> None:
    engine = Told({"SELECT": pa.table({"a": [1]})})
    with page(engine, tokens=True, opened=["status"]) as url, browser.tab() as tab:
        tab.open(url)
        tab.until(SHOWN)
        assert "token" in run(tab, "SELECT")
        tab.evaluate("document.querySelector('[data-act=enter]').click()")
        enter(tab, "shop:read")
        tab.until(SHOWN)
        assert run(tab, "SELECT").startswith("1 row; ")
        assert tab.complaints == []
