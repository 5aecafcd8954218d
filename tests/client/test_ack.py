"""An acknowledgement wakes every thread that waits for it, whatever else is called."""

import threading

import pytest

from ingester.client import WriteAnswer
from ingester.client.ack import Ack

ANSWER = WriteAnswer(accepted=True)


class AnsweredBetween(Ack):
    """Is answered after the first look and before anything is listed."""

    looked = False

    def done(self) -> bool:
        found = super().done()
        if not self.looked:
            self.looked = True
            self.settle(ANSWER, None)
            self.tell()
        return found


def test_a_callback_that_is_added_beside_the_answer_is_called_once() -> None:
    told: list[Ack] = []
    ack = AnsweredBetween(lambda: 30.0)
    ack.add_done_callback(told.append)
    assert told == [ack]
    assert AnsweredBetween(lambda: 30.0).result(10) is ANSWER


def test_a_waiting_thread_is_woken_before_callbacks_run() -> None:
    ack, returned, waits = Ack(lambda: 30.0), threading.Event(), threading.Event()
    ack.add_done_callback(lambda _: returned.wait(10))

    def watch() -> float:
        waits.set()
        return 30.0

    ack.watch = watch

    def wait() -> None:
        ack.result(10)
        returned.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(10)
    ack.settle(ANSWER, None)
    telling = threading.Thread(target=ack.tell)
    telling.start()
    assert returned.wait(5)
    telling.join(10)
    thread.join(10)


def test_waits_that_time_out_leave_nothing_behind() -> None:
    ack = Ack(lambda: 30.0)
    for _ in range(10):
        with pytest.raises(TimeoutError):
            ack.result(0.001)
    assert ack._callbacks == []
