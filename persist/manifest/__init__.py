"""The list of a table's files, in versions that only one writer can create.

    Manifest(store, namespace, table)     .load  .refresh  .changes  .head  .object_path
    commit(manifest, base, Proposal(actions), writer)          the next version, exactly once
    write_snapshot, snapshot_due                               shorter reads, in background
    clean_up(manifest, Retention(…))                           delete what no kept version needs
    claim_epoch(store, ingester_id, …)                         a new epoch at each start
    last_claim(store, ingester_id)  tell_stop(store, …)        how the previous run ended
    list_tables(store)  tables_of(store, namespace)
    claim_version, list_versions, last_switch                  versions of the table as a whole

A version is a changelog of actions under a unique id, and a commit that names that id. Two
processes that both believe they own version 42 write two changelogs; the one whose commit is
created is version 42 for ever, and no reader can pick the other by mistake.

**Values.** `actions` are the changes of a version. `state` is a table at one version, immutable and
cheap with 100,000 files. `draft` applies actions to a state. `origins` records what clients have
written, and is the one place that decides whether a sequence is applied.

**Reading.** `paths` names the files, `files` encodes them, `lineage` finds the versions and reads
one. `reading` has the `Manifest`, and snapshots. `history` walks from version to
version.

**Writing.** `committing` makes the next version. If another writer was faster, `rebasing` decides
what of the proposal is left to commit. `claims` gives each start its epoch.

**Table versions.** Each has its own manifest. `table_versions` lists them and says which is
current; `persist.switching` moves from one to another.

**Maintenance.** `gc` plans and deletes; `retention` says which versions are kept, and `published`
pins versions for readers of published formats. `verifying` checks everything that is kept. `errors`
are sorted by who must act.

A committed version never changes, a proposal is committed at most once, and nothing is deleted that
a kept version needs (tests/persist/manifest). All calls block: no trio, and pyarrow only for zstd.
Names are from Spark's state store, whose checkpoint format v2 has the same structure. Start reading
at `committing`.
"""

from persist.manifest.actions import ACK as ACK
from persist.manifest.actions import CHANGEABLE as CHANGEABLE
from persist.manifest.actions import MAX_AGE as MAX_AGE
from persist.manifest.actions import PUBLISH as PUBLISH
from persist.manifest.actions import TRANSFORMERS as TRANSFORMERS
from persist.manifest.actions import Action as Action
from persist.manifest.actions import Add as Add
from persist.manifest.actions import Applied as Applied
from persist.manifest.actions import AppliedKey as AppliedKey
from persist.manifest.actions import CheckpointAction as CheckpointAction
from persist.manifest.actions import ColumnStats as ColumnStats
from persist.manifest.actions import EpochComplete as EpochComplete
from persist.manifest.actions import Horizon as Horizon
from persist.manifest.actions import Imported as Imported
from persist.manifest.actions import OriginAction as OriginAction
from persist.manifest.actions import OriginAhead as OriginAhead
from persist.manifest.actions import OriginExpired as OriginExpired
from persist.manifest.actions import OriginRun as OriginRun
from persist.manifest.actions import Owner as Owner
from persist.manifest.actions import PartitionKey as PartitionKey
from persist.manifest.actions import Properties as Properties
from persist.manifest.actions import Remove as Remove
from persist.manifest.actions import Schema as Schema
from persist.manifest.actions import Sealed as Sealed
from persist.manifest.actions import SharedState as SharedState
from persist.manifest.actions import Spec as Spec
from persist.manifest.actions import Txn as Txn
from persist.manifest.actions import Unsealed as Unsealed
from persist.manifest.actions import Values as Values
from persist.manifest.actions import WriterAction as WriterAction
from persist.manifest.actions import WriterIdentity as WriterIdentity
from persist.manifest.actions import push_mark as push_mark
from persist.manifest.claims import EpochClaim as EpochClaim
from persist.manifest.claims import claim_epoch as claim_epoch
from persist.manifest.claims import last_claim as last_claim
from persist.manifest.claims import newest_epoch as newest_epoch
from persist.manifest.claims import read_claim as read_claim
from persist.manifest.claims import tell_stop as tell_stop
from persist.manifest.committing import Proposal as Proposal
from persist.manifest.committing import commit as commit
from persist.manifest.committing import commit_patiently as commit_patiently
from persist.manifest.committing import one_time_writer as one_time_writer
from persist.manifest.draft import apply as apply
from persist.manifest.errors import ActionRefused as ActionRefused
from persist.manifest.errors import CommitUnclear as CommitUnclear
from persist.manifest.errors import Fenced as Fenced
from persist.manifest.errors import ManifestDamaged as ManifestDamaged
from persist.manifest.errors import ManifestError as ManifestError
from persist.manifest.errors import MomentNotKept as MomentNotKept
from persist.manifest.errors import NotReplaced as NotReplaced
from persist.manifest.errors import OriginMoved as OriginMoved
from persist.manifest.errors import PartitionsChanged as PartitionsChanged
from persist.manifest.errors import PartlyCovered as PartlyCovered
from persist.manifest.errors import ProposalConflict as ProposalConflict
from persist.manifest.errors import RewriteVoid as RewriteVoid
from persist.manifest.errors import SwitchedMeanwhile as SwitchedMeanwhile
from persist.manifest.errors import SwitchRefused as SwitchRefused
from persist.manifest.errors import TableNotFound as TableNotFound
from persist.manifest.errors import TableVersionNotKept as TableVersionNotKept
from persist.manifest.errors import TxnDiffers as TxnDiffers
from persist.manifest.errors import UploadExpired as UploadExpired
from persist.manifest.errors import VersionNotKept as VersionNotKept
from persist.manifest.errors import VersionSealed as VersionSealed
from persist.manifest.gc import CleanUp as CleanUp
from persist.manifest.gc import CleanUpPlan as CleanUpPlan
from persist.manifest.gc import Deleted as Deleted
from persist.manifest.gc import carry_out as carry_out
from persist.manifest.gc import clean_up as clean_up
from persist.manifest.gc import janitor as janitor
from persist.manifest.gc import plan_clean_up as plan_clean_up
from persist.manifest.gc import write_due_snapshot as write_due_snapshot
from persist.manifest.history import Removals as Removals
from persist.manifest.history import VersionStep as VersionStep
from persist.manifest.history import kept_versions as kept_versions
from persist.manifest.history import version_as_of as version_as_of
from persist.manifest.history import walk as walk
from persist.manifest.paths import version_folder as version_folder
from persist.manifest.published import Pin as Pin
from persist.manifest.published import read_pins as read_pins
from persist.manifest.published import remove_pin as remove_pin
from persist.manifest.published import write_pin as write_pin
from persist.manifest.reading import CommittedVersion as CommittedVersion
from persist.manifest.reading import Manifest as Manifest
from persist.manifest.reading import list_tables as list_tables
from persist.manifest.reading import snapshot_due as snapshot_due
from persist.manifest.reading import tables_of as tables_of
from persist.manifest.reading import write_snapshot as write_snapshot
from persist.manifest.rebasing import Rebase as Rebase
from persist.manifest.rebasing import check_replaced as check_replaced
from persist.manifest.rebasing import check_sealed as check_sealed
from persist.manifest.rebasing import check_uploads as check_uploads
from persist.manifest.rebasing import live_owner as live_owner
from persist.manifest.rebasing import rebase as rebase
from persist.manifest.rebasing import undisturbed as undisturbed
from persist.manifest.rebasing import unmoved as unmoved
from persist.manifest.retention import Retention as Retention
from persist.manifest.state import ALL_APPLIED as ALL_APPLIED
from persist.manifest.state import EMPTY as EMPTY
from persist.manifest.state import NOTHING_APPLIED as NOTHING_APPLIED
from persist.manifest.state import Lineage as Lineage
from persist.manifest.state import TableState as TableState
from persist.manifest.table_versions import GivenUpVersion as GivenUpVersion
from persist.manifest.table_versions import NumberedSwitch as NumberedSwitch
from persist.manifest.table_versions import Switch as Switch
from persist.manifest.table_versions import TableVersion as TableVersion
from persist.manifest.table_versions import VersionClaim as VersionClaim
from persist.manifest.table_versions import check_kept as check_kept
from persist.manifest.table_versions import claim_of as claim_of
from persist.manifest.table_versions import claim_version as claim_version
from persist.manifest.table_versions import current_version as current_version
from persist.manifest.table_versions import give_up_version as give_up_version
from persist.manifest.table_versions import known_versions as known_versions
from persist.manifest.table_versions import last_switch as last_switch
from persist.manifest.table_versions import list_versions as list_versions
from persist.manifest.table_versions import may_count as may_count
from persist.manifest.table_versions import switches as switches
from persist.manifest.table_versions import unfinished_claims as unfinished_claims
from persist.manifest.verifying import Verification as Verification
from persist.manifest.verifying import verify as verify
