"""The manifest's errors, by who must act.

The caller plans again: ``RewriteVoid``, ``PartitionsChanged``, ``PartlyCovered``,
``UploadExpired``, ``OriginMoved``, ``ProposalConflict``, ``ActionRefused``; on the current table
version for ``VersionSealed`` and ``SwitchedMeanwhile``. The caller asked for something that does
not exist: ``TableNotFound``, ``VersionNotKept``, ``MomentNotKept``, ``TableVersionNotKept``,
``SwitchRefused``. The caller tries the same again later: ``CommitUnclear``. An adoption takes the
identity over first: ``NotReplaced``. The process stops: ``Fenced``. An operator looks:
``ManifestDamaged``.

An unreachable store raises its own ``StoreUnavailable``, except if a commit may or may not have
happened, which is ``CommitUnclear``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from persist.manifest.actions import Add, AppliedKey, PartitionKey, Sealed, SequenceContent
from persist.manifest.state import TableState


class ManifestError(Exception):
    """The base of this package's errors."""


class TableNotFound(ManifestError):
    """No version of the table was ever committed."""

    def __init__(self, namespace: str, table: str) -> None:
        super().__init__(f"table {namespace}/{table} does not exist")
        self.namespace = namespace
        self.table = table


class VersionNotKept(ManifestError):
    """The version is older than the kept ones, or newer than the newest."""

    def __init__(self, version: int, oldest: int, newest: int) -> None:
        super().__init__(f"version {version} is not kept: the kept versions are {oldest}..{newest}")
        self.version = version
        self.oldest = oldest
        self.newest = newest


class MomentNotKept(ManifestError):
    """The table had no version at that time, or none that is still kept."""

    def __init__(self, moment: str, oldest: int, at: str) -> None:
        super().__init__(
            f"no version of {moment} is kept: the oldest kept version, {oldest}, is of {at}"
        )
        self.oldest = oldest


class TableVersionNotKept(ManifestError):
    """The table version was never made, was given up, or is deleted."""

    def __init__(self, namespace: str, table: str, version: int, kept: Collection[int]) -> None:
        known = ", ".join(map(str, sorted(kept))) or "none"
        super().__init__(
            f"table {namespace}/{table} has no table version {version}; existing versions: {known}"
        )
        self.table_version = version


class VersionSealed(ManifestError):
    """Another table version replaces this one: plan the commit again on that one."""

    def __init__(self, sealed: Sealed) -> None:
        super().__init__(
            f"the table version is sealed: table version {sealed.next} replaces it"
            f" (push {sealed.push_id}, {sealed.why})"
        )
        self.sealed = sealed


class SwitchedMeanwhile(ManifestError):
    """Another process has switched the table since this switch began."""

    def __init__(self, namespace: str, table: str, switch: int) -> None:
        super().__init__(
            f"another process has switched table {namespace}/{table}: switch {switch} is over"
        )
        self.switch = switch


class SwitchRefused(ManifestError):
    """The table cannot be switched to this version; nothing was changed."""

    def __init__(self, namespace: str, table: str, version: int, reason: str) -> None:
        super().__init__(
            f"table {namespace}/{table} cannot be switched to version {version}: {reason}"
        )
        self.table_version = version


class ManifestDamaged(ManifestError):
    """A file that a version needs is missing or damaged, and nothing else covers it."""

    def __init__(self, path: str, version: int, uid: str, reason: str) -> None:
        super().__init__(f"manifest file {path} (version {version}, uid {uid}): {reason}")
        self.path = path
        self.version = version
        self.uid = uid
        self.reason = reason


class ActionRefused(ManifestError):
    """An action is inconsistent with the state, which is unchanged."""


class Fenced(ManifestError):
    """Another process took over this ingester's identity: commit nothing more, and stop."""

    def __init__(self, ingester_id: str, epoch: int, by_epoch: int, by_incarnation: str) -> None:
        super().__init__(
            f"ingester {ingester_id!r} with epoch {epoch} was replaced by epoch {by_epoch}"
            f" (incarnation {by_incarnation})"
        )
        self.ingester_id = ingester_id
        self.epoch = epoch
        self.by_epoch = by_epoch
        self.by_incarnation = by_incarnation


