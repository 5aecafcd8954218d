"""The connections of the gRPC port: how many there may be, who has them, and how one is cut.

    accept ── full, or the peer has its share, or is held back ── closed at once
       │
       └─ in the table ─ closed by either side ─ out of it
              └─ cut: both ways are shut, and gRPC ends its calls

gRPC has a limit of its own for all of a port, but none for a peer, and tells nobody who is there.
So this stands where gRPC's library accepts and closes
(:mod:`ingester.server.flight.interposition`); what it closes never becomes a connection of gRPC's.

Law of this file: nothing runs here but when a connection comes or goes. A connection leaves the
table before its descriptor is closed, so that none is cut which has the number anew.

Source: ``grpc_accept4`` and ``on_read`` in gRPC's ``tcp_server_posix.cc``; accept(2); tcp_info
in ``<linux/tcp.h>``.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import CFUNCTYPE, c_int, c_size_t
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from ingester.observability.status import ConnectionStatus
from ingester.server.flight.interposition import Library, NotHere, address_of
from ingester.server.flight.reception import tell_unbounded

log = structlog.get_logger(__name__)

_ACCEPT, _CLOSE = "accept4", "close"
_Accept = CFUNCTYPE(c_int, c_int, c_size_t, c_size_t, c_int, use_errno=True)
_Close = CFUNCTYPE(c_int, c_int, use_errno=True)
_INFO_BYTES, _SILENT_AT, _RECEIVED_AT = 256, 52, 128
"""The size of tcp_info, with room to grow, and the places of tcpi_last_data_recv (ms) and
tcpi_bytes_received in it."""
HELD_BACK_S, ONE_EACH_S = 10.0, 1.0
"""How long an address is held back after a flood, and the time between its new connections."""
_for_ever: list[Any] = []
"""Functions that C++ may call as long as the process lives."""


class ConnectionLimits(NamedTuple):
    """``limits.connections``, ``connections_per_peer`` and ``hold_back``."""

    most: int
    most_per_peer: int
    hold_back_s: float = HELD_BACK_S
    """The time for which an address is held back after a flood."""


@dataclass(slots=True)
class Connection:
    """One open connection; ``peer`` is as gRPC writes it: ``ipv4:127.0.0.1:4711``."""

    fd: int
    peer: str
    host: str
    calls: int = 0
    """The calls whose first message was there by now."""
    let_in: bool = False
    """Whether a caller was let in by it."""


class _HeldBack:
    """An address of which a connection was cut for a flood."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.next_at = since + ONE_EACH_S


class Arrived(NamedTuple):
    """What the kernel, and the calls so far, say of a connection."""

    peer: str
    nbytes: int
    """All bytes that it has received."""
    silent_s: float
    """The seconds since the last of them."""
    calls: int
    let_in: bool = False


