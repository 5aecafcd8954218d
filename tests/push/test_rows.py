"""The judge of answers finds planted faults."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.push.rows import COLUMNS, Mixed, Seen, edition, seen, streamed


def answer(*parts: pa.Table | pa.RecordBatch) -> pa.Table:
    tables = [p if isinstance(p, pa.Table) else pa.Table.from_batches([p]) for p in parts]
    return pa.concat_tables(tables).select(COLUMNS)


def test_a_whole_answer_is_of_one_edition() -> None:
    found = seen(answer(streamed(range(3)), edition(2), streamed(range(7, 8))))
    assert found == Seen(2, frozenset({0, 1, 2, 7}))


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([edition(1), edition(2)], "there should be one"),
        ([streamed(range(3))], "there should be one"),
        ([edition(1).slice(1)], "each once"),
        ([edition(1), edition(1).slice(0, 1)], "each once"),
        ([edition(1).slice(1), edition(1).slice(3, 1)], "each once"),
        ([edition(1), streamed(range(3)), streamed(range(2, 4))], "more than once: \\[2\\]"),
    ],
    ids=["mixed", "none", "cut", "one too many", "one twice for another", "streamed twice"],
)
def test_an_answer_that_is_not_whole_is_told(parts: list[pa.Table], fault: str) -> None:
    with pytest.raises(Mixed, match=fault):
        seen(answer(*parts))
