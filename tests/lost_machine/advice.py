"""Judges whether each refusal says what to do: its code, and when to retry. `ask` obeys."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.crash.reading import call

RETRYABLE = {"memory", "saturated", "disk_full", "limit", "store"}
"""Refusals that end by themselves: they say when to try again."""
OTHER = {"stopping", "fenced", "timeout", "superseded", "owner", "stale"}
"""Refusals whose code alone says what to do: reconnect, reopen, or write elsewhere."""


WITHIN_S = 60.0


def ask(endpoint: str, action: str, **body: Any) -> list[dict[str, Any]]:
    """Return the answers of an action, which is repeated as long as the refusal says so."""
    give_up_at = time.monotonic() + WITHIN_S
    while True:
        try:
            return call(endpoint, action, **body)
        except fl.FlightError as exc:
            told = json.loads(exc.extra_info or b"{}")
            if told.get("code") not in RETRYABLE or time.monotonic() > give_up_at:
                raise
            time.sleep(told["retry_after_s"])


class Advice:
    """All refusals of a campaign, by code, and those that do not help."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.useless: list[str] = []
        self._lock = threading.Lock()

    def judge(self, error: BaseException) -> None:
        """Judge an error of a call, or that which caused it; a lost connection is not a refusal."""
        cause = error
        # An error may be its own cause, if it was raised again.
        while cause.__cause__ not in (None, cause) and not getattr(cause, "extra_info", None):
            assert cause.__cause__ is not None
            cause = cause.__cause__
        extra = getattr(cause, "extra_info", None)
        if extra:
            self.judge_answer(json.loads(extra))
        elif isinstance(cause, pa.ArrowInvalid | pa.ArrowKeyError | fl.FlightInternalError):
            self._add("no code", f"{cause!r}")

    def judge_answer(self, told: dict[str, Any]) -> None:
        """Judge the JSON of a refusal."""
        code = str(told.get("code"))
        if not told.get("message"):
            self._add(code, f"no message: {told}")
        elif code in RETRYABLE and not told.get("retry_after_s"):
            self._add(code, f"no retry_after_s: {told}")
        elif code not in RETRYABLE | OTHER:
            self._add(code, f"unexpected: {told}")
        else:
            self._add(code, None)

    def _add(self, code: str, useless: str | None) -> None:
        with self._lock:
            self.codes[code] += 1
            if useless is not None and len(self.useless) < 10:
                self.useless.append(useless[:500])
