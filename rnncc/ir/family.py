"""The families of GPU kernels: the ways in which the threads of a GPU can share a loop.

A family is a row here. Its scope decides how its kernels are launched, where they exchange values, and which batches a
launch takes. So code asks for the scope, and never compares a name: names are for symbols, files and messages.
docs/kernels.md lists what a new family consists of besides its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """The set of threads that exchange values within a step. rnncc::FusedScope in
    templates/include/rnncc/cuda/fused/host/index.h has the same names.

    THREAD   a thread needs no other thread's values
    CLUSTER  the CTAs of a cluster, of which there may be one, exchange values through their shared memory; clusters
             do not wait for each other, so a launch takes any batch
    GRID     all CTAs of a launch exchange values through L2 and wait for each other; they must all run at once, so the
             batch of a launch is limited
    STEP     no thread within a launch: a launch is one step, and leaves its values in memory for the next one
    """

    THREAD = "thread"
    CLUSTER = "cluster"
    GRID = "grid"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Family:
    """`name` stands in the symbols of kernels, in the index of a package's kernels and in messages. In C++ the header
    and the function of the kernel are called by it, and `shape` is the function's template parameter.
    `for_zeros`: its kernels are for matrices of which most elements are zero, and slow for others."""

    name: str
    scope: Scope
    for_zeros: bool = False

    @property
    def shape(self) -> str:
        """The class in C++ that has the layout of a kernel: `GridShape`."""
        return f"{self.name.capitalize()}Shape"


# Fused kernels hold the matrices of a loop, whose step is a chain of phases. Each is for one head_dim and dtype.
GATHER = Family("gather", Scope.CLUSTER)  # operands go to all CTAs of a cluster
SCATTER = Family("scatter", Scope.CLUSTER)  # partial sums go to the CTA of their units
GRID = Family("grid", Scope.GRID)  # operands go to all CTAs of a head
WIDE = Family("wide", Scope.GRID)  # the same for large batches: entries are the rows of products
# The same for matrices that are mostly zeros: threads gather the operands of single elements, or tensor cores multiply
# whole blocks.
SPARSE = Family("sparse", Scope.GRID, for_zeros=True)
BLOCKS = Family("blocks", Scope.GRID, for_zeros=True)
STEPWISE = Family("stepwise", Scope.STEP)  # cuBLAS multiplies, between launches for the rest
FUSED = (GATHER, SCATTER, GRID, WIDE, SPARSE, BLOCKS, STEPWISE)

# Each of these kernels takes every size.
ALTERNATING = Family("alternating", Scope.GRID)  # products and elementwise stages by turns, with barriers between
SCAN = Family("scan", Scope.CLUSTER)  # a loop without products whose step is an affine map: CTAs share the steps
WALK = Family("walk", Scope.THREAD)  # a loop without products, step after step
NEWTON = Family("newton", Scope.CLUSTER)  # the same by Newton's method: CTAs share the steps
FAMILIES = (*FUSED, ALTERNATING, SCAN, WALK, NEWTON)
