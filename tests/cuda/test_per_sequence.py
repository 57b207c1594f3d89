"""Inputs per sequence on a GPU: every kind of kernel reads them with a stride of 0 over time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import rnncc
from rnncc import verify
from rnncc.language.source import Source
from tests.compiling import front
from tests.cuda.harness import add_kernels, launches_of
from tests.cuda.kernels import plan
from tests.cuda.shapes import compiled, stepwise_kernels
from tests.runtime.test_per_sequence import CELLS, TEXT, cells, twins

pytestmark = pytest.mark.gpu

H = 64
LENGTHS = (9, 1, 30, 4, 17)
ONCE = """cell Once
input c: H per sequence, gap: 1 per sequence
state h
weights V: matrix
f, i = sigmoid(V@c + b)
h[t] = f*h[t-1]*exp(-gap) + i*tanh(R@h[t-1] + W@x) + 0.1*c
"""


@pytest.mark.parametrize("name", CELLS)
def test_against_the_reference(name: str) -> None:
    (cell,) = (cell for cell, _ in front(Source("once", TEXT)) if cell.name == name)
    report = verify.verify(getattr(cells(), name), cell, device="cuda", dtypes=(torch.float32, torch.bfloat16))
    assert [row for row in report.rows if not row.passed] == []


def drawn(layer: Any, batch: int, dtype: torch.dtype) -> dict[str, Tensor]:
    sizes = {"I": H, "H": H, "num_heads": layer.num_heads}
    items = [item for item in layer.spec.inputs[1:] if item.default is None]
    return {item.name: torch.rand(batch, item.width(sizes), device="cuda").to(dtype) for item in items}


def results(layer: Any, x: Any, extra: Callable[[Tensor], Any], given: dict[str, Tensor], **masks: Any) -> list[Tensor]:
    """The output, the final states and all gradients."""
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    output, finals = layer(x, **{name: extra(value) for name, value in leaves.items()}, **masks)
    output = output.data if isinstance(output, PackedSequence) else output
    values = [output, *(finals if isinstance(finals, tuple) else (finals,))]
    loss = torch.stack([(value.float() * (value.float() + 1)).sum() for value in values]).sum()
    return [*values, *torch.autograd.grad(loss, [*leaves.values(), *layer.parameters()])]


def at_steps(value: Tensor) -> Tensor:
    """A value per sequence at every step."""
    return value.expand(max(LENGTHS), *value.shape)


def at_rows(value: Tensor) -> PackedSequence:
    """The same for packed sequences."""
    return pack_sequence([value[b].expand(n, -1) for b, n in enumerate(LENGTHS)], enforce_sorted=False)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "alternating"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_it_is_what_the_same_value_at_every_step_is(
    name: str, dtype: torch.dtype, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded, with masks, backwards, recomputed, and packed."""
    monkeypatch.setenv("RNNCC_COMPILE", "1" if fused else "0")
    batch, steps = len(LENGTHS), max(LENGTHS)
    x = torch.randn(steps, batch, H, device="cuda").to(dtype)
    masks = {"lengths": torch.tensor(LENGTHS, device="cuda"), "reset": torch.rand(steps, batch, device="cuda") < 0.2}
    packed = pack_sequence([x[:n, b] for b, n in enumerate(LENGTHS)], enforce_sorted=False)
    calls: tuple[tuple[Any, Callable[[Tensor], Any], dict[str, Tensor]], ...] = (
        (x, at_steps, {}), (x, at_steps, masks), (packed, at_rows, {}),
    )  # fmt: skip
    for options in ({}, {"bidirectional": True}, {"recompute": True}):
        torch.manual_seed(0)
        # The twin computes in float32, so in 16 bits all of the difference is what is judged.
        one = getattr(cells(), name)(H, H, device="cuda", dtype=dtype, **options)
        other = getattr(twins(), name)(H, H, device="cuda", **options)
        other.load_state_dict(one.state_dict())
        given = drawn(one, batch, dtype)
        exact = {key: value.float() for key, value in given.items()}
        for index, (data, extra, marks) in enumerate(calls):
            found = results(one, data, Tensor.clone, given, **marks)
            expected = results(other, data.to(torch.float32), extra, exact, **marks)
            errors = [verify.relative_error(a, b) for a, b in zip(found, expected, strict=True)]
            bound = 2e-5 if dtype == torch.float32 else 2e-2
            assert all(error <= bound for error in errors), (options, index, errors)


def test_gradients_of_long_packed_sequences_are_added_in_float32() -> None:
    """In bfloat16, a sum of 4,000 ones stops growing at the 256th."""
    text = "cell Bias\ninput c: H per sequence\nstate h\noutput y\nh[t] = 0.5*h[t-1] + W@x\ny = h[t] + c\n"
    layer = rnncc.compile(text, "bias").Bias(2, 3, device="cuda", dtype=torch.bfloat16)
    c = torch.zeros(2, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    x = pack_sequence([torch.randn(n, 2, device="cuda", dtype=torch.bfloat16) for n in (4000, 1000)])
    layer(x, c=c)[0].data.float().sum().backward()
    assert c.grad is not None
    torch.testing.assert_close(c.grad.float().cpu(), torch.tensor([[4000.0], [1000.0]]).expand(2, 3), rtol=0.01, atol=0)


def test_one_launch_per_step(tmp_path: Path) -> None:
    path = tmp_path / "once.rnn"
    path.write_text(ONCE, encoding="utf-8")
    wanted = stepwise_kernels(plan(str(path)), H, "bf16", 1)
    folder = compiled(plan(str(path)), wanted, tmp_path)
    module = rnncc.compile(ONCE, "once_by_steps")
    assert add_kernels(module, folder) == len(wanted.kernels)
    (cell,) = (cell for cell, _ in front(Source("once", ONCE)))
    layer = module.Once(H, H, device="cuda", dtype=torch.bfloat16)
    given = drawn(layer, 3, torch.bfloat16)
    names = launches_of(lambda: layer(torch.randn(9, 3, H, device="cuda").bfloat16(), **given))
    assert sum("_stepwise" in name for name in names) == 10, names
    case = verify.Case(9, 5, sizes=(("I", H), ("H", H)))
    report = verify.verify(module.Once, cell, device="cuda", dtypes=(torch.bfloat16,), cases=(case,))
    assert [row for row in report.rows if not row.passed] == []
