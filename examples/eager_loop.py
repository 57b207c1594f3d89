"""The cells of these examples as loops in plain PyTorch, as one writes them without a compiler: to compare with.

A loop reads the parameters of a compiled layer by the names of the cell's text, so both must give the same outputs.
What needs no state is computed for all steps at once, before the loop, as a careful writer does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def my_delta(layer: Any, x: Tensor) -> Tensor:
    """mydelta.rnn. x: [T, B, I]; what it returns: [T, B, H]."""
    p = layer.gate_parameters()
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])

    def heads(name: str) -> Tensor:  # [T, B, heads, width of a head]
        value: Tensor = functional.silu(x @ p[f"W_{name}"].T + before @ p[f"V_{name}"].T)
        return torch.unflatten(value, -1, (layer.num_heads, -1))

    q, k = functional.normalize(heads("q"), dim=-1), functional.normalize(heads("k"), dim=-1)
    v = heads("v")
    # One number for each head, [T, B, heads, 1, 1].
    alpha = torch.sigmoid(x @ p["W_alpha"].T + p["b_alpha"])[..., None, None]
    beta = torch.sigmoid(x @ p["W_beta"].T + p["b_beta"])[..., None, None]

    S = x.new_zeros(*v.shape[1:], k.shape[-1])
    outputs = []
    for t in range(len(x)):
        column, row = k[t][..., :, None], k[t][..., None, :]
        # S (I - beta k k^T) is S - beta (S k) k^T: that is cheaper than a product of two matrices.
        S = alpha[t] * (S - beta[t] * (S @ column) * row) + beta[t] * v[t][..., :, None] * row
        outputs.append((S @ q[t][..., :, None]).flatten(-3))
    return torch.stack(outputs)


def my_cell(layer: Any, x: Tensor) -> Tensor:
    """mycell.rnn. x: [T, B, I]; what it returns: [T, B, H]."""
    p = layer.gate_parameters()
    W, b = (torch.cat([p[f"{group}_{gate}"] for gate in "fon"]) for group in "Wb")
    R = torch.cat([torch.block_diag(*p[f"R_{gate}"]) for gate in "fon"])  # a gate's blocks, one for each head
    inputs = x @ W.T + b
    h = m = x.new_zeros(x.shape[1], layer.hidden_size)
    outputs = []
    for t in range(len(x)):
        f, o, n = (inputs[t] + h @ R.T).chunk(3, -1)
        f, o, n = torch.sigmoid(f), torch.sigmoid(o), torch.tanh(n)
        m = f * m + (1 - f) * n
        h = o * m + (1 - o) * n
        outputs.append(h)
    return torch.stack(outputs)


LOOPS: dict[str, Callable[[Any, Tensor], Tensor]] = {"MyDelta": my_delta, "MyCell": my_cell}


def seconds(layer: Callable[[Tensor], Tensor], x: Tensor, rounds: int) -> float:
    """The median time of forward and backward; the first round does not count."""
    taken = []
    for _ in range(1 + rounds):
        started = time.perf_counter()
        layer(x).sum().backward()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def compare(name: str, layer: Any, x: Tensor, rounds: int = 5) -> None:
    """Check that the layer and its loop give the same outputs and the same gradient of x, then time both."""
    if name not in LOOPS:
        raise SystemExit(f"{name} has no Python loop in {__file__}: it has those of {' and '.join(LOOPS)}")
    loop = LOOPS[name]
    x = x.detach().requires_grad_()
    results = []
    for output in (layer(x)[0], loop(layer, x)):
        # A sum of squares: with a plain sum all outputs would have the same gradient, which could hide a mistake.
        (gradient,) = torch.autograd.grad(output.square().sum(), x)
        results.append((output.detach(), gradient))
    for what, ours, theirs in zip(("outputs", "gradients"), *results, strict=True):
        difference = (ours - theirs).abs().max().item()
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            raise SystemExit(f"{name}: {what} of the compiled layer and of a Python loop differ by {difference:.1e}")
        print(f"{name}: {what} of the compiled layer are those of a Python loop, up to {difference:.1e}")
    compiled, eager = seconds(lambda x: layer(x)[0], x, rounds), seconds(lambda x: loop(layer, x), x, rounds)
    print(
        f"forward and backward of {len(x)} steps: compiled {1e3 * compiled:.1f} ms, Python loop {1e3 * eager:.1f} ms,"
        f" {eager / compiled:.1f} times as long",
        flush=True,
    )
