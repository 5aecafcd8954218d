"""The errors of a manifest, by who must act.

The caller plans anew: ``RewriteVoid``, ``PartitionsChanged``, ``PartlyCovered``, ``UploadExpired``,
``OriginMoved``, ``ProposalConflict``, ``ActionRefused``; ``VersionSealed``, ``SwitchedMeanwhile``:
on the table version that counts by now.
The caller asks for something that is not there: ``TableNotFound``, ``VersionNotKept``,
``MomentNotKept``, ``TableVersionNotKept``, ``SwitchRefused``.
The caller tries the same again later: ``CommitUnclear``.
An adoption takes the identity over first: ``NotReplaced``.
The process stops: ``Fenced``. An operator looks: ``ManifestDamaged``.

A store that cannot be reached raises its own ``StoreUnavailable``, never one of these, except where
a commit may or may not have happened: that is ``CommitUnclear``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from persist.manifest.actions import Add, AppliedKey, PartitionKey, Sealed
from persist.manifest.state import TableState


class ManifestError(Exception):
    """Root of everything that this package raises by itself."""


class TableNotFound(ManifestError):
    """No version of the table was ever committed."""

    def __init__(self, namespace: str, table: str) -> None:
        super().__init__(f"table {namespace}/{table} does not exist")
        self.namespace = namespace
        self.table = table


class VersionNotKept(ManifestError):
    """The version is older than what is kept, or newer than the newest."""

    def __init__(self, version: int, oldest: int, newest: int) -> None:
        super().__init__(f"version {version} is not kept: the kept versions are {oldest}..{newest}")
        self.version = version
        self.oldest = oldest
        self.newest = newest


class MomentNotKept(ManifestError):
    """The table had no version then, or only such as are not kept any more."""

    def __init__(self, moment: str, oldest: int, at: str) -> None:
        super().__init__(
            f"no version of {moment} is kept: the oldest kept one, {oldest}, is of {at}"
        )
        self.oldest = oldest


class TableVersionNotKept(ManifestError):
    """The table has no such table version: it was never made, was given up, or is deleted."""

    def __init__(self, namespace: str, table: str, version: int, kept: Collection[int]) -> None:
        known = ", ".join(map(str, sorted(kept))) or "none"
        super().__init__(
            f"table {namespace}/{table} has no table version {version}: there are {known}"
        )
        self.table_version = version


class VersionSealed(ManifestError):
    """Another table version takes this one's place: plan the commit anew on that one."""

    def __init__(self, sealed: Sealed) -> None:
        super().__init__(
            f"the table version is sealed: table version {sealed.next} takes its place"
            f" (push {sealed.push_id}, {sealed.why})"
        )
        self.sealed = sealed


class SwitchedMeanwhile(ManifestError):
    """Somebody else has switched the table to another version since this switch began."""

    def __init__(self, namespace: str, table: str, switch: int) -> None:
        super().__init__(
            f"table {namespace}/{table} was switched by somebody else: switch {switch} is over"
        )
        self.switch = switch


class SwitchRefused(ManifestError):
    """The table cannot be switched to this version; nothing was changed."""

    def __init__(self, namespace: str, table: str, version: int, reason: str) -> None:
        super().__init__(f"table {namespace}/{table} cannot go to version {version}: {reason}")
        self.table_version = version


class ManifestDamaged(ManifestError):
    """A file that a version needs is missing or does not check out, and nothing else covers it."""

    def __init__(self, path: str, version: int, uid: str, reason: str) -> None:
        super().__init__(f"manifest file {path} (version {version}, uid {uid}): {reason}")
        self.path = path
        self.version = version
        self.uid = uid
        self.reason = reason


class ActionRefused(ManifestError):
    """An action makes no sense on the state that it is applied to; the state is unchanged."""


class Fenced(ManifestError):
    """Another process took this ingester's identity over: commit nothing more, and stop."""

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
    """Nobody has taken the identity over: its operations are not for others to commit."""

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


class PartlyCovered(ManifestError):
    """Some operations in these adds are in other files already: encode them without those.

    Attributes:
        adds: The adds of the proposal that hold covered and other operations.
        covered: Per (ingester id, epoch, spec id, partition values) the last covered sequence:
            whatever is above it is still to be committed.
    """

    def __init__(self, adds: tuple[Add, ...], covered: Mapping[AppliedKey, int]) -> None:
        super().__init__(
            f"{len(adds)} files hold operations that are committed already,"
            f" the first is {adds[0].path}"
        )
        self.adds = adds
        self.covered = dict(covered)


class UploadExpired(ManifestError):
    """Files were uploaded before the newest horizon: clean-up may have them, upload them again."""

    def __init__(self, adds: tuple[Add, ...], horizon: str) -> None:
        super().__init__(
            f"{len(adds)} files were uploaded before the horizon {horizon} of the table's clean-up,"
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
    """Somebody else has written to an origin of the proposal; ``state`` is what is there now."""

    def __init__(self, name: str, state: TableState) -> None:
        super().__init__(f"origin {name!r} is another in version {state.version}")
        self.state = state


class ProposalConflict(ManifestError):
    """Somebody else defined the table otherwise meanwhile; ``state`` is what is there now."""

    def __init__(self, reason: str, state: TableState) -> None:
        super().__init__(reason)
        self.state = state


class CommitUnclear(ManifestError):
    """The commit may or may not have happened, and the store does not say.

    Keep the proposal and pass the same object to ``commit`` again: it finds out first.
    """

    def __init__(self, version: int, uid: str, reason: str) -> None:
        super().__init__(f"commit of version {version} (uid {uid}) got no answer: {reason}")
        self.version = version
        self.uid = uid
