"""One new version of a table: changelog, then a commit that only one writer can create.

    changelog V_uid put ── create V.commit ──┬─ created            the parent is there: committed
                 ▲                           ├─ exists, our uid    an answer was lost: committed
                 │                           ├─ exists, another's  lost for ever: rebase, V+1
                 │                           └─ no answer          create the same again
                 └───────────── rebase ──────────┘

Law of this file: a proposal is committed at most once, whatever happens and however often it is
tried. While it is not known what became of an attempt, only that very attempt (the same version,
uid and bytes) may be made again: then a first request that arrives late does no harm. A new attempt
is made only after another's commit holds the name, which the old one can never get any more.

That holds as long as the caller keeps the ``Proposal`` object and tries with it again; what comes
of a process that dies meanwhile is told by ``applied`` (flushes), by the files to remove
(rewrites), by ``txn`` (foreign writers).

Where others commit to the table, too, the newest version is looked for before an attempt, which
would be lost else. Who has lost several in a row waits a moment: hundreds who begin at once would
ask for more requests a second than a store gives one prefix, S3 3,500 writes and 5,500 reads, and
pay twice as much. ``make simulation`` shows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from persist.manifest.actions import Action, WriterIdentity
from persist.manifest.errors import ActionRefused, CommitUnclear, ManifestDamaged, TableNotFound
from persist.manifest.files import (
    Commit,
    DamagedFile,
    decode_changelog,
    encode_commit,
    encode_new_changelog,
)
from persist.manifest.head import counts, is_parent, read_commit
from persist.manifest.lineage import replay
from persist.manifest.paths import changelog_path, commit_path
from persist.manifest.reading import Manifest
from persist.manifest.rebasing import Rebase, check_fence, check_sealed, rebase
from persist.manifest.state import EMPTY, TableState
from persist.store import AlreadyExists, StoreRetry, StoreUnavailable, retry

Fence = Callable[[TableState, WriterIdentity], None]


PATIENCE = StoreRetry(first_s=0.1, cap_s=2.0, attempts=5)
"""The time for which one call goes on asking a store that gives no clear answer."""

LOSSES_IN_A_ROW = 8
"""The lost attempts after which a writer waits before the next one."""
PAUSE_S = 1.0
"""The longest such wait; it is drawn anew each time. About six versions are committed in it."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    commit: Commit
    state: TableState  # what the table is if this attempt is committed
    data: bytes  # of the commit: created again, it is the same to the byte


