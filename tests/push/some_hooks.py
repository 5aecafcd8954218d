"""The hooks of the show, beside those that ship."""

from __future__ import annotations

from ingester.pushes.hooks import PROCEED, Answer, HookContext
from ingester.pushes.shipped import StatisticsCheck


class StatisticsBeforeTheRest(StatisticsCheck):
    """Lets the first region try a version out, and compares the versions before all others."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Compare, but for the region that goes first."""
        if context.region == context.regions[0].name:
            return PROCEED
        return super().pre_version_swap(context)
