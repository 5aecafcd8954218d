"""Bounds of the memory that messages take before a handler of ours sees anything of them.

    gRPC      all messages that arrive share a quota: beyond it, connections are cut; a message
              that is too large is refused; compression of whole messages is off, as gRPC
              decompresses a message before it looks at its size
              calls have a limit, as each takes a thread; connections are closed that have no
              call for long, that do not begin as HTTP/2 has it, or whose peer is dead
    Flight    what a batch decompresses into comes from the pool (:mod:`ingester.memory.allocator`)

pyarrow's server has an option for none of it. Flight in C++ has: a hook that gets gRPC's builder of
servers, and the options of whoever reads a stream. So this stands where pyarrow's library calls
Flight's, and Flight's calls Arrow's (:mod:`ingester.server.flight.interposition`).

Law of this file: nothing runs here per message. Each part is in force or not, and says so; what is
not found as it is known is left as it is.

Source: arrow/flight/server.h, arrow/ipc/options.h and arrow/memory_pool.h, which pyarrow ships;
grpcpp/server_builder.h; std::function in libstdc++.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_bool, c_char_p, c_int, c_int32, c_size_t
from typing import Any, NamedTuple

import pyarrow as pa
import structlog

from ingester.server.flight.interposition import Library, NotHere, address_of, looked_for

log = structlog.get_logger(__name__)

_INIT = "_ZN5arrow6flight16FlightServerBase4InitERKNS0_19FlightServerOptionsE"
_OPTIONS_MADE = "_ZN5arrow6flight19FlightServerOptionsC1ERKNS0_8LocationE"
_OPTIONS_ENDED = "_ZN5arrow6flight19FlightServerOptionsD1Ev"
_LOCATION_MADE = "_ZN5arrow6flight8LocationC1Ev"
_READ_OPTIONS = "_ZN5arrow3ipc14IpcReadOptions8DefaultsEv"
_DEFAULT_POOL = "_ZN5arrow19default_memory_poolEv"
_COMPRESSION = (
    "_ZN4grpc13ServerBuilder36SetCompressionAlgorithmSupportStatusE26grpc_compression_algorithmb"
)
_QUOTA = "_ZN4grpc13ServerBuilder16SetResourceQuotaERKNS_13ResourceQuotaE"
_QUOTA_MADE, _QUOTA_SIZED = "grpc_resource_quota_create", "grpc_resource_quota_resize"
_ARGUMENT_MADE = (
    "_ZN4grpc25MakeChannelArgumentOptionERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEi"
)
_OPTION_SET = (
    "_ZN4grpc13ServerBuilder9SetOptionESt10unique_ptrINS_19ServerBuilderOptionE"
    "St14default_deleteIS2_EE"
)
_THREADS_SET = "grpc_resource_quota_set_max_threads"
_DEFLATE, _GZIP = 1, 2

HANDSHAKE_S = 20
"""The time in which a connection has to have begun as HTTP/2, and TLS, have it."""
DEAD_AFTER_S, PING_S = 120, 30
"""A peer with calls is asked whether it is there when it was silent for so long; and the time that
it has to answer."""
ASKED_MS = 250
"""A client may ask whether the daemon is there so often, with a call or without: those of other
languages do so every ten seconds, behind balancers that forget silent connections. gRPC's own
bounds are five minutes and two hours, and ended the connection at the fourth time."""

_POOL_AT = 8
"""The place of the memory pool in IpcReadOptions, behind the nesting depth."""
_POOL_IN_OBJECT_AT = pa.MemoryPool.__basicsize__ - 8
_HOOK_AT = 136
"""The place of the hook in FlightServerOptions, which end with it: two words, two functions."""
_LIMITS_AT = 8
"""The place in gRPC's ServerBuilder of the limits of messages received and sent."""
_ANY, _UNSET = -1, -(2**31)
"""The limits that stand there when Flight calls its hook: messages of any size are received."""
_UNTOUCHED = 0x5A5A5A5A5A5A5A5A

_ReadOptions = CFUNCTYPE(c_size_t, c_size_t)
_Init = CFUNCTYPE(c_size_t, c_size_t, c_size_t, c_size_t)
_Manager = CFUNCTYPE(c_bool, c_size_t, c_size_t, c_int)
_Invoker = CFUNCTYPE(None, c_size_t, c_size_t)
_Method = CFUNCTYPE(c_size_t, c_size_t, c_size_t)
_MakeQuota = CFUNCTYPE(c_size_t, c_char_p)
_SizeQuota = CFUNCTYPE(None, c_size_t, c_size_t)
_LimitThreads = PYFUNCTYPE(None, c_size_t, c_int)
"""Called with the interpreter held: it takes a moment, and many threads may wait for it."""
_SetOption = CFUNCTYPE(c_size_t, c_size_t, c_size_t)
_MakeArgument = CFUNCTYPE(c_size_t, c_size_t, c_size_t, c_int)
_SetCompression = CFUNCTYPE(c_size_t, c_size_t, c_int, c_bool)

