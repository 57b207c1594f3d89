"""Loops without products on a GPU: every form against the float64 reference, and which kernels run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from tests.cuda.harness import DTYPES, ctas_of, kernels_of, launches_of

pytestmark = pytest.mark.gpu

CLASSES = {
    "mingru": "minGRU", "minlstm": "minLSTM", "lru": "LRU", "indrnn": "IndRNN", "sru": "SRU", "rwkv4": "RWKV4",
    "brc": "BRC", "unicornn": "UnICORNN",
}  # fmt: skip
# A scan, two coupled states and gradients of vectors, a walk, several loops.
MAIN = ("mingru", "lru", "indrnn", "rwkv4")


def layer_of(cell: str, hidden: int, dtype: torch.dtype, **keywords: Any) -> Any:
    """A layer of such a hidden size and inputs, on the CPU."""
    torch.manual_seed(0)
    return getattr(rnncc.load(cell), CLASSES[cell])(hidden, hidden, **keywords).to(dtype)


def results(layer: Any, x: Tensor, **keywords: Any) -> dict[str, Tensor]:
    """Outputs, final states, every gradient, and outputs without gradients; on the CPU in float64."""
    parameter = next(layer.parameters())
    x = x.to(parameter.device, parameter.dtype).detach().requires_grad_()
    masks = {key: value.to(x.device) for key, value in keywords.items()}
    layer.zero_grad()
    y, last = layer(x, **masks)
    values = [y, *(last if isinstance(last, tuple) else (last,))]
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(value.shape, generator=generator).to(parameter.dtype).to(value) for value in values]
    torch.autograd.backward(values, cotangents)
    with torch.no_grad():
        inference = layer(x, **masks)[0]
    found = {f"value {i}": value for i, value in enumerate(values)} | {"inference": inference, "d_x": x.grad}
    found |= {name: own.grad for name, own in layer.named_parameters()}
    return {name: value.detach().cpu().double() for name, value in found.items() if value is not None}


def assert_true(cell: str, dtype: torch.dtype, steps: int, batch: int, hidden: int, **keywords: Any) -> None:
    """Everything is within the dtype's bound of the float64 reference; where the CPU's kernels are not (their layers
    round what they compute of parameters alike), not twice as far from it as they are."""
    masks = {key: keywords.pop(key) for key in ("lengths", "reset") if key in keywords}
    layer, exact = (layer_of(cell, hidden, dtype, **keywords) for _ in range(2))
    x = torch.randn(steps, batch, hidden, generator=torch.Generator().manual_seed(2)).to(dtype)
    on_cpu = results(layer, x, **masks)
    ours = results(layer.cuda(), x, **masks)
    expected = results(exact.double(), x.double(), **masks)
    assert ours.keys() == on_cpu.keys() == expected.keys()
    wrong = {}
    for name, value in expected.items():
        error, peer = (verify.relative_error(found[name], value) for found in (ours, on_cpu))
        if not error <= max(verify.BOUNDS[dtype], 2 * peer):
            wrong[name] = f"{error:.1e}, on the CPU {peer:.1e}"
    assert wrong == {}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("hidden", [7, 24, 64, 200])
@pytest.mark.parametrize("cell", MAIN)
def test_hidden_sizes(cell: str, hidden: int, dtype: torch.dtype) -> None:
    """Odd ones take the narrow form."""
    assert_true(cell, dtype, 37, 3, hidden)


@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("steps", [1, 2, 31, 32, 127, 1009, 5000])
@pytest.mark.parametrize("cell", MAIN)
def test_steps_and_batches(cell: str, steps: int, batch: int) -> None:
    """From one block to clusters of sixteen, and several rounds of them."""
    assert_true(cell, torch.float32, steps, batch if steps < 5000 else 1, 32)


@pytest.mark.parametrize("cell", ["mingru", "lru", "indrnn", "sru"])
def test_masks_and_directions(cell: str) -> None:
    masks = {"lengths": torch.tensor([70, 1, 64, 33, 7]), "reset": torch.rand(70, 5) < 0.1}
    assert_true(cell, torch.float32, 70, 5, 48, bidirectional=True, **masks)


@pytest.mark.parametrize("cell", CLASSES)
def test_twice_the_same_and_in_chunks(cell: str) -> None:
    layer = layer_of(cell, 64, torch.float32).cuda()
    x = torch.randn(300, 2, 64, device="cuda")
    with torch.no_grad():
        (y, _), (again, _) = layer(x), layer(x)
        first, state = layer(x[:131])
        rest, _ = layer(x[131:], state)
    assert torch.equal(y, again)
    torch.testing.assert_close(torch.cat((first, rest)), y, atol=2e-5, rtol=2e-5)


@dataclass(frozen=True)
class Form:
    """What runs a loop of a cell: `kernels` end like this; both directions are one launch."""

    cell: str
    hidden: int
    forward: str
    backward: str


@pytest.mark.parametrize(
    "form",
    [
        Form("mingru", 64, "tall", "tall"),
        Form("mingru", 60, "narrow", "narrow"),
        Form("indrnn", 64, "tall", "tall"),
        Form("mingru", 8192, "vectorised", "vectorised"),
    ],
    ids=lambda form: f"{form.cell}-{form.hidden}",
)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_which_kernels_run(form: Form, bidirectional: bool) -> None:
    layer = layer_of(form.cell, form.hidden, torch.bfloat16, bidirectional=bidirectional).cuda()
    x = torch.randn(64, 4, form.hidden, device="cuda", dtype=torch.bfloat16)
    held: list[Tensor] = []

    def own(run: Callable[[], object]) -> list[str]:
        return [name for name in launches_of(run) if name.startswith(f"{form.cell}_0_")]

    assert own(lambda: held.append(layer(x)[0])) == [f"{form.cell}_0_forward_{form.forward}"]
    assert own(lambda: torch.autograd.backward(held[0].sum())) == [f"{form.cell}_0_backward_{form.backward}"]
    assert "one launch per sequence at every size" in layer.explain()


def test_rows_that_are_no_pieces_of_16_bytes_take_the_narrow_form() -> None:
    module = rnncc.load("mingru")
    stream = torch.randn(33, 4, 2 * 64 + 1, device="cuda", dtype=torch.bfloat16)[..., : 2 * 64]
    state = torch.zeros(4, 64, device="cuda", dtype=torch.bfloat16)

    def run(given: Tensor) -> Tensor:
        y: Tensor = module.mingru((given,), (), (state,))[0]
        return y

    assert not any(name.endswith("_tall") for name in kernels_of(lambda: run(stream)))
    assert any(name.endswith("_tall") for name in kernels_of(lambda: run(stream.contiguous())))
    torch.testing.assert_close(run(stream), run(stream.contiguous()), atol=1e-2, rtol=1e-2)


@pytest.mark.hopper
def test_few_channels_share_steps_among_blocks(tmp_path: Any) -> None:
    layer = layer_of("mingru", 64, torch.bfloat16).cuda()

    def blocks(steps: int) -> int:
        x = torch.randn(steps, 1, 64, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            found = ctas_of(lambda: layer(x), tmp_path)
        return next(count for name, count in found.items() if name.startswith("mingru_0_forward"))

    assert blocks(8) < blocks(4096)


def test_one_column_of_many_blocks_is_poisoned_alone() -> None:
    layer = layer_of("mingru", 64, torch.float32).cuda()
    x = torch.randn(2000, 3, 64, device="cuda")
    with torch.no_grad():
        clean = layer(x)[0]
        x[1000, 1] = float("nan")
        poisoned = layer(x)[0]
    assert torch.equal(poisoned[:, [0, 2]], clean[:, [0, 2]])
    # The tile of the NaN is run in another order: what came before is the same but for rounding.
    torch.testing.assert_close(poisoned[:1000], clean[:1000], atol=1e-6, rtol=1e-5)
    assert poisoned[1000:, 1].isnan().any()
