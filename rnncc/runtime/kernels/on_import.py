"""Delays work until a program imports some module of torch. Such modules take long to import, and most programs never
need them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call `act` once: now where the module of that name is imported, else after its import."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watch(name, act))


class _Watch(MetaPathFinder):
    """Finds one module as the other finders do, and calls `act` after the module's code ran for the first time.

    It stays in `sys.meta_path`: many programs only ask whether a module exists, an import may fail, and another thread
    may be going through the list.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name, self.act, self.acted = name, act, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self.acted or self not in sys.meta_path:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in behind)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def execute(module: ModuleType) -> None:
            run(module)
            if not self.acted:
                self.acted = True
                self.act()

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec
