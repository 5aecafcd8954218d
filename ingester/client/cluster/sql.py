"""SQL at several daemons: one of them answers, and reads what its ``sql.peers`` have buffered.

The answer names the daemons whose buffers were read. If one of the client's is not among them, the
answer may lack its rows: that is an error, or it is reported as missing.
"""

from ..connection import Connection
from ..errors import InvalidRequest, TimedOut
from ..sql_stream import SqlStream
from ..wire import Missing, encode
from .asking import Asking

LACKING = (
    "rows that it has taken and that are in no file yet would be missing: missing='allow'"
    " (--allow-missing) answers without them and reports it"
)


def answer_of_one(
    asking: Asking, ticket: bytes, within_s: float | None, missing: Missing
) -> SqlStream:
    """The answer of the first daemon that gives one, in the order of the statement's preference.

    Raises:
        InvalidRequest: The daemon that answers has not read the buffers of another one.
        ClientError: A daemon is unreachable, or refuses the statement.
    """
    daemons = asking.all_of(_ingester_id, missing, LACKING)

    def opened(one: Connection) -> tuple[str, SqlStream | TimedOut]:
        try:
            return one.endpoint, one.sql_stream(ticket, within_s)
        except TimedOut as exc:
            return one.endpoint, exc  # the next daemon would take as long

    key = (ticket.decode(),)
    answering, answer = asking.any_of(key, opened, once=True, besides=daemons.missing)
    if isinstance(answer, TimedOut):
        raise answer
    asked = daemons.by_endpoint if answer.parts else {}
    unread = [each for each, known in asked.items() if known not in answer.parts]
    if unread and missing == "error":
        answer.close()
        raise InvalidRequest(
            f"{answering} answers SQL without the rows that {', '.join(unread)} has buffered: name"
            " all other daemons of the store in sql.peers of each daemon. missing='allow'"
            " (--allow-missing) answers without these rows and reports it",
            code="peers",
            details={"missing": unread},
        )
    if missed := list(dict.fromkeys([*answer.missing, *daemons.missing, *unread])):
        told = {**(answer.schema.metadata or {}), b"missing": encode(missed)}
        answer.schema = answer.schema.with_metadata(told)
    return answer


def _ingester_id(one: Connection) -> str:
    return str(one.act("store", {}, once=True)[0]["ingester_id"])
