"""Which systems a library runs on, as a wheel's platform tag says it (PEP 600)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from rnncc.stages.build.toolchain import MACHINE

# The versions of the compiler's libraries that the systems of a manylinux tag have: the last version, and the tag that
# has it first. `manylinux_2_N` is for systems with glibc 2.N (auditwheel's manylinux-policy.json).
_LIBRARIES = {
    "GLIBCXX": (((3, 4, 19), 17), ((3, 4, 22), 24), ((3, 4, 24), 27), ((3, 4, 28), 31), ((3, 4, 29), 34),
                ((3, 4, 30), 35), ((3, 4, 33), 39)),
    "CXXABI": (((1, 3, 7), 17), ((1, 3, 10), 24), ((1, 3, 11), 27), ((1, 3, 12), 31), ((1, 3, 13), 34),
               ((1, 3, 15), 39)),
    "GCC": (((4, 8, 0), 17), ((7, 0, 0), 27), ((12, 0, 0), 35), ((14, 0, 0), 39)),
}  # fmt: skip
# The oldest glibc of a tag that pip knows today.
_OLDEST = 17
# The longest tag there is.
LONGEST = f"manylinux_2_00_{MACHINE}"

# By the ELF specification and its extension for symbol versions: the type of the section with needed versions, a
# section's header, a needed library, and a version of it.
_NEEDED_VERSIONS = 0x6FFFFFFE
_SECTION = struct.Struct("<IIQQQQIIQQ")
_LIBRARY, _VERSION = struct.Struct("<HHIII"), struct.Struct("<IHHII")


def platform_tag(library: Path) -> str:
    """The tag of a wheel with a shared library: the oldest manylinux whose systems have all versions that it needs, or
    plain Linux where no manylinux is known to."""
    oldest = _OLDEST
    for name in needed_versions(library):
        glibc = _first_with(name)
        if glibc is None:
            return f"linux_{MACHINE}"
        oldest = max(oldest, glibc)
    return f"manylinux_2_{oldest}_{MACHINE}"


def _first_with(name: str) -> int | None:
    """The N of the first manylinux_2_N with a version such as `GLIBCXX_3.4.29`."""
    library, _, text = name.rpartition("_")
    try:
        version = tuple(int(part) for part in text.split("."))
    except ValueError:  # GLIBC_PRIVATE
        return None
    if library == "GLIBC":
        return version[1]
    return next((glibc for last, glibc in _LIBRARIES.get(library, ()) if version <= last), None)


def needed_versions(library: Path) -> Iterator[str]:
    """The versions of symbols that a shared library needs of others, such as `GLIBC_2.14`."""
    data = library.read_bytes()
    table, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, table + size * number) for number in range(count)]
    for _, kind, _, _, offset, _, names, libraries, _, _ in sections:
        if kind != _NEEDED_VERSIONS:
            continue
        strings = sections[names][4]
        for _ in range(libraries):
            _, versions, _, first, following = _LIBRARY.unpack_from(data, offset)
            place = offset + first
            for _ in range(versions):
                _, _, _, name, step = _VERSION.unpack_from(data, place)
                yield data[strings + name : data.index(0, strings + name)].decode()
                place += step
            offset += following
