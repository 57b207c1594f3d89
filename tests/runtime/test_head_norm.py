"""The op `head_norm` as torch sees it: schemas, fake kernels, autograd of any order, forward mode, and who may call it.
Implementations for the CPU stand for the kernels, which need a GPU (tests/cuda/test_head_norm.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from rnncc.machine.paths import templates_dir
from rnncc.runtime.eager import rows
from rnncc.runtime.kernels.kernels import Kernels
from rnncc.runtime.modules.directions import LayerCall, Tools
from rnncc.runtime.ops.head_norm import make_head_norm, takes_head_norm

SPACE = "rnncc_head_norm"
HEADS, K, D = 3, 2, 4
NUMBERS = (HEADS, K, 1e-5)
UNITS = 64  # of the largest head


def forward(
    value: Tensor, weight: Tensor | None, bias: Tensor | None, heads: int, k: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What the op gives, by torch's operators."""
    split = rows.split_heads(value, heads, k)
    means = split.mean(-1)
    variances = (split - means.unsqueeze(-1)).square().mean(-1)
    result = rows.layer_norm(value, heads, k, epsilon, weight, bias)
    return result, means.float(), (variances + epsilon).rsqrt().float()


def gradients(d: Tensor, value: Tensor, weight: Tensor | None, *rest: Any) -> list[Tensor]:
    """What its backward gives, from the means and scales that it is given."""
    means, scales, k, needs = rest
    heads = means.shape[-1]
    split = (rows.split_heads(value, heads, k) - means.unsqueeze(-1)) * scales.unsqueeze(-1)
    normalised = rows.join_heads(split, heads, k)
    g = rows.split_heads(d if weight is None else d * weight, heads, k)
    flowing = g - g.mean(-1, keepdim=True) - split * (g * split).mean(-1, keepdim=True)
    d_value = rows.join_heads(flowing * scales.unsqueeze(-1), heads, k)
    leading = tuple(range(value.dim() - 1))
    made = (d_value.to(value.dtype), (d * normalised).sum(leading).to(d.dtype), d.sum(leading))
    return [tensor.contiguous() for tensor, need in zip(made, needs, strict=True) if need]


@pytest.fixture(scope="module")
def op() -> Iterator[Callable[..., Any]]:
    """As eager code calls it."""
    text = (templates_dir() / "include" / "rnncc" / "torch" / "schema.h").read_text(encoding="utf-8")
    library = torch.library.Library(SPACE, "DEF")  # type: ignore[no-untyped-call]
    for name, kernel in (("head_norm", forward), ("head_norm_backward", gradients)):
        schema = re.search(rf' {name}_schema =\s*((?:"[^"]*"\s*)*);', text)
        assert schema is not None
        library.define(name + "".join(re.findall(r'"([^"]*)"', schema[1])))  # type: ignore[no-untyped-call]
        library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
    yield make_head_norm(library, SPACE)
    library._destroy()  # type: ignore[no-untyped-call]


def by_name() -> Any:
    """The same through the dispatcher."""
    return torch.ops.rnncc_head_norm.head_norm


