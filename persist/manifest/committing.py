"""Commits one new version of a table: a changelog, then a commit that only one writer can create.

    changelog V_uid put ── create V.commit ──┬─ created            the parent exists: committed
                 ▲                           ├─ exists, our uid    an answer was lost: committed
                 │                           ├─ exists, another's  lost for ever: rebase, V+1
                 │                           └─ no answer          create the same again
                 └───────────── rebase ──────────┘

A proposal is committed at most once, however often it is tried (test_commit_unclear.py). While the
outcome of an attempt is unknown, only that very attempt (version, uid and bytes) is repeated, so a
request that arrives late does no harm. A new attempt is made only after another commit holds the
name, which the old attempt can then never get.

The caller keeps the ``Proposal`` object and retries with it. If the process dies meanwhile, the
outcome shows in ``applied`` (flushes), in the files to remove (rewrites) or in ``txn`` (foreign
writers).

If other processes commit to the table, the newest version is loaded before an attempt, which would
otherwise be lost. A writer that has lost several attempts in a row pauses: hundreds of writers that
begin at once would exceed the requests per second that a store allows for one prefix (on S3 3,500
writes and 5,500 reads). ``make simulation`` shows both.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from persist.manifest.actions import Action, WriterIdentity
from persist.manifest.errors import ActionRefused, CommitUnclear, ManifestDamaged, TableNotFound
from persist.manifest.files import (
    CommitRecord,
    DamagedFile,
    decode_changelog,
    encode_commit,
    encode_new_changelog,
)
from persist.manifest.lineage import counts, is_parent, read_commit, replay
from persist.manifest.paths import changelog_path, commit_path
from persist.manifest.reading import Manifest
from persist.manifest.rebasing import Rebase, check_fence, check_sealed, rebase
from persist.manifest.state import EMPTY, TableState
from persist.store import AlreadyExists, StoreRetry, StoreUnavailable, retry

Fence = Callable[[TableState, WriterIdentity], None]


PATIENCE = StoreRetry(first_s=0.1, cap_s=2.0, attempts=5)
"""How long one call retries a store that gives no clear answer."""

LONG_PATIENCE = StoreRetry(
    first_s=0.1, cap_s=5.0, unreachable=(StoreUnavailable, CommitUnclear), for_s=120.0
)
"""How long a job without a daemon retries while the store gives no clear answer."""

LOSSES_IN_A_ROW = 8
"""After this many lost attempts a writer pauses before the next one."""
PAUSE_S = 1.0
"""The longest pause, drawn at random. About six versions are committed in it."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    commit: CommitRecord
    state: TableState  # what the table is if this attempt is committed
    data: bytes  # of the commit; a repeated create has the same bytes


class Proposal:
    """Actions to commit as a whole, and what is known of the attempts so far.

    Keep the object until ``commit`` returns or raises anything but ``CommitUnclear`` or a store's
    error; after those, pass it again. Used by one thread at a time.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        """Raises ``ValueError`` if there are no actions."""
        if not actions:
            raise ValueError("a proposal needs at least one action")
        self.actions = tuple(actions)
        # Set before a commit is first created; cleared only once another commit holds its name.
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
        base: The newest known state; None to find out whether the table exists.
        rebase: Called with each state before the proposal is tried on it, including the first;
            returns the actions still to be committed. If there are none, no version is made, and
            the state that holds them is returned. It may raise to give up.
        fence: Called with each state; raises if this writer must not commit to it. An adoption of a
            fenced writer's operations passes ``check_replaced``.
        pause: Waits for seconds, after :data:`LOSSES_IN_A_ROW` lost attempts.

    Raises:
        Fenced: A newer process has the writer's identity.
        RewriteVoid, PartlyCovered, UploadExpired, ProposalConflict: From ``rebase``; nothing was
            committed.
        TableNotFound: The table of ``base`` was deleted.
        VersionSealed: Another table version replaces this one; nothing was committed.
        ActionRefused: The actions are inconsistent; nothing was committed.
        CommitUnclear: Try again with the same proposal.
        StoreUnavailable: Try again with the same proposal.
    """
    if proposal._attempt is not None:
        if (done := _finish_attempt(manifest, proposal, patience)) is not None:
            return done
        base = _newest(manifest, base)  # includes the commit that took the name
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
        # From here on the commit may exist, even if this thread ends or the answer is lost.
        proposal._attempt = attempt
        if (done := _finish_attempt(manifest, proposal, patience)) is not None:
            return done
        manifest.contended = True
        lost += 1
        if lost >= LOSSES_IN_A_ROW:
            pause(Random().uniform(0, PAUSE_S))
        state = _newest(manifest, state)


def one_time_writer(name: str) -> WriterIdentity:
    """The identity of one run of a job. No daemon has such an id, so it fences none."""
    return WriterIdentity(ingester_id=f"_{name}", incarnation=uuid.uuid4().hex, epoch=0)


def commit_patiently(
    manifest: Manifest,
    base: TableState | None,
    actions: Sequence[Action],
    writer: WriterIdentity,
) -> TableState:
    """Commit the actions, retrying transient errors; the version that has them.

    Raises:
        RewriteVoid, UploadExpired, ProposalConflict: As :func:`commit`.
        StoreUnavailable, CommitUnclear: After two minutes. The commit may have succeeded.
    """
    return retry(partial(commit, manifest, base, Proposal(actions), writer), LONG_PATIENCE)


def _prepare(
    manifest: Manifest, base: TableState, actions: tuple[Action, ...], writer: WriterIdentity
) -> _Attempt:
    """Write the changelog of a new attempt on top of ``base``; nothing is visible yet.

    Inconsistent actions are refused before anything is written, because a commit is for ever.
    """
    version = base.version + 1
    uid, data = encode_new_changelog(base.lineage, version, actions)
    # Decoded from the bytes, so that the writer holds what readers will read.
    try:
        changelog = decode_changelog(data)
    except DamagedFile as exc:
        raise ActionRefused(f"an action has fields of the wrong type: {exc}") from exc
    try:
        state = replay(base, manifest.folder, ((version, uid),), [changelog])
    except ManifestDamaged as exc:
        raise ActionRefused(exc.reason) from exc
    info = manifest.store.put(changelog_path(manifest.folder, version, uid), data)
    record = CommitRecord(
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
    """Create the pending attempt, repeatedly if needed; return its state, or None once it is lost.

    Raises:
        CommitUnclear: The store gives no clear answer; the attempt stays pending.
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


def _counts(manifest: Manifest, made: CommitRecord) -> bool:
    """Whether a commit of ours is in the table's history.

    A writer that was paused during the deletion of its parent could create a name that was used
    before. Commits are deleted in ascending order, so while the parent exists that has not
    happened.
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
            raise  # deleted since: a commit would create another table
        return replace(EMPTY, table_version=manifest.table_version)


def _existing(manifest: Manifest, state: TableState) -> TableState:
    if state.version == 0:
        raise TableNotFound(manifest.namespace, manifest.table)
    return state
