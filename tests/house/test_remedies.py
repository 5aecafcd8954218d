"""Every error that advises an option or a command names it here, with the test that follows it.

An error whose advice does not help is worse than one without advice. A new message with an option
(``--name``) or a command (```ingester name```) after an imperative needs an entry: the words of its
advice, and a test that does as they say and then succeeds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLI = "tests/cli/test_remedies.py::test_the_advice_of_an_error_is_followed_and_helps"
START = "tests/cli/test_remedies.py::test_a_refused_start_succeeds_as_it_says"
COLUMNS = "tests/cli/test_remedies.py::test_a_column_that_a_copy_cannot_hold_is_left_out"
CRASHES = (
    "tests/postgres/test_crashes.py::test_a_row_that_crashes_the_server_is_read_a_few_times_and"
    "_never_again"
)
LOST_SLOT = (
    "tests/postgres/test_kinds_refused.py::test_a_lost_slot_is_refused_each_time_until_all_is"
    "_copied_anew"
)
ADOPTED = (
    "tests/fencing/test_adopting.py::test_a_dead_daemons_log_is_adopted_and_replays_nothing"
    "_afterwards"
)
_MORE = "tests/cli/test_remedies.py::"
SECURED = f"{_MORE}test_a_client_of_a_secured_daemon_does_as_each_refusal_says"
CHECKPOINT = f"{_MORE}test_a_checkpoint_too_many_is_kept_when_one_is_deleted"
METRICS = f"{_MORE}test_metrics_beyond_the_loopback_are_served_as_the_refusal_says"
_POSTGRES = "tests/postgres/test_remedies.py::"
CHECKED = f"{_POSTGRES}test_a_check_succeeds_with_the_option_that_it_advises"
_PUBLISH = "tests/cli/test_publish.py::"
FOLLOWED = {
    "or run `ingester publish on`": (f"{_PUBLISH}test_a_table_is_published_switched_on_and_off"),
    "use --no-quotes": CLI,
    "use --escape": CLI,
    "give --delimiter": CLI,
    "use --column-types": CLI,
    "write to a new table, with --column-types": CLI,
    "use --decimal-comma": CLI,
    "give --input-format": CLI,
    "such as --encoding": CLI,
    "use --encoding": CLI,
    "--encoding {} is unknown; use": CLI,
    "'ingester create --timestamp-unit ns'": CLI,
    "or --like FILE": CLI,
    "give --format": CLI,
    "say --file FILE": CLI,
    "leave the column out (--columns)": COLUMNS,
    "give a smaller --memory": (
        "tests/cli/test_compact.py::test_memory_is_bounded_however_large_the_table_is"
    ),
    "use another --origin, or a higher --first-sequence": (
        "tests/cli/test_remedies.py::test_new_rows_under_a_known_origin_are_added_as_the_warning"
        "_says"
    ),
    "end the line, or write this file with another --origin": (
        "tests/cli/test_commands.py::test_only_the_last_of_several_files_may_end_in_an_incomplete"
        "_line"
    ),
    "run the same command with --first-sequence": (
        "tests/cli/test_commands.py::test_a_file_resent_with_its_origin_adds_nothing"
    ),
    "send them again with --first-sequence": (
        "tests/origins/test_cut_anew.py::test_rows_that_a_lost_disk_takes_while_a_file_is_written"
        "_are_named"
    ),
    "pass first_sequence (--first-sequence)": (
        "tests/client/cluster/test_three_daemons.py::test_an_answer_has_all_buffered_rows_or_names"
        "_the_missing_daemons"
    ),
    "choose another address with --flight": START,
    "choose another address with --http": START,
    "or use --insecure": START,
    "choose another with --data-dir": START,
    "start once with --accept-other-store": (
        "tests/daemon/test_shutdown.py::test_a_store_without_the_logs_tables_is_not_served"
    ),
    "start once with --accept-lost-log": (
        "tests/client/cluster/test_lost_epoch.py::test_an_epoch_with_a_lost_log_is_not_treated_as"
        "_fully_flushed"
    ),
    "store_options has no endpoint_url": (
        "tests/cli/test_follow_faults.py::test_a_store_without_its_endpoint_ends_once_with_the"
        "_option_that_is_missing"
    ),
    "give the store with --store URL": ADOPTED,
    "then use grpc+tls:// and tls_ca (--tls-ca)": SECURED,
    "pass the certificates of its authority as tls_ca": SECURED,
    "pass a token with token_file": SECURED,
    "'ingester tokens add --grant'": SECURED,
    "delete those that nobody needs (`ingester checkpoints`)": CHECKPOINT,
    "or pass --insecure": METRICS,
    "start once with --resync-all": LOST_SLOT,
    "start once with --resume": CRASHES,
    "`ingester pushes resume {}`": (
        "tests/pushes/test_spark_push.py::test_somebody_else_may_lead_a_push_whose_data_is_written"
        "_here"
    ),
    "name one with --endpoint": f"{_MORE}test_a_command_for_one_daemon_works_when_one_is_named",
    "use --output or redirect standard output": (
        f"{_MORE}test_a_binary_format_goes_to_a_file_instead_of_a_terminal"
    ),
    "--watch {}: give": (
        f"{_MORE}test_a_status_is_watched_at_the_intervals_that_the_refusal_names"
    ),
    "a token is needed: send 'authorization": (
        f"{_MORE}test_a_plain_flight_client_is_let_in_with_the_header_that_the_refusal_names"
    ),
    "give each writer its own origin, or use --first-sequence": (
        "tests/origins/test_cut_anew.py::test_who_writes_as_another_one_is_told_that_and_not_of_rows"
        "_that_were_never_sent"
    ),
    "correct --tables": CHECKED,
    "correct --rename": CHECKED,
    "choose another --slot": CHECKED,
    "choose another --publication": CHECKED,
    "choose another --origin": (
        "tests/postgres/test_failover.py::test_a_source_that_was_restored_from_long_before_is_copied"
        "_under_another_origin"
    ),
    "set another --origin": (
        f"{_POSTGRES}test_a_replicator_whose_origin_another_one_uses_continues_under_its_own"
    ),
    "set a policy: --values": (
        f"{_POSTGRES}test_a_value_that_no_type_here_has_is_replaced_as_the_policy_says"
    ),
    "run the replicator with --resync": (
        f"{_POSTGRES}test_a_difference_is_mended_by_the_copy_that_the_comparison_advises"
    ),
    "set --origin to one of": f"{_POSTGRES}test_a_comparison_takes_the_origin_that_it_lists",
    "name all other daemons of the store in sql.peers": (
        "tests/sql/test_peers.py::test_a_client_of_both_daemons_asks_either_of_them"
    ),
    "run `ingester persist`": (
        "tests/origins/test_moving_often.py::test_an_origin_that_moved_too_often_is_refused_until_its"
        "_rows_are_in_files"
    ),
}
"""The words of an advice, and the test that follows it."""
_IMPERATIVE = re.compile(
    r"(?:^|[;:,(.] ?|\bor |\band |\bthen |\bthat )(?:use|set|give|pass|start|run|name|choose"
    r"|correct|create|delete|send|repeat|leave|write|say|end|adopt|listen)\b",
    re.IGNORECASE,
)
_OURS = re.compile(r"(?<![\w-])--[a-z][a-z-]+|[`']ingester [a-z]+")


def _strings(tree: ast.Module) -> Iterator[str]:
    """Texts of the code without docstrings; values in f-strings become ``{}``."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in ast.walk(node)} - {id(node)}
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield "".join(map(str, parts))


@cache
def advice() -> list[tuple[str, str]]:
    """Every message of the code that advises an option or a command, with its file."""
    found = []
    for package in ("ingester", "persist", "wal"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name in ("app.py",) or path.name.endswith("_commands.py"):
                continue  # help texts
            for text in _strings(ast.parse(path.read_text())):
                if _OURS.search(text) and _IMPERATIVE.search(text) and " " in text.strip():
                    found.append((str(path.relative_to(ROOT)), text))
    return found


def test_every_advice_is_followed_by_a_test() -> None:
    new = [each for each in advice() if not any(words in each[1] for words in FOLLOWED)]
    assert new == []


@pytest.mark.parametrize("words", FOLLOWED)
def test_every_entry_is_the_words_of_a_message(words: str) -> None:
    assert any(words in text for _, text in advice())


@pytest.mark.parametrize("test", sorted(set(FOLLOWED.values())))
def test_the_tests_that_follow_advice_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"\ndef {name}(" in (ROOT / file).read_text()
