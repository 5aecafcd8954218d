"""So much time passes between the swaps of two regions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from ingester.pushes.answers import PROCEED, Answer, wait
from ingester.pushes.contexts import ConfigContext, HookContext
from ingester.pushes.hooks import LifecycleHooks
from ingester.pushes.shipped.options import checked, duration
from ingester.pushes.status import Status


class MinimumDelay(LifecycleHooks):
    """Lets a region swap when the last one has served for ``minimum_delay.delay``."""

    asks_anew: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str] | None] = {
        "minimum_delay.delay": "the least time between two swaps, as 15m (1h)",
    }

    def _delay(self) -> timedelta:
        return duration(self.config, "minimum_delay.delay", "1h")

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the delay."""
        return checked(self._delay)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Wait for the last swap of the push to be old enough."""
        serving = [each for each in context.regions if each.status is Status.SERVING]
        if not serving:
            return PROCEED
        last = max(serving, key=lambda each: each.since)
        due = last.since + self._delay()
        if context.now >= due:
            return PROCEED
        return wait(
            f"region {last.name} serves since {last.since.isoformat()}; until {due.isoformat()}"
        )
