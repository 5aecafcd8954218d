"""A seed of the storm draws the same steps again."""

from __future__ import annotations

import pytest

from tests.postgres.storm.model import Yard
from tests.postgres.storm.transactions import draw


@pytest.mark.parametrize("number", [0])
def test_a_seed_draws_the_same_steps_again(number: int) -> None:
    one, other = Yard(number, 5), Yard(number, 5)
    steps = [draw(one).statements for _ in range(400)]
    assert steps == [draw(other).statements for _ in range(400)]
    text = "\n".join(statement for step in steps for statement in step)
    for what in ("ATTACH", "RENAME", "TRUNCATE", "SAVEPOINT", "USING", "DEFERRABLE", "SET SCHEMA"):
        assert what in text
