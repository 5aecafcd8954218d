"""The class that a user's hooks are built on.

Law of this file: each method has a default that changes nothing, so that a hook writes only the
methods that it is about. Nothing of a controller is needed to try one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ingester.pushes.answers import PROCEED, Answer
from ingester.pushes.contexts import ConfigContext, HookContext


class LifecycleHooks:
    """Decides how a version of a table goes live, region by region.

    An instance is made for each call and dropped after it, so nothing can be kept in it. A method
    runs in a thread, one at a time for each table, for at most ``hooks.timeout``. After a crash of
    the controller, a call whose answer was not kept yet is made again: a hook that does something
    should do it once for the same push, method and region.

    A method that may answer returns an :class:`Answer`. One that returns anything else, ``None``
    too, has failed, and so has one that answers what it may not (see `ingester.pushes.methods`).
    """

    asks_anew: ClassVar[bool] = False
    """Whether a ``proceed`` is good for the moment alone: then the hook is asked again whenever
    others of the same step, who had said ``wait``, are."""
    wants_statistics: ClassVar[bool] = False
    """Whether ``context.statistics`` is to be there in calls that are about a region."""

    options: ClassVar[Mapping[str, str] | None] = None
    """The keys of the configuration that it knows, each with what it means. Where every configured
    class says that, any other key is refused."""

    def __init__(self, config: Mapping[str, str]) -> None:
        """Take ``hooks.config``, with the overrides of the table that the call is about."""
        self.config = config

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check ``self.config`` before it is used, or a table's overrides before they are kept."""
        return PROCEED

    def validate_hook_params(self, context: HookContext) -> Answer:
        """Check the parameters of a push, before anything else of it is done."""
        return PROCEED

    def pre_start_of_push_job(self, context: HookContext) -> Answer:
        """Say whether the push may begin: proceed or abort."""
        return PROCEED

    def post_start_of_push_job(self, context: HookContext) -> None:
        """Hear that the push has begun."""

    def pre_schema_registration(self, context: HookContext) -> Answer:
        """Say whether the schema may be registered: proceed or abort."""
        return PROCEED

    def post_schema_registration(self, context: HookContext) -> None:
        """Hear that the schema is registered."""

    def pre_version_creation(self, context: HookContext) -> Answer:
        """Say whether the version may be made in the region."""
        return PROCEED

    def post_version_creation(self, context: HookContext) -> None:
        """Hear that the version was made in the region."""

    def pre_start_of_version_ingestion_for_followers(self, context: HookContext) -> Answer:
        """Say whether the region's followers may begin to load the version."""
        return PROCEED

    def post_start_of_version_ingestion_for_followers(self, context: HookContext) -> Answer:
        """Say, with the followers told, whether the push goes on."""
        return PROCEED

    def post_version_leader_replication(self, context: HookContext) -> None:
        """Hear that all of the data is in the region."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Say whether the version may go live in the region."""
        return PROCEED

    def post_version_swap(self, context: HookContext) -> Answer:
        """Say, with the version live in the region, whether the push goes on to the next ones."""
        return PROCEED

    def pre_end_of_push_job(self, context: HookContext) -> Answer:
        """Say whether the push may end with the status in ``context.push``."""
        return PROCEED

    def post_end_of_push_job(self, context: HookContext) -> None:
        """Hear with which status the push has ended."""
