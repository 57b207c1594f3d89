"""Layers whose state is a matrix on a CPU, beside what one writes in eager torch: chunks, and a loop over the steps.

    python benchmarks/cpu_matrix.py [--threads N] [--out FILE]

A row is GLA or DeltaNet with V = 64 and K = 16, 64 or 128, one head, a batch of 4 over 256 steps, in float32. It is
the forward, or the forward and the gradients of all that it is given. Rows from *x* are the shipped cell, with the
products that make q, k, v and the gate of x; rows from *gates* are the recurrence alone. Our layer stands beside two
functions of eager torch, which take its parameters. *chunks*: the recurrence as products of matrices, 64 steps at a
time (arXiv:2312.06635, arXiv:2406.06484). *loop*: one step after the other. They are called in turn; times are medians,
and a ratio is the median of the ratios round by round. Before anything is timed, the outputs are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import environment, interleaved, median_ms, output, ratio, write
from torch import Tensor

import rnncc

OUT = Path(__file__).parent / "results" / "cpu_matrix.json"
STEPS, BATCH, WIDTH, CHUNK = 256, 4, 64, 64
KEYS = (16, 64, 128)
SECONDS = 1.0

# The recurrences alone: x is v, and `gate` what each of them makes of its last product.
GATED = """
cell Gated
dim K = H
input x: H, q: K, k: K, gate: K
state S: matrix(H, K)
output y
S[t] = S[t-1]@diag(exp(gate)) + x@T(k)
y = S[t]@q
"""
DELTA = """
cell Delta
dim K = H
input x: H, q: K, k: K, gate: 1
state S: matrix(H, K)
output y
S[t] = S[t-1] + gate*(x - S[t-1]@k)@T(k)
y = S[t]@q
"""
# q, k, v and what the decay or the strength of the update comes from, each [T, B, width].
Gates = tuple[Tensor, Tensor, Tensor, Tensor]


def gates_of_gla(layer: Any, x: Tensor) -> Gates:
    """The last is the logarithm of the decay of each column."""
    keys, rank = layer.U_l0.shape
    q, k, v, low = torch.split(F.linear(x, layer.weight_ih_l0), [keys, keys, WIDTH, rank], -1)
    return q * keys**-0.5, k, v, F.logsigmoid(F.linear(low, layer.U_l0, layer.bias_ih_l0)) / 16


def gates_of_deltanet(layer: Any, x: Tensor) -> Gates:
    """The last is the strength of the update."""
    made = F.linear(x, layer.weight_ih_l0)
    keys = (made.shape[-1] - WIDTH - 1) // 2
    q, k, v, be = torch.split(made, [keys, keys, WIDTH, 1], -1)
    q, k = (F.silu(u) * (F.silu(u).square().sum(-1, keepdim=True) + 1e-6).rsqrt() for u in (q, k))
    return q * keys**-0.5, k, F.silu(v), be.sigmoid()


def loop_of_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The output [T, B, V]. The state [B, V, K] begins at zero, here and below."""
    state, made, a = q.new_zeros(BATCH, WIDTH, q.shape[-1]), [], g.exp()
    for t in range(STEPS):
        state = state * a[t].unsqueeze(1) + v[t].unsqueeze(2) * k[t].unsqueeze(1)
        made.append((state @ q[t].unsqueeze(2)).squeeze(2))
    return torch.stack(made)


def loop_of_deltanet(q: Tensor, k: Tensor, v: Tensor, be: Tensor) -> Tensor:
    state, made = q.new_zeros(BATCH, WIDTH, q.shape[-1]), []
    for t in range(STEPS):
        old = (state @ k[t].unsqueeze(2)).squeeze(2)
        state = state + (be[t] * (v[t] - old)).unsqueeze(2) * k[t].unsqueeze(1)
        made.append((state @ q[t].unsqueeze(2)).squeeze(2))
    return torch.stack(made)


def in_chunks(value: Tensor) -> Tensor:
    """[chunks, B, CHUNK, width]."""
    return value.view(-1, CHUNK, *value.shape[1:]).transpose(1, 2)


def chunks_of_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    q, k, v, g = map(in_chunks, (q, k, v, g))
    # The decay from a chunk's begin to each of its steps.
    total = g.cumsum(2)
    late, early, rest = q * total.exp(), k * (-total).exp(), k * (total[:, :, -1:] - total).exp()
    inside = (late @ early.mT).tril() @ v
    added, decays = rest.mT @ v, total[:, :, -1].exp().unsqueeze(-1)
    state, made = torch.zeros_like(added[0]), []
    for index in range(len(q)):
        made.append(inside[index] + late[index] @ state)
        state = decays[index] * state + added[index]
    return torch.stack(made).transpose(1, 2).flatten(0, 1)


