"""Interposition: a function of ours stands in for one that a loaded library imports.

A library calls what it imports by way of a table of addresses, one for each imported function,
which the dynamic linker fills in. Another address there is called instead, by that library alone.

Law of this file: nothing is written before everything that is read is as expected; whatever is not
raises :class:`NotHere`, and nothing has changed. Only Linux on x86-64 is known: elsewhere calls
pass what they return in other ways.

Source: ELF-64 and the x86-64 psABI ("Dynamic Linking", "Relocation"); link_map in glibc's <link.h>.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Collection
from ctypes import c_char_p, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

_END, _PLT_BYTES, _STRINGS, _SYMBOLS, _PLT_KIND, _PLT = 0, 2, 5, 6, 20, 23
"""Tags of the dynamic section's entries; the last is that of the table of imports."""
_RELA_KIND = 7
_JUMP_SLOT = 7
_RELA_BYTES = _SYMBOL_BYTES = 24
_SYMBOL_TABLE = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


_looked_for: set[str] = set()
_found: dict[Path, dict[str, tuple[int, int]]] = {}
"""Where functions are that libraries have for themselves. They stay as long as the process."""


def looked_for(*symbols: str) -> tuple[str, ...]:
    """Name functions that will be looked for: 50,000 symbols are walked once for all of them."""
    _looked_for.update(symbols)
    return symbols


class NotHere(Exception):
    """The place that is looked for is not there, or not as it is known."""


class _LinkMap(ctypes.Structure):
    _fields_ = (("base", c_size_t), ("name", c_char_p), ("dynamic", c_size_t))


class Library:
    """A shared library that is loaded by now.

    Args:
        name: how its file's name begins.
    """

    def __init__(self, name: str) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise NotHere(f"{sys.platform} on {platform.machine()} is not known")
        self.path = _loaded(name)
        self._calls = ctypes.CDLL(str(self.path))
        try:
            ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018
        except AttributeError as exc:
            raise NotHere("the C library is not glibc") from exc
        self._map = _LinkMap.from_address(self._calls._handle)

    def address(self, symbol: str) -> int:
        """The address of a function that the library exports."""
        try:
            return ctypes.cast(self._calls[symbol], c_void_p).value or 0
        except AttributeError as exc:
            raise NotHere(f"{self.path.name} has no {symbol}") from exc

    def import_slot(self, symbol: str) -> c_size_t:
        """The place where the library keeps the address of a function that it imports."""
        entries = self._dynamic()
        if entries.get(_PLT_KIND) != _RELA_KIND:
            raise NotHere(f"{self.path.name}: imports are not described as known")
        wanted = symbol.encode()
        for at in range(entries[_PLT], entries[_PLT] + entries.get(_PLT_BYTES, 0), _RELA_BYTES):
            info = c_uint64.from_address(at + 8).value
            name_at = c_uint32.from_address(entries[_SYMBOLS] + _SYMBOL_BYTES * (info >> 32)).value
            if ctypes.string_at(entries[_STRINGS] + name_at) == wanted:
                slot = self._map.base + c_size_t.from_address(at).value
                if info & 0xFFFFFFFF != _JUMP_SLOT or not _is_writable(slot):
                    break
                return c_size_t.from_address(slot)
        raise NotHere(f"{self.path.name} has no table entry for {symbol} that can be written")

    def own_functions(self, symbols: Collection[str]) -> dict[str, int]:
        """The addresses of functions that the library has for itself."""
        return {symbol: address for symbol, (address, _) in self.own_code(symbols).items()}

    def own_code(self, symbols: Collection[str]) -> dict[str, tuple[int, int]]:
        """Where functions that the library has for itself begin, and how many bytes they have.

        Its symbols are walked once for all that :func:`looked_for` names.
        """
        found = _found.setdefault(self.path, {})
        if set(symbols) <= found.keys():
            return {symbol: found[symbol] for symbol in symbols}
        wanted = {symbol.encode(): symbol for symbol in {*symbols, *_looked_for}}
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            table, strings = _symbol_table(data)
            for name_at, _, _, section, value, size in _SYMBOL.iter_unpack(table):
                start = strings + name_at
                end = data.find(b"\0", start)
                if section and end - start < 128 and (own := data[start:end]) in wanted:
                    found[wanted[own]] = self._map.base + value, size
        if missing := set(symbols) - set(found):
            raise NotHere(f"{self.path.name} has no {', '.join(sorted(missing))}")
        return {symbol: found[symbol] for symbol in symbols}

    def _dynamic(self) -> dict[int, int]:
        entries: dict[int, int] = {}
        at = self._map.dynamic
        while (tag := c_int64.from_address(at).value) != _END:
            entries[tag] = c_size_t.from_address(at + 8).value
            at += 16
        if not {_STRINGS, _SYMBOLS, _PLT} <= entries.keys():
            raise NotHere(f"{self.path.name} imports nothing by way of a table")
        return entries


def address_of(function: Any) -> int:
    """The address at which C calls a function that ``CFUNCTYPE`` has made."""
    return ctypes.cast(function, c_void_p).value or 0


def _loaded(name: str) -> Path:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(name) and ".so" in path.name:
            return path
    raise NotHere(f"{name} is not loaded")


def _is_writable(address: int) -> bool:
    """Whether the place can be written: some tables are made read-only when they are filled in."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, rights, *_ = line.split()
        first, last = (int(each, 16) for each in where.split("-"))
        if first <= address < last:
            return rights.startswith("rw")
    return False


def _symbol_table(data: Any) -> tuple[bytes, int]:
    """The table of all symbols, and the place where their names begin."""
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, sections_at + size * n) for n in range(count)]
    for _, kind, _, _, offset, nbytes, link, *_ in sections:
        if kind == _SYMBOL_TABLE:
            return data[offset : offset + nbytes], sections[link][4]
    raise NotHere("the library was stripped of its symbols")
