"""Objects of what every package with GPU kernels shares, as a build compiles and keeps them. Tests link them with what
they look at: it takes seconds to compile one."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from rnncc.ir.artifact import Bundle
from rnncc.language.read import read_request
from rnncc.machine.cache import Cache, default_root, digest
from rnncc.pipeline import compile_cells
from rnncc.stages.build import Job, build_kernels, find_toolchain, shared

# Units of a package: all that is the op of a whole layer, on the CPU and on GPUs, and what runs loops on GPUs.
WHOLE, WHOLE_ON_GPUS, LOOPS_ON_GPUS = "_core_binding", "_core_cuda", "_loops_cuda"


@cache
def _bundle() -> Bundle:
    return compile_cells(replace(read_request("lstm"), architectures=("sm_90a",), instructions="generic")).bundle


@cache
def keep_for_every_processor() -> None:
    """The cache of all tests has the objects that packages for every processor share, from now on."""
    bundle = compile_cells(read_request("elman")).bundle
    compiler, objects = find_toolchain(), Cache(default_root())
    shared_units = [unit for unit in bundle.units if unit.shared]
    for isa in {unit.isa: None for unit in shared_units}:  # functions of several have the same names
        units = tuple(unit for unit in shared_units if unit.isa == isa)
        key = digest(*(shared.kept_key(unit, bundle, compiler) for unit in units))[:32]
        made = partial(replace, bundle, units=units, device_units=())
        build_kernels(Job(key, "core", objects, compiler), isa, made)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rnncc-objects-")


@cache
def shared_object(name: str) -> Path:
    """The object of a unit. It is in the cache of all tests from now on; one process makes it, however many ask."""
    (unit,) = (unit for unit in _bundle().units if Path(unit.path).stem == name)
    assert unit.shared
    compiler, objects = find_toolchain(), Cache(default_root())
    key, target = shared.kept_key(unit, _bundle(), compiler), Path(_folder().name, f"{name}.o")
    if not objects.take_object(key, target):
        alone = replace(_bundle(), units=(unit,), device_units=())
        build_kernels(Job(digest(key)[:32], name.strip("_"), objects, compiler), name, lambda: alone)
        assert objects.take_object(key, target)
    return target
