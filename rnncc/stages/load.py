"""`load`: a finished package becomes a module, without standing on `sys.path`.

Input: the folder of a package. Output: the module, with the cells' classes and functions.
Fails with RnnccError: RNN712 (incomplete or damaged).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.machine.forks import unforked
from rnncc.runtime import manifest, parameter_spec, pickling, product_spec, spec, state_spec

_PREFIX = "rnncc_loaded_"
_RUNTIME = Path(manifest.__file__).parent
# Modules of the runtime that loaded packages take from here: they carry the same code, since this rnncc built them. So
# their classes have a type that every process finds; and to make the classes that describe a cell takes a quarter of an
# import. These modules hold no state, and import no others.
_SHARED = (parameter_spec, pickling, product_spec, spec, state_spec)


class _Loader(SourceFileLoader):
    """Appends a CRC-32 of bytecode and module name to each file of bytecode. A package's manifest does not list these
    files, since Python writes them when the package is first imported. A file with a wrong checksum is ignored: damaged
    bytecode could end the process, and another module's would run.

    All packages have the same runtime. They take its code from rnncc's own, which Python keeps compiled since rnncc was
    installed, and have no bytecode of it: what is wrong with Python's file must not outlive it."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of a module."""
        path = os.fspath(self.path)
        own = _own_code(path)
        return _with_file(own, path) if own is not None else super().get_code(fullname)

    def get_data(self, path: str) -> bytes:
        """The bytes of a file."""
        data = super().get_data(path)
        if not path.endswith(".pyc"):
            return data
        if data[-4:] != self._sum(data[:-4]):
            raise OSError("damaged bytecode")
        return data[:-4]

    def set_data(self, path: str, data: Any, *, _mode: int = 0o600) -> None:
        """Write bytecode, where nobody else can write, whatever the umask."""
        with suppress(OSError):  # it is there; or it cannot be made, which is no error for Python either
            Path(path).parent.mkdir(mode=0o700)
        super().set_data(path, bytes(data) + self._sum(data), _mode=_mode & 0o755)

    # The types of its two base classes exclude each other.
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        """The code of a module, which names its file in tracebacks."""
        return _with_file(_compiled(bytes(data), _optimize), os.fspath(path))

    def _sum(self, data: bytes) -> bytes:
        return zlib.crc32(data, zlib.crc32(self.name.encode())).to_bytes(4, "little")


def prepare(package: Path) -> None:
    """Make the code of a package's modules before it is finished."""
    for path in package.rglob("*.py"):
        if _own_code(os.fspath(path)) is None:
            _compiled(path.read_bytes(), -1)


def _own_code(path: str) -> CodeType | None:
    """The code of a module of a package's runtime, from the file of rnncc's own that it is a copy of. None where it is
    none, as in a package of another rnncc."""
    _, folder, file = path.rpartition(f"{os.sep}_runtime{os.sep}")
    own = _RUNTIME / file
    # What Python finds in a damaged file of bytecode may be any error.
    with suppress(Exception):
        if folder and own.read_bytes() == Path(path).read_bytes():
            return _code_of(own)
    return None


@lru_cache(256)
def _code_of(own: Path) -> CodeType | None:
    return SourceFileLoader("", os.fspath(own)).get_code("")


@lru_cache(256)
def _compiled(source: bytes, optimize: int) -> CodeType:
    made: CodeType = compile(source, "", "exec", dont_inherit=True, optimize=optimize)
    return made


def _with_file(code: CodeType, path: str) -> CodeType:
    constants = (_with_file(each, path) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(constants))


class _Finder:
    """Finds the modules of loaded packages, for `_Loader`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As importlib asks for it."""
        if not name.startswith(_PREFIX) or not path:
            return None
        return FileFinder(path[0], (_Loader, [".py"])).find_spec(name, target)


def load(package: Path, origin: pickling.Origin | None = None) -> ModuleType:
    """Import the package in `package`, once a process and content.

    `origin` is (function, arguments): `function(*arguments, name)` must give the class or functional op of that name
    again, and the module itself by the name "". They are then pickled as that call.
    """
    try:
        about = manifest.read(package)
        name = f"{_PREFIX}{about['fingerprint']}_{package.name}"
    except (manifest.DamagedError, KeyError) as error:
        raise RnnccError(Diagnostic("RNN712", f"the package '{package}' is incomplete or damaged: {error}")) from None
    with unforked():  # another thread must not get a module that is half executed
        return sys.modules.get(name) or _import(package, name, origin)


class _LoadedModule(ModuleType):
    """A loaded package, which is pickled by its text."""

    __reduce__ = pickling.reduced


def _import(package: Path, name: str, origin: pickling.Origin | None) -> ModuleType:
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    file = str(package / "__init__.py")
    spec = importlib.util.spec_from_file_location(
        name, file, loader=_Loader(name, file), submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise RnnccError(Diagnostic("RNN712", f"the package '{package}' cannot be imported"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    for shared in _SHARED:
        sys.modules[f"{name}._runtime.{shared.__name__.rpartition('.')[2]}"] = shared
    try:
        spec.loader.exec_module(module)
        if origin is not None:
            module.__class__ = _LoadedModule
            function, arguments = origin
            for member in ("", *module.__all__):
                member_of(module, member)._origin = (function, (*arguments, member))
        if (runtime := sys.modules.get(f"{name}._runtime")) is not None:
            for shared in _SHARED:  # as an import of its own would have left it
                setattr(runtime, shared.__name__.rpartition(".")[2], shared)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def member_of(module: ModuleType, name: str) -> Any:
    """The class or functional op of that name of a loaded package, or the module itself (""). Raises ValueError where
    it has none."""
    if name == "":
        return module
    if name not in module.__all__:
        raise ValueError(f"the cells of the text have no {name!r}, only {', '.join(module.__all__)}")
    return getattr(module, name)


def allow(member: Any) -> None:
    """Let torch.load(weights_only=True) make instances of a layer's class, and fill in their state."""
    if isinstance(member, type):
        torch.serialization.add_safe_globals([member])
