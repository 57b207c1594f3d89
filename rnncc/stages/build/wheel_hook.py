"""A build hook of hatchling's: it compiles what is the same for every cell into rnncc's wheel, so that a first load
waits for its own cell alone. Where it finds NVRTC, it does the same for GPUs. pip hides the environment's NVRTC from a
build, unless it is given --no-build-isolation, as `make dist` does. hatchling runs this file by its path, in an
environment that has what `[build-system]` of pyproject.toml requires. Nothing else imports it.

Without a C++ compiler, or with RNNCC_NO_PREBUILT=1, the wheel is pure Python, and the first load compiles these
objects.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from rnncc.ir.artifact import Bundle


class WheelHook(BuildHookInterface[Any]):
    """Adds the folder of objects to the wheel."""

    folder: tempfile.TemporaryDirectory[str]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the objects. An editable install has none: its text changes."""
        self.folder = tempfile.TemporaryDirectory(prefix="rnncc-wheel-")
        if version == "editable" or os.environ.get("RNNCC_NO_PREBUILT") == "1":
            return
        from rnncc.language.diagnostics import RnnccError
        from rnncc.stages.build import nvrtc, shared, toolchain

        objects = Path(self.folder.name, "objects")
        try:
            tag = shared.make(bundles(), objects, toolchain.find_toolchain())
        except RnnccError as error:
            self.app.display_warning(f"the wheel brings no compiled objects: {error.diagnostics[0].message}")
            return
        try:
            if (compiler := nvrtc.for_all_gpus()) is not None:
                shared.make_code(bundles(), objects, compiler)
        except RnnccError as error:
            self.app.display_warning(f"the wheel brings no code for GPUs: {error.diagnostics[0].message}")
        build_data["force_include"][str(objects)] = "rnncc/_data/objects"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the objects, which the wheel has now."""
        self.folder.cleanup()


def bundles() -> Iterator[Bundle]:
    """What is the same for every cell, of each kind of package: for one processor and compute type, as `load` makes
    them, and for all and for GPUs, as `rnncc build` does."""
    from rnncc.ir.request import Request
    from rnncc.ir.target import COMPUTE_TYPES, EVERY, INSTRUCTION_SETS
    from rnncc.language.source import Source
    from rnncc.pipeline import shared_kernels

    plain = Request(Source("<objects>", ""), "objects")
    for instructions in INSTRUCTION_SETS:
        for compute_type in COMPUTE_TYPES:
            yield shared_kernels(replace(plain, instructions=instructions, cpu_files=(compute_type,)))
    # Any GPU will do: units are the same for each.
    yield shared_kernels(replace(plain, instructions=EVERY, architectures=("sm_80",)))