class NotReplaced(ManifestError):
    """No process has taken over the identity, so others may not commit its operations."""

    def __init__(self, ingester_id: str, epoch: int) -> None:
        super().__init__(
            f"ingester {ingester_id!r} with epoch {epoch} was not replaced: the table's manifest"
            " has no newer epoch"
        )
        self.ingester_id = ingester_id
        self.epoch = epoch


class RewriteVoid(ManifestError):
    """Files that the proposal removes are gone: plan the rewrite again on the newer state."""

    def __init__(self, paths: tuple[str, ...], version: int) -> None:
        super().__init__(
            f"{len(paths)} files to remove are not in version {version}, the first is {paths[0]}"
        )
        self.paths = paths
        self.version = version


class TxnDiffers(ManifestError):
    """A version of a foreign writer was committed with other rows, or is not known.

    Attributes:
        newest: The newest version that the writer has committed.
        sent: The content of the proposal; its ``sequence`` is the version.
        known: The committed content; None if this version was never committed, or its content is
            not kept.
    """

    def __init__(
        self, app_id: str, newest: int, sent: SequenceContent, known: SequenceContent | None
    ) -> None:
        what = "is not known" if known is None else f"has {known.rows} other rows"
        super().__init__(
            f"version {sent.sequence} of {app_id!r} with {sent.rows} rows: the newest is {newest},"
            f" and version {sent.sequence} {what}"
        )
        self.newest = newest
        self.sent = sent
        self.known = known


class PartlyCovered(ManifestError):
    """Some operations in these adds are committed already: encode them without those.

    Attributes:
        adds: The proposal's adds that hold both covered and other operations.
        covered: Per (ingester id, epoch, spec id, partition values) the last covered sequence;
            higher ones are still to be committed.
    """

    def __init__(self, adds: tuple[Add, ...], covered: Mapping[AppliedKey, int]) -> None:
        super().__init__(
            f"{len(adds)} files contain operations that are already committed,"
            f" the first is {adds[0].path}"
        )
        self.adds = adds
        self.covered = dict(covered)


class UploadExpired(ManifestError):
    """Files were uploaded before the newest horizon and may be deleted: upload them again."""

    def __init__(self, adds: tuple[Add, ...], horizon: str) -> None:
        super().__init__(
            f"{len(adds)} files were uploaded before the garbage collection horizon {horizon},"
            f" the first is {adds[0].path} ({adds[0].at})"
        )
        self.adds = adds
        self.horizon = horizon


class PartitionsChanged(ManifestError):
    """Partitions have other files than the proposal was made for; ``state`` has them."""

    def __init__(self, partitions: Collection[PartitionKey], state: TableState) -> None:
        super().__init__(
            f"{len(partitions)} partitions have other files in version {state.version}"
        )
        self.partitions = frozenset(partitions)
        self.state = state


class OriginMoved(ManifestError):
    """Another process has written to an origin of the proposal; ``state`` is the current state."""

    def __init__(self, name: str, state: TableState) -> None:
        super().__init__(f"origin {name!r} has changed in version {state.version}")
        self.state = state


class ProposalConflict(ManifestError):
    """Another process changed the table's definition meanwhile; ``state`` is the current state."""

    def __init__(self, reason: str, state: TableState) -> None:
        super().__init__(reason)
        self.state = state


class CommitUnclear(ManifestError):
    """The commit may or may not have happened, and the store does not say.

    Keep the proposal and pass the same object to ``commit`` again: it finds out first.
    """

    def __init__(self, version: int, uid: str, reason: str) -> None:
        super().__init__(f"commit of version {version} (uid {uid}) was not answered: {reason}")
        self.version = version
        self.uid = uid