class Proposal:
    """Actions to commit as a whole, and what is known of the attempts so far.

    Keep the object until ``commit`` returns or raises anything but ``CommitUnclear`` or a store's
    error; after those, pass it again. Used by one thread at a time.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        """Raises ``ValueError`` when there is nothing to commit."""
        if not actions:
            raise ValueError("a proposal needs at least one action")
        self.actions = tuple(actions)
        # Set before a commit is first created, and cleared only once another's holds its name.
        self._attempt: _Attempt | None = None

    @property
    def pending(self) -> tuple[int, str] | None:
        """The newest attempt that is not known to have failed, as (version, uid)."""
        attempt = self._attempt
        return (attempt.commit.version, attempt.commit.uid) if attempt is not None else None


def commit(
    manifest: Manifest,
    base: TableState | None,
    proposal: Proposal,
    writer: WriterIdentity,
    rebase: Rebase = rebase,
    *,
    fence: Fence = check_fence,
    patience: StoreRetry = PATIENCE,
    pause: Callable[[float], object] = time.sleep,
) -> TableState:
    """The state with the proposal in it. Blocks; repeating it with the same proposal is safe.

    Args:
        base: The newest state one has; None to look whether the table exists.
        rebase: Told each state before the proposal is tried on it, the first one included; returns
            what is still to be committed. When that is nothing, no version is made and the state
            that holds everything already is returned. It may raise to give up.
        fence: Told each state, too; raises when this writer must not commit to it. Whoever adopts
            a fenced writer's operations passes ``check_replaced``.
        pause: Lets seconds pass, for who has lost :data:`LOSSES_IN_A_ROW` attempts.

    Raises:
        Fenced: A newer process has the writer's identity.
        RewriteVoid, PartlyCovered, UploadExpired, ProposalConflict: From ``rebase``; nothing was
            committed.
        TableNotFound: What ``base`` is of was deleted.
        VersionSealed: Another table version takes this one's place; nothing was committed.
        ActionRefused: The actions make no sense; nothing was committed.
        CommitUnclear: Try again with the same proposal.
        StoreUnavailable: Likewise.
    """
    if proposal._attempt is not None:
        if (done := _finish_attempt(manifest, proposal, patience)) is not None:
            return done
        base = _newest(manifest, base)  # whose commit took the name is not in it yet
    state = base if base is not None else _newest(manifest, None)
    if base is not None and manifest.contended:
        state = _newest(manifest, base)
        manifest.contended = state is not base
    lost = 0
    while True:
        fence(state, writer)
        actions = rebase(state, proposal.actions)
        if not actions:
            return _existing(manifest, state)
        check_sealed(state, actions)
        attempt = _prepare(manifest, state, actions, writer)
        # From here on the commit may exist, also when this thread ends or the answer is lost.
        proposal._attempt = attempt
        if (done := _finish_attempt(manifest, proposal, patience)) is not None:
            return done
        manifest.contended = True
        lost += 1
        if lost >= LOSSES_IN_A_ROW:
            pause(Random().uniform(0, PAUSE_S))
        state = _newest(manifest, state)


def _prepare(
    manifest: Manifest, base: TableState, actions: tuple[Action, ...], writer: WriterIdentity
) -> _Attempt:
    """Write the changelog of a new attempt on top of ``base``; nothing is visible yet.

    Nonsense is refused before it is anywhere: committed, it would be there for ever.
    """
    version = base.version + 1
    uid, data = encode_new_changelog(base.lineage, version, actions)
    # From the bytes and not from the actions: what a writer holds is what readers will read.
    try:
        changelog = decode_changelog(data)
    except DamagedFile as exc:
        raise ActionRefused(f"an action has fields of the wrong type: {exc}") from exc
    try:
        state = replay(base, manifest.folder, ((version, uid),), [changelog])
    except ManifestDamaged as exc:
        raise ActionRefused(exc.reason) from exc
    info = manifest.store.put(changelog_path(manifest.folder, version, uid), data)
    record = Commit(
        version=version,
        uid=uid,
        parent=base.parent_uid,
        writer=writer,
        at=info.at.isoformat(),
    )
    return _Attempt(record, state, encode_commit(record))


def _finish_attempt(
    manifest: Manifest, proposal: Proposal, patience: StoreRetry
) -> TableState | None:
    """Make the pending attempt, again if need be; return its state, or None once it is lost.

    Raises:
        CommitUnclear: The store does not say; the attempt stays pending.
    """
    attempt = proposal._attempt
    assert attempt is not None
    version, uid = attempt.commit.version, attempt.commit.uid
    try:
        won = retry(partial(_create, manifest, attempt), patience)
    except StoreUnavailable as exc:
        raise CommitUnclear(version, uid, str(exc)) from exc
    if won:
        manifest.note(version)
        return attempt.state
    proposal._attempt = None
    return None


def _create(manifest: Manifest, attempt: _Attempt) -> bool:
    """Create the attempt's commit; return whether it won. ``StoreUnavailable``: not known."""
    path = commit_path(manifest.folder, attempt.commit.version)
    try:
        manifest.store.create(path, attempt.data)
    except AlreadyExists:
        found = read_commit(manifest.store, manifest.folder, attempt.commit.version)
        if found is None:
            raise StoreUnavailable(f"{path} exists and cannot be read") from None
        if found.uid != attempt.commit.uid:
            return False
    return _counts(manifest, attempt.commit)


def _counts(manifest: Manifest, made: Commit) -> bool:
    """Whether a commit of ours is in the table's history.

    A writer that slept through the clean-up of its parent could create a name that was in use
    before. Clean-up ascends, so as long as the parent is there, that cannot have happened.
    """
    if made.version == 1:
        return counts(manifest.store, manifest.folder, made)
    parent = read_commit(manifest.store, manifest.folder, made.version - 1)
    if parent is not None and parent.uid == made.parent:
        return True
    return is_parent(manifest.store, manifest.folder, made)


def _newest(manifest: Manifest, known: TableState | None) -> TableState:
    try:
        return manifest.load(known=known)
    except TableNotFound:
        if known is not None and known.version > 0:
            raise  # deleted since: whatever is committed on top of nothing is another table
        return replace(EMPTY, table_version=manifest.table_version)


def _existing(manifest: Manifest, state: TableState) -> TableState:
    if state.version == 0:
        raise TableNotFound(manifest.namespace, manifest.table)
    return state
