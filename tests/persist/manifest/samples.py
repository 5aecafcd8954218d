"""Small tables and proposals for tests, and hypothesis strategies for them."""

from __future__ import annotations

from hypothesis import strategies as st

from persist.manifest import (
    Action,
    Add,
    Applied,
    CheckpointAction,
    ColumnStats,
    EpochComplete,
    Horizon,
    Imported,
    Manifest,
    OriginAction,
    OriginAhead,
    OriginExpired,
    OriginRun,
    Owner,
    PartitionKey,
    Properties,
    Proposal,
    Remove,
    Schema,
    Sealed,
    Spec,
    TableState,
    Txn,
    Unsealed,
    Values,
    WriterAction,
    WriterIdentity,
    apply,
    commit,
)
from persist.manifest.actions import SequenceContent
from persist.manifest.origins import Process, runs_of, verdict_of
from persist.store import StoreRetry

DAY: Values = ("2026-11-21",)
ME = WriterIdentity(ingester_id="me", incarnation="first", epoch=1)
OTHER = WriterIdentity("other", "run", 5)
IMPATIENT = StoreRetry(first_s=1e-9, cap_s=1e-9, attempts=3)

DEFINITION: tuple[Action, ...] = (
    Schema(schema_id=1, arrow="AAAA"),
    Spec(spec_id=1, fields=("day(time)",)),
    Properties(values={"primary_key": [], "timestamp_unit": "us"}),
)


def add(
    path: str,
    first_seq: int = 1,
    last_seq: int | None = None,
    *,
    writer: WriterIdentity = ME,
    kind: str = "persist",
    values: Values = DAY,
) -> Add:
    """A file of ten rows with the operations ``first_seq..last_seq`` of ``writer``."""
    return Add(
        path=path,
        kind=kind,  # type: ignore[arg-type]
        rows=10,
        bytes=1000,
        spec_id=1,
        values=values,
        stats={"v": ColumnStats(min=1, max=2.5, nulls=0)},
        writer=writer.ingester_id,
        epoch=writer.epoch,
        first_seq=first_seq,
        last_seq=first_seq if last_seq is None else last_seq,
        schema_id=1,
        at="2026-11-21T00:00:00+00:00",
    )


def applied(seq: int, *, writer: WriterIdentity = ME, values: Values = DAY) -> Applied:
    """All of the partition's operations up to ``seq`` are in files."""
    return Applied(writer.ingester_id, writer.epoch, 1, values, seq)


def persist(seq: int, *, writer: WriterIdentity = ME) -> tuple[Action, ...]:
    """What the flush of one operation commits: its file and its last sequence."""
    path = f"data/{writer.ingester_id}-{writer.epoch}-{seq}.parquet"
    return (add(path, seq, writer=writer), applied(seq, writer=writer))


def table(manifest: Manifest, versions: int = 1) -> TableState:
    """A new table: version 1 defines it, each later version flushes one operation."""
    state = commit(manifest, None, Proposal(DEFINITION), ME, patience=IMPATIENT)
    return grown(manifest, state, versions - 1)


def grown(
    manifest: Manifest, state: TableState, versions: int, *, writer: WriterIdentity = ME
) -> TableState:
    """The table after ``versions`` more versions, each of which flushes the next operation."""
    for _ in range(versions):
        seq = max(state.applied_to(writer.ingester_id, writer.epoch, 1, DAY), 0) + 1
        proposal = Proposal(persist(seq, writer=writer))
        state = commit(manifest, state, proposal, writer, patience=IMPATIENT)
    return state


def history(manifest: Manifest, versions: int) -> list[TableState]:
    """The states of all versions of a new table; state V at index V - 1."""
    states = [table(manifest)]
    while len(states) < versions:
        states.append(grown(manifest, states[-1], 1))
    return states


def grown_in_memory(state: TableState) -> TableState:
    """A state that was never committed."""
    return apply(state, persist(777))


def put_in(
    manifest: Manifest, base: TableState | None, proposal: Proposal, who: WriterIdentity = ME
) -> TableState:
    """Commit without waiting between attempts."""
    return commit(manifest, base, proposal, who, patience=IMPATIENT)


def fresh(manifest: Manifest) -> Manifest:
    """A new reader of the same table, without any known state."""
    return Manifest(manifest.store, manifest.namespace, manifest.table)


_int64 = st.integers(-(2**63), 2**63 - 1)
_seqs = st.integers(0, 2**63 - 2)
_ids = st.integers(0, 2**31)
_text = st.text(max_size=12)
_floats = st.floats(allow_nan=False, allow_infinity=False)
_value = st.none() | st.booleans() | _int64 | _text
_values = st.lists(_value, max_size=3).map(tuple)
_bound = st.none() | st.booleans() | _int64 | _floats | _text
_stats = st.builds(ColumnStats, min=_bound, max=_bound, nulls=st.none() | _seqs)
_ahead = st.lists(st.builds(OriginAhead, _ids, _values, _seqs), max_size=2).map(tuple)
_run = st.builds(OriginRun, _seqs, _text, _ids, st.none() | _seqs, _ahead)
_runs = st.lists(_run, max_size=2).map(tuple)

_content = st.builds(SequenceContent, _seqs, _seqs, st.integers(0, 2**64 - 1))
_contents = st.lists(_content, max_size=2).map(tuple)
_why = st.sampled_from(["swap", "rollback"])

any_add = st.builds(
    Add,
    path=_text,
    kind=st.sampled_from(["persist", "rewrite", "push"]),
    rows=_seqs,
    bytes=_seqs,
    spec_id=_ids,
    values=_values,
    stats=st.dictionaries(_text, _stats, max_size=3),
    writer=_text,
    epoch=_ids,
    first_seq=_seqs,
    last_seq=_seqs,
    schema_id=_ids,
    at=_text,
)
any_action: st.SearchStrategy[Action] = st.one_of(
    any_add,
    st.builds(Remove, _text, _text),
    st.builds(Schema, _ids, _text),
    st.builds(Spec, _ids, st.lists(_text, max_size=2).map(tuple)),
    st.builds(
        Properties,
        st.dictionaries(_text, st.none() | st.booleans() | _int64 | st.lists(_text), max_size=2),
    ),
    st.builds(WriterAction, _text, _text, _ids, st.sampled_from(["open", "closed"])),
    st.builds(Owner, _text, _ids),
    st.builds(Applied, _text, _ids, _ids, _values, _seqs),
    st.builds(EpochComplete, _text, _ids),
    st.builds(
        OriginAction,
        _text,
        _text,
        _ids,
        st.none() | _seqs,
        _ahead,
        _runs,
        st.none() | _text,
        _contents,
    ),
    st.builds(OriginExpired, _text, st.none() | _text),
    st.builds(CheckpointAction, _text, st.none() | _text),
    st.builds(Horizon, _text),
    st.builds(Txn, _text, _seqs, _contents),
    st.builds(Sealed, _ids, _ids, st.none() | _text, _why, st.booleans()),
    st.builds(Unsealed, _ids),
    st.builds(Imported, _ids, _seqs, _text, _ids, _seqs),
)


def in_files(origin: OriginAction | None, sequence: int, partition: PartitionKey) -> bool:
    """Whether a version records that a partition's rows of a sequence are in files."""
    return verdict_of(runs_of(origin), sequence, None, partition).durable


def may_commit(origin: OriginAction | None, sequence: int, process: Process) -> bool:
    """Whether a version allows a process to commit a sequence."""
    return verdict_of(runs_of(origin), sequence, process).own