class Connections:
    """The open connections, by descriptor. Any thread.

    Args:
        limits: of all, and of one address.
        refused: is told of each that is not let in, by the name of the limit.
        now: the clock.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        refused: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._now = now
        self._tell = refused
        # The collector may free a server, which closes connections, in a thread that is in here.
        self._lock = threading.RLock()
        self._open: dict[int, Connection] = {}
        self._by_peer: dict[str, Connection] = {}
        self._by_host: Counter[str] = Counter()
        self._held_back: dict[str, _HeldBack] = {}
        self._refused = self._cut = 0

    def admit(self, fd: int, peer: str, host: str) -> bool:
        """Take a connection into the table; False where a limit is reached: it has to be closed."""
        with self._lock:
            if len(self._open) >= self.limits.most:
                full = "connections"
            elif self._by_host[host] >= self.limits.most_per_peer or self._is_too_soon(host):
                full = "connections_per_peer"
            else:
                self._open[fd] = self._by_peer[peer] = Connection(fd, peer, host)
                self._by_host[host] += 1
                return True
            self._refused += 1
        self._tell(full)
        return False

    def _is_too_soon(self, host: str) -> bool:
        held, now = self._held_back.get(host), self._now()
        if held is None:
            return False
        if now >= held.since + self.limits.hold_back_s:
            del self._held_back[host]
        elif now < held.next_at:
            return True
        else:
            held.next_at = now + ONE_EACH_S
        return False

    def forget(self, fd: int) -> None:
        """Take out what is about to be closed; nothing where it is no connection."""
        with self._lock:
            gone = self._open.pop(fd, None)
            if gone is None:
                return
            if self._by_peer.get(gone.peer) is gone:
                del self._by_peer[gone.peer]
            self._by_host[gone.host] -= 1
            if not self._by_host[gone.host]:
                del self._by_host[gone.host]

    def cut(self, peer: str) -> bool:
        """End the connection of a peer, and with it all of its calls; False where there is none.

        Args:
            peer: as a call's context names it.
        """
        with self._lock:
            found = self._by_peer.get(peer)
            if found is None:
                return False
            # Under the lock: while it is in the table its descriptor is not closed.
            _shut(found.fd)
            self._cut += 1
        return True

    def called(self, peer: str) -> None:
        """Count a call of a peer: its first message has arrived whole."""
        found = self._by_peer.get(peer)
        if found is not None:
            found.calls += 1

    def let_in(self, peer: str) -> None:
        """Know that a caller was let in by the connection of a peer."""
        found = self._by_peer.get(peer)
        if found is not None:
            found.let_in = True

    def cut_and_hold_back(self, peer: str) -> bool:
        """End the connection of a peer, and take new ones of its address one by one for a while.

        Returns:
            False where there is no such connection.
        """
        with self._lock:
            found = self._by_peer.get(peer)
            if found is None:
                return False
            now, most_s = self._now(), self.limits.hold_back_s
            held = self._held_back.items()
            self._held_back = {host: one for host, one in held if now < one.since + most_s}
            self._held_back[found.host] = _HeldBack(now)
            _reset_when_closed(found.fd)
        return self.cut(peer)

    def arrived(self) -> list[Arrived]:
        """Tell of each connection what it has received, where the kernel says so."""
        found = []
        with self._lock:
            for each in list(self._open.values()):
                with suppress(OSError, struct.error), _borrowed(each.fd) as sock:
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                    (silent_ms,) = struct.unpack_from("<I", info, _SILENT_AT)
                    (nbytes,) = struct.unpack_from("<Q", info, _RECEIVED_AT)
                    found.append(
                        Arrived(each.peer, nbytes, silent_ms / 1000, each.calls, each.let_in)
                    )
        return found

    def statistics(self) -> ConnectionStatus:
        """Count what is open, and what was refused or cut."""
        with self._lock:
            return ConnectionStatus(
                open=len(self._open),
                most=self.limits.most,
                refused=self._refused,
                cut=self._cut,
            )


def watch_connections(connections: Connections) -> bool:
    """Have every connection to a server of gRPC's in this process go through the table.

    Once in a process. It says whether that is so from now on; an operator is told where not.
    """
    try:
        _stand_before_accepting(connections)
    except NotHere as exc:
        tell_unbounded("connections of a peer", str(exc))
        return False
    return True


def _stand_before_accepting(connections: Connections) -> None:
    flight = Library("libarrow_flight.so")
    accept_slot, close_slot = flight.import_slot(_ACCEPT), flight.import_slot(_CLOSE)
    real_accept = _Accept(ctypes.cast(ctypes.CDLL(None).accept4, ctypes.c_void_p).value or 0)
    real_close = _Close(ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p).value or 0)

    accept, close = stand_ins(connections, real_accept, real_close)
    called = _Accept(accept), _Close(close)
    _for_ever.extend(called)
    accept_slot.value, close_slot.value = (address_of(each) for each in called)


def stand_ins(
    connections: Connections, accept4: Callable[..., int], real_close: Callable[[int], int]
) -> tuple[Callable[[int, int, int, int], int], Callable[[int], int]]:
    """Make what stands in for accept4 and close.

    Nothing that is raised gets out of them. gRPC would have 0 for it, which is another's
    descriptor, and end accepting; or it would take what stays open for closed.
    """

    def accept(listener: int, address: int, size: int, flags: int) -> int:
        """Return the next connection that is let in."""
        while (fd := accept4(listener, address, size, flags)) >= 0:
            try:
                if connections.admit(fd, *_peer_of(fd)):
                    break
            except OSError:
                pass  # it is gone by now
            except BaseException as exc:
                _tell_of_failure(exc)
            close(fd)
        return int(fd)

    def close(fd: int) -> int:
        """Forget a connection, and close it."""
        try:
            connections.forget(fd)
        except BaseException as exc:
            _tell_of_failure(exc)
        return int(real_close(fd))

    return accept, close


def _tell_of_failure(error: BaseException) -> None:
    with suppress(BaseException):
        log.error(
            "connection closed: it could not be taken into the table, or out of it",
            exc_info=error,
            runbook="internal-error",
        )


def _peer_of(fd: int) -> tuple[str, str]:
    """The peer as gRPC writes it, and its address alone."""
    with _borrowed(fd) as sock:
        host, port, *_ = sock.getpeername()
    host = host.removeprefix("::ffff:")
    return (f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"), host


def _shut(fd: int) -> None:
    with _borrowed(fd) as sock, suppress(OSError):  # the peer may have gone
        sock.shutdown(socket.SHUT_RDWR)


def _reset_when_closed(fd: int) -> None:
    """Have the kernel forget a connection when gRPC closes it, whatever its peer still sends."""
    with _borrowed(fd) as sock, suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """The socket of a descriptor that stays its owner's: a copy would take another descriptor."""
    sock = socket.socket(fileno=fd)
    try:
        yield sock
    finally:
        sock.detach()
