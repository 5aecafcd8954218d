"""The hooks of a run, in addition to the shipped ones."""

from __future__ import annotations

from ingester.pushes.hooks import PROCEED, Answer, HookContext
from ingester.pushes.shipped import StatisticsCheck


class StatisticsBeforeTheRest(StatisticsCheck):
    """Lets the first region try a version, and compares the versions before all others."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Compare, except for the first region."""
        if context.region == context.regions[0].name:
            return PROCEED
        return super().pre_version_swap(context)
