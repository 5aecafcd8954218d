"""A URL is told what happens, and has no say in it.

    POST {"event": "post_version_swap", "context": {…}}     with an Idempotency-Key

Law of this file: it hears of what has happened, never of what is about to. A call that is made
again has the same key; one that fails is counted and told as any hook's, and holds up nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from ingester.pushes.answers import PROCEED, Answer
from ingester.pushes.contexts import ConfigContext, HookContext, context_to_json
from ingester.pushes.hooks import LifecycleHooks
from ingester.pushes.shipped.http_calls import NoAnswer, call, checked_url
from ingester.pushes.shipped.options import checked, duration, required


class Webhook(LifecycleHooks):
    """Tells ``webhook.url`` of every step that was done."""

    options: ClassVar[Mapping[str, str] | None] = {
        "webhook.url": "where events are posted",
        "webhook.timeout": "how long a post may take (5s)",
    }

    def _read(self) -> None:
        checked_url("webhook.url", required(self.config, "webhook.url"))
        duration(self.config, "webhook.timeout", "5s")

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the URL."""
        return checked(self._read)

    def _tell(self, context: HookContext) -> None:
        body = msgspec.json.encode({"event": context.method, "context": context_to_json(context)})
        timeout_s = duration(self.config, "webhook.timeout", "5s").total_seconds()
        answer = call(
            self.config["webhook.url"], timeout_s, body, {"Idempotency-Key": key_of(context)}
        )
        if not answer.good:
            raise NoAnswer(f"{self.config['webhook.url']} has answered {answer.status}")

    def post_start_of_push_job(self, context: HookContext) -> None:
        """Tell it."""
        self._tell(context)

    def post_schema_registration(self, context: HookContext) -> None:
        """Tell it."""
        self._tell(context)

    def post_version_creation(self, context: HookContext) -> None:
        """Tell it."""
        self._tell(context)

    def post_version_leader_replication(self, context: HookContext) -> None:
        """Tell it."""
        self._tell(context)

    def post_version_swap(self, context: HookContext) -> Answer:
        """Tell it, and go on."""
        self._tell(context)
        return PROCEED

    def post_end_of_push_job(self, context: HookContext) -> None:
        """Tell it, with the status that the push has ended with."""
        self._tell(context)


def key_of(context: HookContext) -> str:
    """Return the key that is the same for calls about the same step."""
    parts = (context.push.push_id, context.method, context.region or "", context.push.status.value)
    return "/".join(parts if context.method.endswith("_end_of_push_job") else parts[:3])
