"""A TCP relay between client and daemon that can be cut, redirected, or started late."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class WireCutter:
    """Relays every connection to ``target_port``. All sockets are on 127.0.0.1."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._lock = threading.Lock()
        self._held: dict[socket.socket, bytearray] = {}
        """The bytes withheld from the daemon, by socket."""
        self._far: list[socket.socket] = []
        self.connections = 0
        self._threads[0].start()

    def cut(self, target_port: int | None = None) -> None:
        """Break every connection; new ones go to ``target_port`` if given."""
        with self._lock:
            self.target_port = target_port or self.target_port
            for end in self._open:
                self._shut(end)

    def hold(self) -> None:
        """Withhold what is sent on the current connections, even after they break."""
        with self._lock:
            self._held = {far: bytearray() for far in self._far}

    @property
    def held_bytes(self) -> int:
        """The number of withheld bytes."""
        return sum(map(len, self._held.values()))

    def release(self) -> None:
        """Send the withheld bytes to the daemon."""
        for far, data in self._held.items():
            far.sendall(data)

    def _shut(self, end: socket.socket) -> None:
        if end not in self._held:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(near)
                self.connections += 1
            try:
                far = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                near.shutdown(socket.SHUT_RDWR)
                continue
            with self._lock:
                self._open.append(far)
                self._far.append(far)
            for source, sink in ((near, far), (far, near)):
                relay = threading.Thread(target=self._relay, args=(source, sink))
                self._threads.append(relay)
                relay.start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if sink in self._held:
                    self._held[sink] += data
                else:
                    sink.sendall(data)
        for end in (source, sink):
            self._shut(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._held = {}
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in [self._listener, *self._open]:
            end.close()
