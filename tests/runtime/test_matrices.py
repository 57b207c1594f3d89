"""Functions of matrices of parameters: what torch makes of them in every dtype, and where there is no result."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from rnncc.language.operators import OF_MATRICES, OPERATORS
from rnncc.runtime.eager import matrices
from rnncc.verify.reference import FUNCTIONS
from tests.packages import float64_package

TEXT = """
cell Exponential
state h
param A: matrix
S = A - T(A)
Q = expm(S)
h[t] = tanh(W@x + Q@h[t-1])

cell Inverse
state h
param A: matrix
h[t] = W@x + 0.5*inv(A)@h[t-1]

cell Transform
state h
param A: matrix
h[t] = W@x + 0.5*cayley(A)@h[t-1]

cell Normed
state h
weights V: matrix
n = norm(V_h)
h[t] = tanh(W@x + (normalize(V, axis=rows)@T(V)/n)@h[t-1])
"""
LINEAR = {
    "transpose": lambda a: a.mT,
    "tril": torch.tril,
    "triu": torch.triu,
    "expm": torch.linalg.matrix_exp,
    "inv": torch.linalg.inv,
    "cayley": lambda a: torch.linalg.inv(torch.eye(5) + a) @ (torch.eye(5) - a),
    "softmax_rows": lambda a: a.exp() / a.exp().sum(-1, keepdim=True),
    "softmax_columns": lambda a: a.exp() / a.exp().sum(-2, keepdim=True),
    "normalize_rows": lambda a: a / a.square().sum(-1, keepdim=True).sqrt(),
    "normalize_columns": lambda a: a / a.square().sum(-2, keepdim=True).sqrt(),
    "cumsum_rows": lambda a: a @ torch.ones(5, 5).triu(),
    "cumsum_columns": lambda a: torch.ones(5, 5).tril() @ a,
    "eye": lambda a: torch.eye(5).expand_as(a),
}


@cache
def package() -> Any:
    return float64_package(TEXT, "matrices")


@pytest.mark.parametrize("name", sorted(LINEAR))
@pytest.mark.parametrize("blocks", [None, 3])
def test_a_function_is_that_of_each_block(name: str, blocks: int | None) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        given = torch.randn(*([] if blocks is None else [blocks]), 5, 5)
        torch.testing.assert_close(FUNCTIONS[name](given), LINEAR[name](given))
        rows = [FUNCTIONS[name](block) for block in given.reshape(-1, 5, 5)]
        torch.testing.assert_close(FUNCTIONS[name](given).reshape(-1, 5, 5), torch.stack(rows))
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_other_functions_take_vectors_or_heads() -> None:
    others = {"matmul", "diag", "scale_rows", "scale_columns", "norm", "entries"}
    moves = {"roll_rows", "roll_columns", "shift_rows", "shift_columns"}
    assert others | moves | set(LINEAR) == OF_MATRICES
    assert not any(OPERATORS[name].in_loop or OPERATORS[name].user for name in OF_MATRICES)
    v, a = torch.randn(3, 4), torch.randn(3, 4, 4)
    torch.testing.assert_close(FUNCTIONS["scale_rows"](v, a), torch.diag_embed(v) @ a)
    torch.testing.assert_close(FUNCTIONS["scale_columns"](a, v), a @ torch.diag_embed(v))
    torch.testing.assert_close(FUNCTIONS["diag"](v), torch.diag_embed(v))


@pytest.mark.parametrize("places", [0, 1, -1, 3, -4, 5, 9, -9])
def test_rows_and_columns_move(places: int) -> None:
    a, fill = torch.arange(36.0).reshape(3, 4, 3), torch.tensor([0.5])
    for axis, dim in (("rows", -1), ("columns", -2)):
        assert torch.equal(FUNCTIONS[f"roll_{axis}"](a, torch.tensor(places)), a.roll(places, dim))
        # What leaves a matrix that goes on with the fill on both sides does not come in again.
        padded = torch.cat((torch.full((*a.shape[:-1], 9), 0.5), a, torch.full((*a.shape[:-1], 9), 0.5)), -1)
        beyond = torch.full((3, 9, 3), 0.5)
        padded = padded if dim == -1 else torch.cat((beyond, a, beyond), -2)
        moved = padded.roll(places, dim).narrow(dim, 9, a.shape[dim])
        assert torch.equal(FUNCTIONS[f"shift_{axis}"](a, torch.tensor(places), fill), moved)


def test_norms_are_those_of_heads() -> None:
    dense, blocks = torch.randn(4, 6), torch.randn(4, 2, 3)
    whole = dense.square().sum().sqrt()
    torch.testing.assert_close(matrices.norms(dense, 2), whole.expand(2))
    torch.testing.assert_close(matrices.norm(dense, 2), whole.reshape(1, 1))
    each = blocks.square().sum((1, 2))
    torch.testing.assert_close(matrices.norms(blocks, 4), each.sqrt())
    torch.testing.assert_close(matrices.norms(blocks, 2), each.reshape(2, 2).sum(1).sqrt())
    two = each.reshape(2, 2).sum(1, keepdim=True).sqrt().expand(2, 2).reshape(4, 1, 1)
    torch.testing.assert_close(matrices.norm(blocks, 2), two)
    # Blocks that are not divided among heads have no heads.
    torch.testing.assert_close(matrices.norms(blocks, 3), each.sum().sqrt().expand(3))


def test_a_row_of_zeros_stays_and_has_a_finite_gradient() -> None:
    given = torch.zeros(2, 3, requires_grad=True)
    normed = matrices.normalize(given, -1)
    (gradient,) = torch.autograd.grad(normed.sum(), given)
    assert not normed.any() and gradient.isfinite().all()
    (gradient,) = torch.autograd.grad(matrices.norm(given, 1).sum(), given)
    assert not gradient.any()


@pytest.mark.parametrize("function", [matrices.inv, matrices.cayley])
def test_without_an_inverse_all_is_infinite(function: Any) -> None:
    """And nothing is raised, for which a GPU would be waited for. Other matrices of the batch are as they are."""
    singular = torch.zeros(3, 3) if function is matrices.inv else -torch.eye(3)
    fine = torch.randn(3, 3)
    found = function(torch.stack((fine, singular)))
    assert (found[1] == torch.inf).all()
    torch.testing.assert_close(found[0], function(fine))
    layer = getattr(package(), "Inverse" if function is matrices.inv else "Transform")(2, 3)
    with torch.no_grad():
        layer.A_l0.copy_(singular)
    assert not layer(torch.ones(3, 1, 2), torch.ones(1, 1, 3))[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", [None, "reference"])
def test_16_bit_parameters_are_rounded_at_the_end_alone(dtype: torch.dtype, backend: str | None) -> None:
    """The matrix in the loop is the one of float32, rounded once."""
    torch.manual_seed(0)
    layer = package().Exponential(3, 8, dtype=dtype, num_heads=2, backend=backend)
    values: dict[str, Tensor] = {"x": torch.zeros(1, dtype=dtype)}
    layer.spec.derive(values, {"A": layer.A_l0}, {}, layer._sizes[0])
    skew = layer.gate_parameters()["A"].float()
    exact = torch.linalg.matrix_exp(skew - skew.mT)
    assert values["Q"].dtype == dtype
    assert torch.equal(values["Q"].reshape(2, 4, 4), exact.to(dtype))
    x = torch.randn(5, 2, 3, dtype=dtype)
    layer(x)[0].float().sum().backward()
    assert layer.A_l0.grad.dtype == dtype and layer.A_l0.grad.isfinite().all()


@pytest.mark.parametrize("name", ["Exponential", "Inverse", "Transform", "Normed"])
def test_autocast_leaves_them_in_float32(name: str) -> None:
    """A product of two matrices of parameters too, which torch would take in 16 bits."""
    torch.manual_seed(0)
    layer = getattr(package(), name)(3, 4)
    made: list[dict[str, Tensor]] = []
    derive = layer.spec.derive

    def watch(values: dict[str, Tensor], *rest: Any) -> None:
        derive(values, *rest)
        made.append(dict(values))

    object.__setattr__(layer.spec, "derive", watch)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            output, _ = layer(torch.randn(5, 2, 3))
        plain, _ = layer(torch.randn(5, 2, 3))
    finally:
        object.__setattr__(layer.spec, "derive", derive)
    assert output.dtype == torch.bfloat16 and plain.dtype == torch.float32
    first, second = made
    assert first.keys() == second.keys() and len(first) > 1
    for key in first.keys() - {"x"}:
        assert torch.equal(first[key], second[key])


@pytest.mark.parametrize("name", ["Exponential", "Inverse", "Transform", "Normed"])
def test_derivatives_of_every_order_and_mode(name: str) -> None:
    torch.manual_seed(0)
    layer = getattr(package(), name)(2, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("V_l0" if name == "Normed" else "A_l0").copy_(torch.tensor([[2.0, 0.3], [-0.4, 1.5]]))
    names = [key for key, _ in layer.named_parameters()]
    x = torch.randn(3, 2, 2, dtype=torch.float64)

    def run(*parameters: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))[0]
        return output

    given = tuple(parameter.detach().clone().requires_grad_() for parameter in layer.parameters())
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)
    directions = tuple(torch.randn_like(parameter) for parameter in given)
    tangent = torch.func.jvp(run, given, directions)[1]
    step = 1e-6
    ahead, back = (run(*(p + sign * step * d for p, d in zip(given, directions, strict=True))) for sign in (1, -1))
    torch.testing.assert_close(tangent, (ahead - back) / (2 * step), atol=1e-6, rtol=1e-6)


@pytest.mark.long
def test_torch_compile_takes_them_whole() -> None:
    for name in ("Exponential", "Inverse", "Transform", "Normed"):
        layer = getattr(package(), name)(3, 4, dtype=torch.float64)
        x = torch.randn(5, 2, 3, dtype=torch.float64)
        compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x)[0], layer(x)[0])