_OWN = looked_for(
    _COMPRESSION,
    _QUOTA,
    _QUOTA_MADE,
    _QUOTA_SIZED,
    _THREADS_SET,
    _ARGUMENT_MADE,
    _OPTION_SET,
)
"""The functions of gRPC that a server is bounded with."""

MESSAGE_OVERHEAD_BYTES = 4 << 20
"""The bytes that a message may have beside its batch: metadata, padding."""
LARGEST_MESSAGE_BYTES = 2**31 - 1

_for_ever: list[Any] = []
"""Functions that C++ may call as long as the process lives."""


class ReceptionLimits(NamedTuple):
    """The bounds of one server."""

    message_bytes: int
    all_bytes: int
    """The most bytes of all messages that arrive at a time."""
    calls: int
    connections: int
    idle_s: float
    """The time after which a connection without a call is closed."""


def largest_message(batch_bytes: int) -> int:
    """Return the limit of a message where batches have one.

    A batch that is too large, but not by far, arrives: its refusal can say by how much.
    """
    return min(2 * batch_bytes + MESSAGE_OVERHEAD_BYTES, LARGEST_MESSAGE_BYTES)


def decompress_into(pool: Callable[[], pa.MemoryPool]) -> bool:
    """Have every stream decompress into what this returns, and say whether that is so from now on.

    Args:
        pool: called once for each stream, in the thread of its call, before the call's handler.
            What it returns has to live as long as anything that was taken from it.
    """
    try:
        _stand_before_reading(pool)
    except NotHere as exc:
        tell_unbounded("decompression", str(exc))
        return False
    return True


@contextmanager
def bounded_reception(limits: ReceptionLimits) -> Iterator[Callable[[int], object]]:
    """Have a server that is made inside the block keep these limits.

    Gives what sets another limit of its threads: it may be called as long as the process lives.

    gRPC cuts whose connection it likes when too much arrives: that is for the worst case, in which
    the process would end otherwise.
    """
    try:
        bounding = _Bounding(limits)
    except NotHere as exc:
        tell_unbounded("messages", str(exc))
        yield lambda _: None
        return
    with bounding:
        yield bounding.limit_threads
    if not bounding.applied:
        tell_unbounded("messages", "gRPC's builder of servers is not laid out as known")


def tell_unbounded(what: str, reason: str) -> None:
    """Tell an operator that a bound is not in force."""
    log.warning(
        "not bounded: a hostile client can take more memory than the limits say",
        what=what,
        reason=reason,
        runbook="not-bounded",
    )


def _stand_before_reading(pool: Callable[[], pa.MemoryPool]) -> None:
    flight, arrow = Library("libarrow_flight.so"), Library("libarrow.so")
    slot = flight.import_slot(_READ_OPTIONS)
    default = CFUNCTYPE(c_size_t)(arrow.address(_DEFAULT_POOL))()
    real = _ReadOptions(arrow.address(_READ_OPTIONS))
    _check_pools(real, default)

    def read_options(made: int) -> int:
        """Stand in for IpcReadOptions::Defaults."""
        returned: int = real(made)
        # What is raised here is lost, and C++ has to get what it asked for all the same.
        with suppress(Exception):
            c_size_t.from_address(made + _POOL_AT).value = _pool_of(pool())
        return returned

    stands_in = _ReadOptions(read_options)
    _for_ever.append(stands_in)
    slot.value = address_of(stands_in)


