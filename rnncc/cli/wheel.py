"""Writes a built package as a wheel (`rnncc build --wheel`), in PyPA's binary distribution format 1.0 with core
metadata 2.4."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path

from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.language.packages import check_length
from rnncc.machine.files import replaced
from rnncc.runtime import manifest
from rnncc.stages.build.manylinux import LONGEST, platform_tag
from rnncc.version import VERSION

# The earliest time a zip file can hold: the same package gives the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def _distribution(stem: str) -> str:
    """A package's name as PyPA normalises it, with the underscores that file names have."""
    return re.sub(r"[-_.]+", "_", stem).lower()


def check_name(stem: str) -> None:
    """Raise RNN604 if a wheel cannot be called as the package is: names of distributions end in a letter or digit, and
    several underscores are one, so that `a__b` would be installed in place of `a_b`."""
    if stem.endswith("_") or _distribution(stem) != stem.lower():
        message = f"'{stem}' cannot be a wheel's name: an underscore stands alone there, and not at the end"
        raise RnnccError(Diagnostic("RNN604", message, help="choose another name with --name"))
    check_length(stem, "a wheel's", len(_file_name("", "0" * 8, f"py3-none-{LONGEST}")))


def _file_name(stem: str, fingerprint: str, tag: str) -> str:
    return f"{_distribution(stem)}-{_version(fingerprint)}-{tag}.whl"


def _version(fingerprint: str) -> str:
    return f"{VERSION}+{fingerprint[:8]}"


def write_wheel(package: Path) -> Path:
    """Write the wheel beside the package's folder and return its path.

    Raises RnnccError (RNN605) where it cannot be written.

    The version is rnncc's, with the package's fingerprint as local part, so that other content has another version.
    The tag names no Python version and no torch version: the library uses torch's stable C interface alone. It names
    the oldest systems that have what the library needs. The licence is that of rnncc's code in the package; whose the
    cell is, its author knows.
    """
    about = manifest.read(package)
    stem, version = package.name, _version(about["fingerprint"])
    name, tag = _distribution(stem), f"py3-none-{platform_tag(package / about['library'])}"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{stem}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.relative_to(package).parts
    }
    cells = ", ".join(about["cells"])
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nSummary: Recurrent cells built by rnncc: {cells}\n"
        f"License-File: LICENSE\nRequires-Python: >=3.11\nRequires-Dist: torch>={about['torch_abi']}\n"
    ).encode()
    files[f"{info}/licenses/LICENSE"] = files[f"{stem}/_runtime/LICENSE"]
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: rnncc {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    record = f"{info}/RECORD"
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()

    target = package.parent / _file_name(stem, about["fingerprint"], tag)
    with replaced(target) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return target


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
