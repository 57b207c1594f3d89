"""Checks that a compiler or a linker wrote what it should: a complete ELF file of the right kind, or complete PTX."""

from __future__ import annotations

import struct
from pathlib import Path

# e_type (None: any) and e_machine by a file's suffix, as in the ELF specification: 1 is relocatable, 3 shared; 62 is
# x86-64, 190 CUDA.
_KINDS = {".o": (1, 62), ".so": (3, 62), ".cubin": (None, 190)}
_PTX = b".target"
_BITCODE = b"BC\xc0\xde"  # an object of clang's with -flto
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")


def fault(path: Path) -> str:
    """What is wrong with an object, a library, a cubin or PTX: words that follow its name, or ""."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "was not written"
    if not data:
        return "is empty"
    if path.suffix == ".ptx":
        return "" if _PTX in data and data.rstrip().endswith(b"}") else "is no PTX, or cut short"
    kind, machine = _KINDS[path.suffix]
    if path.suffix == ".o" and data.startswith(_BITCODE):
        return ""
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        return "is not an ELF file"
    _, bits, order, found, made_for, _, _, segments, sections, _, _, size, count, section_size, section_count, _ = (
        _HEADER.unpack_from(data)
    )
    if (bits, order, made_for) != (2, 1, machine) or kind not in (None, found):
        return "is an ELF file of another kind"
    ends = [segments + size * count, sections + section_size * section_count]
    if ends[0] <= len(data) and size == _SEGMENT.size:
        for i in range(count):
            _, _, offset, _, _, length, _, _ = _SEGMENT.unpack_from(data, segments + i * size)
            ends.append(offset + length)
    return "is cut short" if max(ends) > len(data) else ""
