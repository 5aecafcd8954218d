"""The heads of calls from before a client has acknowledged the settings of the server.

    a connection begins ── the client's heads: 16 MiB each, as HTTP/2 begins
         └─ it acknowledges the settings ── 16 KiB each, which gRPC has as its limit

A client that never acknowledges keeps the first bound, and a head stands for a hundred times its
bytes: 400,000 times one and the same field, at a byte each, are 50 MB here. So a stranger with one
connection and 15 MB took 2 GB. gRPC has an argument for the limit that it announces, and none for
the one before. It looks the limit up in the settings that were acknowledged: it is had look in its
own, which stand before those. That is one number in one instruction, replaced once in a process.

    mov  acknowledged.max_header_list_size, limit   ─▶   mov  own.max_header_list_size, limit
    call HPackParser::BeginFrame

Law of this file: nothing is written unless both places are found, once each, in instructions that
are known; what is not so raises :class:`NotHere`, and nothing has changed.

Source: ``init_header_frame_parser`` in gRPC's ``parsing.cc``, ``http2_settings_manager.h`` (the
peer's settings, own, sent, acknowledged); RFC 9113 6.5.2, 6.5.3; "mov", "call" in Intel's manual.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from ctypes import c_int, c_int32, c_size_t

from ingester.server.flight.interposition import Library, NotHere, looked_for
from ingester.server.flight.reception import tell_unbounded

_MADE = (
    "_ZN21grpc_chttp2_transportC2ERKN9grpc_core11ChannelArgsE"
    "St10unique_ptrI13grpc_endpointNS0_16OrphanableDeleteEEb"
)
_BEGUN = "_ZL24init_header_frame_parserP21grpc_chttp2_transportiRm.constprop.0"
_PARSED = (
    "_ZN9grpc_core11HPackParser10BeginFrameEP19grpc_metadata_batchjj"
    "NS0_8BoundaryENS0_8PriorityENS0_7LogInfoE"
)
_CODE = looked_for(_MADE, _BEGUN, _PARSED)
_OWN_IS_SET = re.compile(rb"\xba\0\0\0\x01\x39\xd0\x0f\x47\xc2\x89\x83(.{4})", re.DOTALL)
"""``mov $16 MiB, %edx; cmp; cmova; mov %eax, own(state)``, where a connection's state is made."""
_IS_LOOKED_UP = re.compile(rb"\x8b\x8b(.{4}).?\xe8(.{4})", re.DOTALL)
"""``mov acknowledged(state), %ecx; call``, with a byte between at most."""
_APART = 64
"""The bytes from a field of the own settings to that of the acknowledged ones."""
_PAGE = mmap.PAGESIZE


def bound_first_heads() -> bool:
    """Have every head of a call be bounded from the first; say whether that is so.

    Once in a process, before it serves, or again; an operator is told where it cannot be.
    """
    try:
        _look_in_own_settings()
    except NotHere as exc:
        tell_unbounded("heads of calls", str(exc))
        return False
    return True


def _look_in_own_settings() -> None:
    library = Library("libarrow_flight.so")
    code = library.own_code(_CODE)
    own = [_number(each[1]) for each in _OWN_IS_SET.finditer(_bytes_of(code[_MADE]))]
    begun, parsed = code[_BEGUN][0], code[_PARSED][0]
    looked_up = [
        each
        for each in _IS_LOOKED_UP.finditer(_bytes_of(code[_BEGUN]))
        if begun + each.end() + _number(each[2]) == parsed
    ]
    if len(own) != 1 or len(looked_up) != 1:
        raise NotHere(f"{library.path.name}: heads are not bounded in the way that is known")
    at, found = begun + looked_up[0].start(1), _number(looked_up[0][1])
    if found == own[0]:
        return  # replaced by now
    if found != own[0] + _APART:
        raise NotHere(f"{library.path.name}: a connection's settings are not laid out as known")
    _replace(at, own[0])


def _bytes_of(code: tuple[int, int]) -> bytes:
    return ctypes.string_at(*code)


def _number(four: bytes) -> int:
    return int.from_bytes(four, "little", signed=True)


def _replace(place: int, number: int) -> None:
    """Write a number into the code, whose pages can be written meanwhile, and no longer."""
    first = place // _PAGE * _PAGE
    nbytes = (place + 4 - first + _PAGE - 1) // _PAGE * _PAGE
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = c_size_t, c_size_t, c_int
    runs = mmap.PROT_READ | mmap.PROT_EXEC
    if protect(first, nbytes, runs | mmap.PROT_WRITE):
        raise NotHere("the system does not let code be changed")
    c_int32.from_address(place).value = number
    protect(first, nbytes, runs)
