"""A push as a drawing from its record: each region's status over time, and the hooks' answers.

The functions are pure: equal records give byte-identical drawings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from xml.sax.saxutils import escape

from ingester.pushes.record import PushRecord
from ingester.pushes.states import Status

WIDTH = 920
LEFT, RIGHT = 96, 24
LANE, BAR = 44, 24
TITLE, AXIS = 66, 34
_STATUS = re.compile(f"({'|'.join(status.value for status in Status)})\\b")
_CLASS = re.compile(r"\w+(\.\w+)+:(?=[A-Za-z_])")
"""The module in front of a class name."""
_SAID = re.compile(r"(?P<method>\w+): (?P<hook>\S+): (?P<decision>wait|abort|rollback)\b")
_WIDE, _NARROW = 7.2, 5.8
"""The width of a letter within a bar, and below it."""
_MOMENT = timedelta(milliseconds=1)
TAIL = 1.15
"""The drawn time as a multiple of the push's duration."""
LONGEST = 120
"""The most letters of a note."""
STYLE = """
    .card { fill: #ffffff; stroke: #d0d7de; }
    text { fill: #1f2328; font-size: 13px; }
    .title { font-weight: 600; font-size: 15px; }
    .name { font-weight: 600; text-anchor: end; }
    .note { fill: #59636e; font-size: 12.5px; }
    .tick { fill: #59636e; font-size: 12px; text-anchor: middle; }
    .grid { stroke: #d0d7de; }
    .in { font-size: 12px; text-anchor: middle; }
    .hook { fill: #59636e; font-size: 11px; }
    .said { fill: #1f2328; stroke: #ffffff; }
    .STARTED { fill: #eaeef2; } .WRITING { fill: #b6e3ff; } .COMPLETED { fill: #ddf4ff; }
    .WAITING { fill: #fae17d; } .SERVING { fill: #aceebb; } .ROLLED_BACK { fill: #ffcecb; }
    .ABORTED { fill: #ffcecb; } .FAILED { fill: #ff8182; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #30363d; }
      text { fill: #e6edf3; }
      .note, .tick, .hook { fill: #9da7b3; }
      .grid { stroke: #30363d; }
      .said { fill: #e6edf3; stroke: #0d1117; }
      .STARTED { fill: #30363d; } .WRITING { fill: #0c2d6b; } .COMPLETED { fill: #16395f; }
      .WAITING { fill: #693e00; } .SERVING { fill: #0f5323; } .ROLLED_BACK { fill: #78191b; }
      .ABORTED { fill: #78191b; } .FAILED { fill: #b62324; }
    }"""


class Span(NamedTuple):
    """A region's status with its start and end, in seconds since the push began."""

    status: str
    begin_s: float
    end_s: float


class Mark(NamedTuple):
    """A hook's answer other than proceed."""

    at_s: float
    hook: str
    decision: str


class Lane(NamedTuple):
    """The drawn data of one region."""

    name: str
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]


def lane(record: PushRecord, name: str, end: datetime) -> Lane:
    """Return a region's statuses through a push that is drawn until ``end``."""
    began = record.began_at
    steps: list[tuple[str, float]] = [(Status.STARTED.value, 0.0)]
    marks = []
    for event in record.history:
        at_s = (event.at - began).total_seconds()
        if event.region != name:
            continue
        if status := _STATUS.match(event.what):
            steps.append((status[1], at_s))
        elif said := _SAID.match(event.what):
            marks.append(Mark(at_s, said["hook"].rpartition(":")[2], said["decision"]))
    ends = [*(at_s for _, at_s in steps[1:]), (end - began).total_seconds()]
    spans = tuple(Span(*step, end_s) for step, end_s in zip(steps, ends, strict=True))
    return Lane(name, spans, tuple(marks))


def drawing(title: str, text: str, pushes: Sequence[tuple[str, PushRecord]]) -> str:
    """Return an SVG of finished pushes, one below another, each with a heading."""
    parts: list[str] = []
    top = 0
    for heading, record in pushes:
        body, height = _push(heading, record, top)
        parts += body
        top += height
    height = top + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" role="img" aria-labelledby="title text"',
            "     font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">",
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="text">{escape(text)}</desc>',
            f"  <style>{STYLE}\n  </style>",
            f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}"'
            ' rx="10"/>',
            *(f"  {part}" for part in parts),
            "</svg>\n",
        ]
    )


def _push(heading: str, record: PushRecord, top: int) -> tuple[list[str], int]:
    """Return the elements of one push, and their height."""
    assert record.ended_at is not None
    end = record.began_at + max(record.ended_at - record.began_at, _MOMENT) * TAIL
    total_s = (end - record.began_at).total_seconds()
    scale = (WIDTH - LEFT - RIGHT) / total_s
    note = f"push {record.push_id} of {record.namespace}.{record.table}: {record.status.value}"
    if record.ending is not None:
        note = f"{note}; {_CLASS.sub('', record.ending.reason)}"
    parts = [
        f'<text class="title" x="{LEFT - 72}" y="{top + 30}">{escape(heading)}</text>',
        f'<text class="note" x="{LEFT - 72}" y="{top + 50}">{escape(_cut(note))}</text>',
    ]
    bottom = top + TITLE + LANE * len(record.regions)
    step_s = _round_step(total_s)
    for number in range(int(total_s / step_s) + 1):
        x = LEFT + number * step_s * scale
        parts.append(f'<path class="grid" d="M{x:.1f} {top + TITLE - 4}V{bottom}"/>')
        label = f"{number * step_s:g} s"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}">{label}</text>')
    for number, region in enumerate(record.regions):
        parts += _lane(lane(record, region.name, end), top + TITLE + LANE * number, scale)
    return parts, TITLE + LANE * len(record.regions) + AXIS


def _lane(drawn: Lane, y: int, scale: float) -> list[str]:
    parts = [f'<text class="name" x="{LEFT - 12}" y="{y + 17}">{escape(drawn.name)}</text>']
    for status, begin_s, end_s in drawn.spans:
        x, width = LEFT + begin_s * scale, (end_s - begin_s) * scale
        if width < 0.5:
            continue
        parts.append(
            f'<rect class="{status}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}">'
            f"<title>{status}, {begin_s:.2f} s to {end_s:.2f} s</title></rect>"
        )
        if width > len(status) * _WIDE + 6:
            middle = x + width / 2
            parts.append(f'<text class="in" x="{middle:.1f}" y="{y + 16}">{status}</text>')
    for mark in drawn.marks:
        x = LEFT + mark.at_s * scale
        parts.append(f'<circle class="said" cx="{x:.1f}" cy="{y + BAR}" r="3.5"/>')
    return parts + _labels(drawn.marks, y + BAR + 12, scale)


def _labels(marks: Sequence[Mark], y: int, scale: float) -> list[str]:
    """Return each answer of hooks once; if space is short, only the last ones."""
    first: dict[str, float] = {}
    for mark in marks:
        first.setdefault(f"{mark.hook}: {mark.decision}", LEFT + mark.at_s * scale + 7)
    parts, room = [], float(WIDTH)
    for said, x in reversed(first.items()):
        begin = min(x, WIDTH - RIGHT - len(said) * _NARROW)
        if begin + len(said) * _NARROW <= room:
            parts.append(f'<text class="hook" x="{begin:.1f}" y="{y}">{escape(said)}</text>')
            room = begin
    return parts


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _round_step(total_s: float) -> float:
    """Return an interval between ticks that gives at most a dozen of them."""
    for step_s in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0):
        if total_s / step_s <= 12:
            return step_s
    return 3600.0
