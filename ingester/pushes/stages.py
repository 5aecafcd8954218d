"""The stages that a push and each of its regions go through, one after another.

    push      PARAMS, PRE_START, POST_START, PRE_SCHEMA, *SCHEMA, POST_SCHEMA
              ─▶ REGIONS (all of them, each at its own pace) ─▶ PRE_END ─▶ POST_END ─▶ OVER
    region    PRE_CREATION, *CREATE, POST_CREATION
              ─▶ PRE_INGESTION, *START_FOLLOWERS, POST_INGESTION ─▶ *WRITE, POST_REPLICATION
              ─▶ IN_LINE ─▶ PRE_SWAP, *FOLLOWERS, *SWAP, POST_SWAP ─▶ DONE

A stage with a star asks something of a region, and IN_LINE waits for the order; all others are
questions to hooks. Law of this file: pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ingester.pushes import methods
from ingester.pushes.methods import Method


class PushStage(Enum):
    """A stage of the push as a whole."""

    PARAMS = "params"
    PRE_START = "pre_start"
    POST_START = "post_start"
    PRE_SCHEMA = "pre_schema"
    SCHEMA = "schema"
    POST_SCHEMA = "post_schema"
    REGIONS = "regions"
    PRE_END = "pre_end"
    POST_END = "post_end"
    OVER = "over"


class RegionStage(Enum):
    """A stage of one region."""

    PRE_CREATION = "pre_creation"
    CREATE = "create"
    POST_CREATION = "post_creation"
    PRE_INGESTION = "pre_ingestion"
    START_FOLLOWERS = "start_followers"
    POST_INGESTION = "post_ingestion"
    WRITE = "write"
    POST_REPLICATION = "post_replication"
    IN_LINE = "in_line"
    PRE_SWAP = "pre_swap"
    FOLLOWERS = "followers"
    SWAP = "swap"
    POST_SWAP = "post_swap"
    DONE = "done"


PUSH_HOOKS: Mapping[PushStage, Method] = {
    PushStage.PARAMS: methods.VALIDATE_PARAMS,
    PushStage.PRE_START: methods.PRE_START,
    PushStage.POST_START: methods.POST_START,
    PushStage.PRE_SCHEMA: methods.PRE_SCHEMA,
    PushStage.POST_SCHEMA: methods.POST_SCHEMA,
    PushStage.PRE_END: methods.PRE_END,
    PushStage.POST_END: methods.POST_END,
}
REGION_HOOKS: Mapping[RegionStage, Method] = {
    RegionStage.PRE_CREATION: methods.PRE_CREATION,
    RegionStage.POST_CREATION: methods.POST_CREATION,
    RegionStage.PRE_INGESTION: methods.PRE_INGESTION,
    RegionStage.POST_INGESTION: methods.POST_INGESTION,
    RegionStage.POST_REPLICATION: methods.POST_REPLICATION,
    RegionStage.PRE_SWAP: methods.PRE_SWAP,
    RegionStage.POST_SWAP: methods.POST_SWAP,
}


def after_push(stage: PushStage) -> PushStage:
    """Return the stage that follows one of the push."""
    stages = list(PushStage)
    return stages[stages.index(stage) + 1]


def after_region(stage: RegionStage) -> RegionStage:
    """Return the stage that follows one of a region."""
    stages = list(RegionStage)
    return stages[stages.index(stage) + 1]