def tensors(vectors: str = "wb", dtype: torch.dtype = torch.float64, leading: Sequence[int] = (5, 2)) -> list[Any]:
    """Value, weight and bias, of which those named are there."""
    torch.manual_seed(0)
    made = [torch.randn(*leading, K * HEADS * D), torch.randn(K * HEADS * D), torch.randn(K * HEADS * D)]
    wanted = (True, "w" in vectors, "b" in vectors)
    return [t.to(dtype).requires_grad_() if want else None for t, want in zip(made, wanted, strict=True)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("vectors", ["wb", "w", "b", ""])
def test_opcheck(op: Callable[..., Any], vectors: str) -> None:
    for leading in ((5, 2), (7,), (0, 2)):
        given = tensors(vectors, torch.float32, leading)
        assert set(torch.library.opcheck(by_name(), (*given, *NUMBERS)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("vectors", ["wb", "w", "b", ""])
def test_the_result_has_the_vectors_dtype(op: Callable[..., Any], vectors: str) -> None:
    value, *rest = (None if tensor is None else tensor.to("meta") for tensor in tensors(vectors, torch.float32))
    assert value is not None
    result, means, scales = by_name()(value.bfloat16(), *rest, *NUMBERS)
    assert result.dtype == (torch.float32 if vectors else torch.bfloat16) and result.shape == value.shape
    assert means.dtype == scales.dtype == torch.float32 and means.shape == scales.shape == (5, 2, HEADS)


@pytest.mark.long
@pytest.mark.parametrize("vectors", ["wb", "w", "b", ""])
def test_gradients_once_twice_and_many_at_once(op: Callable[..., Any], vectors: str) -> None:
    given = tensors(vectors)
    leaves = [tensor for tensor in given if tensor is not None]
    flowing = torch.randn_like(given[0])
    expected = torch.autograd.grad(rows.layer_norm(given[0], *NUMBERS, *given[1:]), leaves, flowing)
    for called in (op, by_name()):

        def run(*leaves: Tensor, called: Any = called) -> Tensor:
            fresh = iter(leaves)
            made: Tensor = called(*(None if t is None else next(fresh) for t in given), *NUMBERS)[0]
            return made

        for own, other in zip(torch.autograd.grad(run(*leaves), leaves, flowing), expected, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)  # the statistics are float32
        assert torch.autograd.gradgradcheck(run, tuple(leaves))
        jacobian: Any = torch.autograd.functional.jacobian
        detached = tuple(leaf.detach() for leaf in leaves)
        for own, other in zip(jacobian(run, detached, vectorize=True), jacobian(run, detached), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)


def test_what_needs_no_gradient_gets_none(op: Callable[..., Any]) -> None:
    given = tensors()
    given[0].requires_grad_(False)
    given[1].requires_grad_(False)
    result, means, scales = op(*given, *NUMBERS)
    assert result.requires_grad and not means.requires_grad and not scales.requires_grad
    result.sum().backward()
    assert given[0].grad is None and given[1].grad is None
    torch.testing.assert_close(given[2].grad, torch.full_like(given[2], 10))


def test_the_backward_makes_no_gradients_of_zero(op: Callable[..., Any]) -> None:
    """Means and scales have none. And what a function after the norm has no gradient for, the norm has none for."""
    given = tensors()
    result = op(*given, *NUMBERS)[0]
    with torch.profiler.profile() as seen:
        result.sum().backward()
    assert "aten::zeros" not in {event.key for event in seen.key_averages()}

    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *_: Any) -> None:
            return None

    again = tensors()
    Ends.apply(op(*again, *NUMBERS)[0]).sum().backward()  # type: ignore[no-untyped-call]
    assert all(tensor.grad is None for tensor in again)


def test_forward_mode_takes_torch_s_operators(op: Callable[..., Any]) -> None:
    value, weight, bias = (tensor.detach() for tensor in tensors())
    tangent = torch.randn_like(value)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(value, tangent)  # type: ignore[no-untyped-call]
        expected = forward_ad.unpack_dual(rows.layer_norm(dual, *NUMBERS, weight, bias)).tangent  # type: ignore[no-untyped-call]
        for called in (op, by_name()):
            results = called(dual, weight, bias, *NUMBERS)
            assert torch.equal(forward_ad.unpack_dual(results[0]).tangent, expected)  # type: ignore[no-untyped-call]
            for own, other in zip(results, forward(value, weight, bias, *NUMBERS), strict=True):
                torch.testing.assert_close(own, other, check_dtype=False)


def test_the_backward_alone_has_no_derivative(op: Callable[..., Any]) -> None:
    value, weight, bias = tensors()
    result, means, scales = op(value, weight, bias, *NUMBERS)
    d = torch.randn_like(result).requires_grad_()
    backward = torch.ops.rnncc_head_norm.head_norm_backward
    (made,) = backward(d, value.detach(), weight.detach(), means, scales, K, [True, False, False])
    with pytest.raises(RuntimeError, match="differentiate head_norm twice instead"):
        made.sum().backward()


def test_compiles_in_one_graph(op: Callable[..., Any]) -> None:
    given = tensors(dtype=torch.float32)

    def run(*given: Tensor) -> Tensor:
        made: Tensor = by_name()(*given, *NUMBERS)[0]
        return made.square()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(run(*given).sum(), given)
    for own, other in zip(torch.autograd.grad(compiled(*given).sum(), given), expected, strict=True):
        torch.testing.assert_close(own, other)


class OnGpu(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).as_subclass(OnGpu)


def test_who_takes_the_kernel() -> None:
    vector, half = torch.ones(24), torch.ones(24, dtype=torch.bfloat16)
    value = on_gpu(2, 24)

    def takes(value: Tensor, heads: int, *vectors: Tensor | None) -> bool:
        return takes_head_norm(value, heads, 2, vectors, UNITS)

    assert takes(value, 3, vector, None) and takes(value, 3, None, None)
    assert takes(value.bfloat16(), 3, half, half) and takes_head_norm(value.half(), 3, 2, (vector, None), UNITS)
    assert not takes(value, 1, None, None)  # torch's own layer norm is one pass
    assert not takes(torch.randn(2, 24), 3, None, None)
    assert not takes(value.double(), 3, None, None)
    assert not takes(value, 3, half, None)
    assert not takes(value.half(), 3, half, None)
    assert not takes(value.bfloat16(), 3, vector, half)
    assert takes(on_gpu(1, 2 * (UNITS - 14)), 2, None, None)
    assert not takes(on_gpu(1, 2 * UNITS), 2, None, None)


def test_a_layer_asks_for_it(op: Callable[..., Any]) -> None:
    asked: list[Any] = []

    def called(*arguments: Any) -> Any:
        asked.append(arguments)
        return forward(*arguments)

    value, weight, bias = (tensor.detach() for tensor in tensors(dtype=torch.float32))
    expected = rows.layer_norm(value, *NUMBERS, weight, bias)
    cell: Any = None
    for kernels in (None, Kernels("", {}, calls={"head_norm": called}, head_norm_units=UNITS)):
        tools = Tools(LayerCall(cell, kernels, {}), cell, value, {}, {})
        for given in (value, value.as_subclass(OnGpu)):
            made = tools.layer_norm(given, *NUMBERS, weight, bias)
            torch.testing.assert_close(made.as_subclass(Tensor), expected)
    assert len(asked) == 1 and isinstance(asked[0][0], OnGpu)
