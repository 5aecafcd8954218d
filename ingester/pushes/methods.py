"""Every method of a hook: what it may answer, and whether it is called once for each region.

    validate_hook_config, validate_hook_params          proceed, abort
    pre_start_of_push_job        post_…                 proceed, abort              post: nothing
    pre_schema_registration      post_…                 proceed, abort              post: nothing
    pre_version_creation         post_…     (region)    all four                    post: nothing
    pre_start_of_version_ingestion_for_followers        all four
                                 post_…     (region)    all four
    post_version_leader_replication         (region)    nothing
    pre_version_swap             post_…     (region)    all four                    post: all four
    pre_end_of_push_job          post_…                 all four                    post: nothing

Law of this file: pure, and the one place that says so.
"""

from __future__ import annotations

from typing import NamedTuple

from ingester.pushes.answers import Decision

_NOTHING: frozenset[Decision] = frozenset()
_YES_OR_NO = frozenset({Decision.PROCEED, Decision.ABORT})
_ALL = frozenset(Decision)


class Method(NamedTuple):
    """One method of :class:`ingester.pushes.LifecycleHooks`."""

    name: str
    answers: frozenset[Decision]
    """The decisions that it may give; none where it is only told."""
    per_region: bool = False

    @property
    def guards(self) -> bool:
        """Whether it comes before the thing that it is named after: a failure then aborts."""
        return not self.name.startswith("post_")


VALIDATE_CONFIG = Method("validate_hook_config", _YES_OR_NO)
VALIDATE_PARAMS = Method("validate_hook_params", _YES_OR_NO)
PRE_START = Method("pre_start_of_push_job", _YES_OR_NO)
POST_START = Method("post_start_of_push_job", _NOTHING)
PRE_SCHEMA = Method("pre_schema_registration", _YES_OR_NO)
POST_SCHEMA = Method("post_schema_registration", _NOTHING)
PRE_CREATION = Method("pre_version_creation", _ALL, per_region=True)
POST_CREATION = Method("post_version_creation", _NOTHING, per_region=True)
PRE_INGESTION = Method("pre_start_of_version_ingestion_for_followers", _ALL, per_region=True)
POST_INGESTION = Method("post_start_of_version_ingestion_for_followers", _ALL, per_region=True)
POST_REPLICATION = Method("post_version_leader_replication", _NOTHING, per_region=True)
PRE_SWAP = Method("pre_version_swap", _ALL, per_region=True)
POST_SWAP = Method("post_version_swap", _ALL, per_region=True)
PRE_END = Method("pre_end_of_push_job", _ALL)
POST_END = Method("post_end_of_push_job", _NOTHING)

METHODS = {
    method.name: method
    for method in (
        VALIDATE_CONFIG,
        VALIDATE_PARAMS,
        PRE_START,
        POST_START,
        PRE_SCHEMA,
        POST_SCHEMA,
        PRE_CREATION,
        POST_CREATION,
        PRE_INGESTION,
        POST_INGESTION,
        POST_REPLICATION,
        PRE_SWAP,
        POST_SWAP,
        PRE_END,
        POST_END,
    )
}
