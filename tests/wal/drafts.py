"""Drafts for tests: payloads that are joined into one entry."""

from __future__ import annotations

from collections.abc import Callable

from wal import Draft, Entry, LogWriteFailed, OrderedSession, RecordKind

END = b";"
Note = Callable[[object, BaseException | None], None]


class TextDraft(Draft):
    """One payload; it is unfit if it contains a question mark."""

    __slots__ = ("_note", "payload")

    def __init__(self, payload: bytes, note: Note, line: OrderedSession | None = None) -> None:
        super().__init__(len(payload), (line or OrderedSession(),))
        self.payload = payload
        self._note = note

    def answer(self, error: BaseException | None) -> None:
        self._note(self, error)


def join(drafts: list[Draft]) -> list[Entry]:
    """One entry of all fit drafts in sessions without a refusal, with a sequence for each."""
    fit = [draft for draft in drafts if isinstance(draft, TextDraft) and _is_fit(draft)]
    if not fit:
        return []
    entry = Entry(
        RecordKind.OPERATION,
        [draft.payload + END for draft in fit],
        sessions=tuple({one for draft in fit for one in draft.sessions}),
        operations=len(fit),
    )

    def done(_entry: object, error: BaseException | None) -> None:
        for draft in fit:
            draft.answer(error)

    entry.on_done = done
    return [entry]


def _is_fit(draft: TextDraft) -> bool:
    (session,) = draft.sessions
    if session.refusal is None and b"?" in draft.payload:
        session.refusal = LogWriteFailed(f"{draft.payload!r} is unfit")
    if session.refusal is not None:
        draft.answer(session.refusal)
    return session.refusal is None