def chunks_of_deltanet(q: Tensor, k: Tensor, v: Tensor, be: Tensor) -> Tensor:
    q, k, v, be = map(in_chunks, (q, k, v, be))
    # Each step finds what those before it in the chunk have written: a triangular system says what it adds itself.
    found = torch.eye(CHUNK) + (be * k @ k.mT).tril(-1)
    solved = torch.linalg.solve_triangular(found, torch.cat((be * v, be * k), -1), upper=False, unitriangular=True)
    u, w = torch.split(solved, [WIDTH, k.shape[-1]], -1)
    inside = (q @ k.mT).tril()
    state, made = q.new_zeros(BATCH, k.shape[-1], WIDTH), []
    for index in range(len(q)):
        new = u[index] - w[index] @ state
        made.append(q[index] @ state + inside[index] @ new)
        state = state + k[index].mT @ new
    return torch.stack(made).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """A shipped cell, and its recurrence alone as a text. `gates`: what the cell makes of x."""

    name: str
    alone: str
    gates: Callable[[Any, Tensor], Gates]
    chunks: Callable[..., Tensor]
    loop: Callable[..., Tensor]


CELLS = {
    "gla": Case("GLA", GATED, gates_of_gla, chunks_of_gla, loop_of_gla),
    "deltanet": Case("DeltaNet", DELTA, gates_of_deltanet, chunks_of_deltanet, loop_of_deltanet),
}


def calls(cell: str, keys: int, *, alone: bool) -> tuple[dict[str, Callable[[], Tensor]], list[Tensor]]:
    """The three, and what gradients are taken to. Raises AssertionError where they differ."""
    case = CELLS[cell]
    torch.manual_seed(0)
    layer = getattr(rnncc.load(cell), case.name)(WIDTH, WIDTH, K=keys)
    x = torch.randn(STEPS, BATCH, WIDTH, requires_grad=True)
    wanted = [x, *layer.parameters()]
    made: dict[str, Callable[[], Tensor]] = {
        "rnncc": lambda: layer(x)[0],
        "chunks": lambda: case.chunks(*case.gates(layer, x)),
        "loop": lambda: case.loop(*case.gates(layer, x)),
    }
    if alone:
        with torch.no_grad():
            q, k, v, gate = wanted = [each.contiguous().requires_grad_() for each in case.gates(layer, x)]
        recurrence = getattr(rnncc.compile(case.alone), case.alone.split()[1])(WIDTH, WIDTH, K=keys)
        made = {
            "rnncc": lambda: recurrence(v, q=q, k=k, gate=gate)[0],
            "chunks": lambda: case.chunks(q, k, v, gate),
            "loop": lambda: case.loop(q, k, v, gate),
        }
    with torch.no_grad():
        for other in ("chunks", "loop"):
            torch.testing.assert_close(made["rnncc"](), made[other](), rtol=1e-4, atol=1e-4)
    return made, wanted


def rows() -> Iterator[dict[str, Any]]:
    """The rows, each as it is measured."""
    for cell, keys, alone in product(CELLS, KEYS, (False, True)):
        made, wanted = calls(cell, keys, alone=alone)
        for backward in (False, True):
            times = interleaved({name: timed(call, wanted, backward) for name, call in made.items()}, seconds=SECONDS)
            row: dict[str, Any] = {"cell": cell, "K": keys, "from": "gates" if alone else "x", "backward": backward}
            row |= {f"{name}_ms": median_ms(taken) for name, taken in times.items()}
            yield row | {f"over_{name}": ratio(times[name], times["rnncc"]) for name in ("chunks", "loop")}


def timed(call: Callable[[], Tensor], wanted: list[Tensor], backward: bool) -> Callable[[], object]:
    """The call without gradients, or with those of the output's sum."""
    if backward:
        return lambda: torch.autograd.grad(call().sum(), wanted)

    @torch.no_grad()
    def forward() -> Tensor:
        return call()

    return forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=output, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = []
    for row in rows():
        found.append(row)
        line = (
            "{cell:9} K {K:<4} from {from:6} backward {backward!s:6}{rnncc_ms:7.2f} ms"
            "   chunks {chunks_ms:6.2f} ({over_chunks:.2f})"
        )
        print((line + "   loop {loop_ms:6.1f} ({over_loop:.1f})").format(**row), flush=True)
    write(options.out, found, environment() | {"threads": options.threads})


if __name__ == "__main__":
    main()
