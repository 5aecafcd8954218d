"""A running daemon receives malformed bytes and serves other clients as before."""

from __future__ import annotations

from tests.fuzz.attacked import Attacked
from tests.fuzz.attacks import ATTACKS, attack

EXAMPLES = 40


def test_mutated_batches_of_a_stream_do_no_harm(attacked: Attacked) -> None:
    attack(attacked, "daemon-batches", EXAMPLES)
    attacked.check()


def test_mutated_calls_do_no_harm(attacked: Attacked) -> None:
    attack(attacked, "daemon-calls", EXAMPLES)
    attacked.check()


def test_mutated_requests_to_the_status_server_do_no_harm(attacked: Attacked) -> None:
    attack(attacked, "daemon-http", EXAMPLES // 2)
    attacked.check()


def test_what_was_taken_of_all_that_is_persisted_and_read(attacked: Attacked) -> None:
    attack(attacked, "daemon-batches", EXAMPLES)
    attacked.check_persisted()
    assert set(ATTACKS) == {"daemon-batches", "daemon-calls", "daemon-http"}