def _check_pools(real: Callable[[int], int], default: int) -> None:
    probe = (c_size_t * 64)()
    real(ctypes.addressof(probe))
    if probe[_POOL_AT // 8] != default:
        raise NotHere("IpcReadOptions are not laid out as known")
    if _pool_of(pa.default_memory_pool()) != default:
        raise NotHere("pyarrow's memory pools are not laid out as known")


def _pool_of(pool: pa.MemoryPool) -> int:
    """The address of Arrow's own pool, the last field of every object of pyarrow's class."""
    return c_size_t.from_address(id(pool) + _POOL_IN_OBJECT_AT).value


class _Bounding:
    """Sets a limit in gRPC's builder when Flight hands it out."""

    def __init__(self, limits: ReceptionLimits) -> None:
        self._limits = limits
        self.applied = False
        front, flight = Library("_flight."), Library("libarrow_flight.so")
        self._slot = front.import_slot(_INIT)
        self._before = self._slot.value
        self._init = _Init(flight.address(_INIT))
        own = flight.own_functions(_OWN)
        self._make_argument = _MakeArgument(own[_ARGUMENT_MADE])
        self._set_option = _SetOption(own[_OPTION_SET])
        self._set_compression = _SetCompression(own[_COMPRESSION])
        self._set_quota = _Method(own[_QUOTA])
        _check_server_options(flight)
        quota = _MakeQuota(own[_QUOTA_MADE])(b"ingester")
        _SizeQuota(own[_QUOTA_SIZED])(quota, limits.all_bytes)
        self._limit_threads = _LimitThreads(own[_THREADS_SET])
        self._limit_threads(quota, limits.calls)
        # A grpc::ResourceQuota: what its base class has, and the quota.
        self._quota = (c_size_t * 3)(0, 0, quota)
        self._called = (_Init(self._begin), _Manager(lambda *_: False), _Invoker(self._customise))

    def __enter__(self) -> _Bounding:
        self._slot.value = address_of(self._called[0])
        return self

    def __exit__(self, *_: object) -> None:
        self._slot.value = self._before

    def limit_threads(self, most: int) -> None:
        """Set the limit of the server's threads, and so of its calls."""
        self._limit_threads(self._quota[2], most)

    def _begin(self, status: int, server: int, options: int) -> int:
        """Stand in for FlightServerBase::Init."""
        hook = (c_size_t * 4).from_address(options + _HOOK_AT)
        hook[2], hook[3] = (address_of(each) for each in self._called[1:])
        returned: int = self._init(status, server, options)
        hook[2] = hook[3] = 0
        return returned

    def _customise(self, _: int, argument: int) -> None:
        builder = c_size_t.from_address(argument).value
        limits = (c_int32 * 2).from_address(builder + _LIMITS_AT)
        if tuple(limits) == (_ANY, _UNSET):
            limits[0] = self._limits.message_bytes
            for algorithm in (_DEFLATE, _GZIP):
                self._set_compression(builder, algorithm, False)
            self._set_quota(builder, ctypes.addressof(self._quota))
            for name, value in self._arguments().items():
                self._set_argument(builder, name, value)
            self.applied = True

    def _arguments(self) -> dict[bytes, int]:
        """Give gRPC's channel arguments, by their names in grpc/impl/channel_arg_names.h."""
        return {
            # More would be refused; what a refused call takes until then would have no bound.
            b"grpc.max_concurrent_streams": self._limits.calls,
            b"grpc.max_connection_idle_ms": int(self._limits.idle_s * 1000),
            b"grpc.max_allowed_incoming_connections": self._limits.connections,
            b"grpc.server_handshake_timeout_ms": HANDSHAKE_S * 1000,
            b"grpc.keepalive_time_ms": DEAD_AFTER_S * 1000,
            b"grpc.keepalive_timeout_ms": PING_S * 1000,
            b"grpc.http2.min_ping_interval_without_data_ms": ASKED_MS,
            b"grpc.keepalive_permit_without_calls": 1,
        }

    def _set_argument(self, builder: int, name: bytes, value: int) -> None:
        text = ctypes.create_string_buffer(name)
        # A std::string, which is read only: where its text is, its length, and room of its own.
        string = (c_size_t * 4)(ctypes.addressof(text), len(name), len(name), 0)
        # A std::unique_ptr, which is empty when the builder has taken what it holds.
        option = c_size_t(0)
        self._make_argument(ctypes.addressof(option), ctypes.addressof(string), value)
        self._set_option(builder, ctypes.addressof(option))


def _check_server_options(flight: Library) -> None:
    """Check that the options of a server end with an empty hook where it is expected."""
    make, end = (_Method(flight.address(name)) for name in (_OPTIONS_MADE, _OPTIONS_ENDED))
    location = (c_size_t * 8)()
    _Method(flight.address(_LOCATION_MADE))(ctypes.addressof(location), 0)
    probe = (c_size_t * 64)(*[_UNTOUCHED] * 64)
    make(ctypes.addressof(probe), ctypes.addressof(location))
    at = _HOOK_AT // 8
    found = list(probe[at + 2 : at + 5])
    end(ctypes.addressof(probe), 0)
    if found != [0, 0, _UNTOUCHED]:
        raise NotHere("FlightServerOptions are not laid out as known")
