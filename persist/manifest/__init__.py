"""The list of a table's files, in versions that only one writer can make.

    Manifest(store, namespace, table)     .load  .refresh  .changes  .head  .object_path
    commit(manifest, base, Proposal(actions), writer)          the next version, exactly once
    write_snapshot, snapshot_due                                shorter ways to read, in background
    clean_up(manifest, Retention(…))                            delete what no kept version needs
    claim_epoch(store, ingester_id, …)                          a new epoch at each start
    list_tables(store)

A version is a changelog of actions under a unique id, and a commit that says whose changelog it is.
Two processes that both believe they make version 42 write two changelogs; the one whose commit is
created is version 42 for ever, the other's is garbage that no reader can pick by mistake.

**Values.** ``actions`` are what a version does, ``state`` is a table at one version, immutable;
``draft`` makes the next state of a state and actions. ``file_runs`` and ``lazy_stats`` keep a state
of 100,000 files cheap; ``origins`` is what a client has written before.

**Reading.** ``paths`` says where files lie, ``files`` what their bytes are, ``head`` which versions
there are, ``lineage`` how one version is read; ``reading`` is the Manifest. ``history`` goes from
version to version.

**Writing.** ``committing`` makes the next version; where somebody else was faster, ``rebasing``
decides whether the proposal still holds. ``claims`` gives each start its epoch. ``snapshots`` are
shorter ways to read.

**Keeping house.** ``gc_plan`` says what may be deleted, ``gc`` deletes it, ``verifying`` checks all
that is kept. ``errors`` are sorted by who has to act.

A committed version never changes, a proposal is committed at most once, and nothing is deleted that
a kept version needs. All of it blocks: no trio, and pyarrow for zstd alone. Names are from Spark's
state store, whose checkpoint format v2 has the same structure. Start reading at ``committing``.
"""

from __future__ import annotations

from persist.manifest.actions import (
    Action,
    Add,
    Applied,
    AppliedKey,
    Checkpoint,
    ColumnStats,
    EpochComplete,
    Horizon,
    Origin,
    OriginAhead,
    OriginExpired,
    OriginRun,
    Owner,
    PartitionKey,
    Properties,
    Remove,
    Schema,
    Spec,
    Txn,
    Values,
    Writer,
    WriterIdentity,
)
from persist.manifest.claims import claim_epoch
from persist.manifest.committing import Proposal, Rebase, commit
from persist.manifest.draft import apply
from persist.manifest.errors import (
    ActionRefused,
    CommitUnclear,
    Fenced,
    ManifestDamaged,
    ManifestError,
    MomentNotKept,
    NotReplaced,
    OriginMoved,
    PartitionsChanged,
    PartlyCovered,
    ProposalConflict,
    RewriteVoid,
    TableNotFound,
    UploadExpired,
    VersionNotKept,
)
from persist.manifest.gc import CleanUp, Deleted, carry_out, clean_up, janitor, write_due_snapshot
from persist.manifest.gc_plan import Plan, Retention, plan_clean_up
from persist.manifest.history import Removals, Step, kept_versions, version_as_of, walk
from persist.manifest.reading import CommittedVersion, Manifest, list_tables
from persist.manifest.rebasing import (
    check_replaced,
    live_owner,
    rebase,
    undisturbed,
    unmoved,
)
from persist.manifest.snapshots import snapshot_due, write_snapshot
from persist.manifest.state import ALL_APPLIED, EMPTY, NOTHING_APPLIED, Lineage, TableState
from persist.manifest.verifying import Verification, verify

__all__ = [
    "ALL_APPLIED",
    "EMPTY",
    "NOTHING_APPLIED",
    "Action",
    "ActionRefused",
    "Add",
    "Applied",
    "AppliedKey",
    "Checkpoint",
    "CleanUp",
    "ColumnStats",
    "CommitUnclear",
    "CommittedVersion",
    "Deleted",
    "EpochComplete",
    "Fenced",
    "Horizon",
    "Lineage",
    "Manifest",
    "ManifestDamaged",
    "ManifestError",
    "MomentNotKept",
    "NotReplaced",
    "Origin",
    "OriginAhead",
    "OriginExpired",
    "OriginMoved",
    "OriginRun",
    "Owner",
    "PartitionKey",
    "PartitionsChanged",
    "PartlyCovered",
    "Plan",
    "Properties",
    "Proposal",
    "ProposalConflict",
    "Rebase",
    "Removals",
    "Remove",
    "Retention",
    "RewriteVoid",
    "Schema",
    "Spec",
    "Step",
    "TableNotFound",
    "TableState",
    "Txn",
    "UploadExpired",
    "Values",
    "Verification",
    "VersionNotKept",
    "Writer",
    "WriterIdentity",
    "apply",
    "carry_out",
    "check_replaced",
    "claim_epoch",
    "clean_up",
    "commit",
    "janitor",
    "kept_versions",
    "list_tables",
    "live_owner",
    "plan_clean_up",
    "rebase",
    "snapshot_due",
    "undisturbed",
    "unmoved",
    "verify",
    "version_as_of",
    "walk",
    "write_due_snapshot",
    "write_snapshot",
]
