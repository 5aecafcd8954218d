"""Headless Chromium, driven through a pipe (Chrome DevTools Protocol).

    with Browser.start() as browser, browser.tab(width=390, dark=True) as tab:
        tab.open(url)
        tab.until("document.title !== ''")
        assert tab.evaluate("document.body.scrollWidth") <= 390
        assert tab.complaints == []

Each message is one JSON object and a NUL byte, on descriptors 3 and 4 of the browser.
``complaints`` keeps a page's script errors and policy violations.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next(filter(None, map(shutil.which, PROGRAMS)), None)
needs_browser = pytest.mark.skipif(
    FOUND is None, reason=f"needs a browser: none of {', '.join(PROGRAMS)} is on the path"
)
ANSWER_S = 30.0
# Chromium's own update requests stay on this machine.
_OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--force-color-profile=srgb"),
)


class BrowserFault(Exception):
    """Raised when the browser rejects a command or does not answer in time."""


class Browser:
    """A running browser, used by one thread."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._number = 0
        self._read = b""
        self.tabs: dict[str, Tab] = {}

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[Browser]:
        """Start a browser with its own profile and end it afterwards."""
        assert FOUND is not None, "no browser is on the path"
        theirs_in, to = os.pipe()
        back, theirs_out = os.pipe()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
            process = subprocess.Popen(
                ["bash", "-c", script, FOUND, *_OPTIONS, f"--user-data-dir={profile}"],
                pass_fds=(theirs_in, theirs_out),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.close(theirs_in)
            os.close(theirs_out)
            try:
                yield cls(process, to, back)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
                os.close(to)
                os.close(back)

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile go to their tabs.

        Raises:
            BrowserFault: the command was rejected or not answered in time.
        """
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        _write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_S
        while True:
            told = self._next(until, method)
            if told.get("id") == number:
                if "error" in told:
                    raise BrowserFault(f"{method}: {told['error']}")
                result: dict[str, Any] = told["result"]
                return result
            if told.get("sessionId") in self.tabs:
                self.tabs[told["sessionId"]].hear(told["method"], told["params"])

    def _next(self, until: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._back], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._back, 1 << 20) if ready else b""
            if not piece:
                raise BrowserFault(f"the browser has not answered {waiting_for}")
            self._read += piece
        first, _, self._read = self._read.partition(b"\0")
        told: dict[str, Any] = json.loads(first)
        return told

    @contextmanager
    def tab(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[Tab]:
        """Open a tab of this size and close it afterwards."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = self.tabs[session["sessionId"]] = Tab(self, session["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            tab.send(f"{domain}.enable")
        tab.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.send("Emulation.setEmulatedMedia", features=[scheme])
        try:
            yield tab
        finally:
            self.send("Target.disposeBrowserContext", browserContextId=context)
            del self.tabs[session["sessionId"]]


class Tab:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Record an event of the tab."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", details).get("description", "?"))
        # An unreachable daemon causes network errors; the page reports them itself.
        if method == "Log.entryAdded" and params["entry"]["source"] != "network":
            self.complaints.append(params["entry"]["text"])

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command for this tab and return its result."""
        return self._browser.send(method, self._session, **params)

    def size(self, width: int, height: int) -> None:
        """Resize the tab, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def open(self, url: str) -> None:
        """Navigate to an address."""
        failed = self.send("Page.navigate", url=url).get("errorText")
        if failed:
            raise BrowserFault(f"{url}: {failed}")
        self.until("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return the settled value of an expression; raise BrowserFault if it throws."""
        told = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise BrowserFault(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def until(self, condition: str, within_s: float = 15.0) -> None:
        """Wait until an expression is true; on timeout raise BrowserFault with the page's text."""
        end = time.monotonic() + within_s
        while not self.evaluate(f"!!({condition})"):
            if time.monotonic() > end:
                text = self.evaluate("document.body.innerText")
                raise BrowserFault(f"not so within {within_s} s: {condition}\n{text}")
            self.evaluate("new Promise((done) => setTimeout(done, 20))")

    def press(self, key: str) -> None:
        """Press and release a key: a letter, or a name such as ``Tab``, ``Enter``, ``Escape``."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = codes.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode=code,
            )

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self.send("Input.insertText", text=text)

    def text(self, element_id: str) -> str:
        """Return the text of an element, hidden text included, with single spaces."""
        found = self.evaluate(f"document.getElementById({json.dumps(element_id)})?.textContent")
        return " ".join(str(found or "").split())

    def picture(self) -> bytes:
        """Return a PNG screenshot."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
