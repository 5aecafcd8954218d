"""Another process decides, over HTTP: the first call sends the question, later ones ask for it.

    POST url                                          {"context": {…}}, with an Idempotency-Key
    GET  url?push_id=…&method=…&region=…              404: not known (any more), so it is sent again
    ◀── 200 {"answer": "proceed" | "abort" | "wait" | "rollback", "reason": "…"}
    ◀── 202 anything                                  wait

Law of this file: nothing but such an answer counts as one. While nobody answers, or the server has
a fault of its own (5xx), the hook waits, up to the deadline of all waits; ``remote.away = "fail"``
makes that a failure at once. Anything else that is said is a failure, by its text.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from ingester.pushes.answers import PROCEED, Answer, Decision, wait
from ingester.pushes.contexts import ConfigContext, HookContext, context_to_json
from ingester.pushes.hooks import LifecycleHooks
from ingester.pushes.kept_json import decoded
from ingester.pushes.shipped.http_calls import HttpAnswer, NoAnswer, call, checked_url
from ingester.pushes.shipped.options import checked, choice, duration, required
from ingester.pushes.shipped.webhook import key_of

METHODS = (
    "pre_start_of_push_job",
    "pre_version_creation",
    "pre_version_swap",
    "post_version_swap",
    "pre_end_of_push_job",
)


class _Said(msgspec.Struct):
    answer: Decision
    reason: str = ""


_said = msgspec.json.Decoder(_Said)


class Remote(LifecycleHooks):
    """Asks ``remote.url``, in the methods that ``remote.methods`` names."""

    options: ClassVar[Mapping[str, str] | None] = {
        "remote.url": "who decides",
        "remote.methods": f"in which methods it does, with commas, of {', '.join(METHODS)}"
        " (pre_version_swap)",
        "remote.timeout": "how long a call may take (5s)",
        "remote.away": "what it means when nobody answers: wait or fail (wait)",
    }

    def _methods(self) -> list[str]:
        named = self.config.get("remote.methods", "pre_version_swap")
        methods = [name.strip() for name in named.split(",")]
        strays = [name for name in methods if name not in METHODS]
        if strays:
            raise ValueError(f"remote.methods: {strays[0]!r} is none of {', '.join(METHODS)}")
        return methods

    def _read(self) -> None:
        checked_url("remote.url", required(self.config, "remote.url"))
        duration(self.config, "remote.timeout", "5s")
        choice(self.config, "remote.away", "wait", "fail")
        self._methods()

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the URL and the methods."""
        return checked(self._read)

    def pre_start_of_push_job(self, context: HookContext) -> Answer:
        """Ask, if it is to be asked here."""
        return self._decide(context)

    def pre_version_creation(self, context: HookContext) -> Answer:
        """Ask, if it is to be asked here."""
        return self._decide(context)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Ask, if it is to be asked here."""
        return self._decide(context)

    def post_version_swap(self, context: HookContext) -> Answer:
        """Ask, if it is to be asked here."""
        return self._decide(context)

    def pre_end_of_push_job(self, context: HookContext) -> Answer:
        """Ask, if it is to be asked here."""
        return self._decide(context)

    def _decide(self, context: HookContext) -> Answer:
        if context.method not in self._methods():
            return PROCEED
        try:
            answer = self._asked(context)
            if answer.status >= 500:
                raise NoAnswer(f"{self.config['remote.url']} has answered {answer.status}")
        except NoAnswer as exc:
            if self.config.get("remote.away") == "fail":
                raise
            return wait(str(exc))
        return _read_answer(answer)

    def _asked(self, context: HookContext) -> HttpAnswer:
        url = self.config["remote.url"]
        timeout_s = duration(self.config, "remote.timeout", "5s").total_seconds()
        if context.call > 1:
            about = {
                "push_id": context.push.push_id,
                "method": context.method,
                "region": context.region or "",
            }
            joint = "&" if urllib.parse.urlsplit(url).query else "?"
            answer = call(f"{url}{joint}{urllib.parse.urlencode(about)}", timeout_s)
            if answer.status != 404:
                return answer
        body = msgspec.json.encode({"context": context_to_json(context)})
        return call(url, timeout_s, body, {"Idempotency-Key": key_of(context)})


def _read_answer(answer: HttpAnswer) -> Answer:
    if answer.status == 202:
        return wait("the remote hook has not decided yet")
    if answer.status != 200:
        raise ValueError(f"the remote hook has answered {answer.status}: {answer.body[:200]!r}")
    try:
        said = decoded(_said, answer.body)
    except ValueError as exc:
        raise ValueError(f"the remote hook has said {answer.body[:200]!r}: {exc}") from exc
    return Answer(said.answer, said.reason)
