"""`load`: a finished package becomes a module, without standing on `sys.path`.

Input: the folder of a package. Output: the module, with the cells' classes and functions.
Fails with RnnccError: RNN712 (incomplete or damaged).
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from rnncc.diagnostics import Diagnostic, RnnccError

# Held while a package is imported: another thread must not get a module that is half executed. Reentrant, since what a
# package imports may load another.
_LOADING = threading.RLock()


def load(package: Path, origin: tuple[Any, tuple[Any, ...]] | None = None) -> ModuleType:
    """Import the package in `package`, once a process and content.

    `origin` is (function, arguments): `function(*arguments, class_name)` must give an empty instance of the class
    again; layers of the module are then pickled as that call.
    """
    try:
        about = json.loads((package / "_rnncc.json").read_text(encoding="utf-8"))
        name = f"rnncc_loaded_{about['fingerprint']}_{package.name}"
    except (OSError, ValueError, KeyError) as error:
        raise RnnccError(Diagnostic("RNN712", f"the package '{package}' is incomplete or damaged: {error}")) from None
    with _LOADING:
        return sys.modules.get(name) or _import(package, name, about["cells"], origin)


def _import(package: Path, name: str, cells: list[str], origin: tuple[Any, tuple[Any, ...]] | None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise RnnccError(Diagnostic("RNN712", f"the package '{package}' cannot be imported"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    if origin is not None:
        for cell in cells:
            for class_name in (cell, f"{cell}Cell"):
                getattr(module, class_name)._origin = origin
    return module
