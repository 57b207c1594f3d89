"""Every row of the operator table: its torch text and its derivative against torch, and its functions in C++.

tests/cpu/test_math.py compares the functions of a CPU with torch, tests/cuda/test_math.py those of a GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rnncc.ir.family import ALTERNATING, GATHER, Family
from rnncc.language.operator_row import Operator
from rnncc.language.operators import OF_MATRICES, OPERATORS, STEPS
from rnncc.language.source import Source
from rnncc.language.surrogates import DERIVATIVES, GIVEN, SURROGATES
from rnncc.machine.paths import templates_dir
from rnncc.verify.reference import FUNCTIONS
from tests.compiling import lowered
from tests.cuda import kernels
from tests.cuda.inspected import Look
from tests.definitions import definition
from tests.packages import float64_package

TABLE = "rnncc/language/operators.py"
# Those whose value and derivative are numbers; matrix operators have derivatives in torch alone.
ELEMENTWISE = sorted(name for name in OPERATORS.keys() - OF_MATRICES - {"epsilon"})
COUNT = 400


class TensorFunctions:
    """What the table's derivatives call `f`, on tensors."""

    def __getattr__(self, name: str) -> object:
        def function(*arguments: Tensor | float) -> Tensor:
            return FUNCTIONS[name](*(torch.as_tensor(argument, dtype=torch.float64) for argument in arguments))

        return function


def draw(row: Operator) -> list[Tensor]:
    """Arguments from the row's domain, away from its kinks and from ties between arguments."""
    generator = torch.Generator().manual_seed(0)
    low, high = row.domain
    arguments = [
        torch.rand(COUNT, generator=generator, dtype=torch.float64) * (high - low) + low for _ in range(row.arity)
    ]
    if row.name == "clamp":
        arguments[1:] = [-arguments[1].abs(), arguments[2].abs()]
    keep = torch.ones(COUNT, dtype=torch.bool)
    for position, argument in enumerate(arguments):
        for kink in row.kinks:
            keep &= (argument - kink).abs() > 1e-6
        for other in arguments[:position]:
            keep &= (argument - other).abs() > 1e-6
    return [argument[keep] for argument in arguments]


# A surrogate has the value that it is given; what it adds is the derivative.
DEFINED = [name for name in ELEMENTWISE if name not in DERIVATIVES]


@pytest.mark.parametrize("name", DEFINED)
def test_the_torch_text_is_torchs_function_of_that_name(name: str) -> None:
    arguments = draw(OPERATORS[name])
    text = OPERATORS[name].torch
    said = f"'{text}', the torch text of '{name}' in {TABLE}, is not the function that tests/definitions.py has"
    expected = definition(name)(*arguments)
    assert torch.equal(FUNCTIONS[name](*arguments), expected.to(arguments[0].dtype)), said


@pytest.mark.parametrize("name", [name for name in DEFINED if OPERATORS[name].value is not None])
def test_the_value_for_numbers_is_torchs(name: str) -> None:
    row = OPERATORS[name]
    first, *others = (argument.tolist() for argument in draw(row))
    for numbers in zip([*first, *(-number for number in first)], *(2 * other for other in others), strict=True):
        assert row.value is not None
        try:
            found = row.value(*numbers)
        except (ZeroDivisionError, OverflowError, ValueError):
            found = math.nan
        expected = float(definition(name)(*(torch.tensor(number, dtype=torch.float64) for number in numbers)))
        assert (found if isinstance(found, float) else math.nan) == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_derivative_equals_autograd(name: str) -> None:
    row = OPERATORS[name]
    arguments = draw(row)
    differentiated = 2 if name in DERIVATIVES else row.arity  # k is a number, not a value
    leaves = [argument.requires_grad_() for argument in arguments[:differentiated]]
    if differentiated < row.arity:
        arguments[2:] = [torch.tensor(2.5, dtype=torch.float64)]
    value = FUNCTIONS[name](*arguments)
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if value.requires_grad:
        expected = torch.autograd.grad(value, leaves, weights, allow_unused=True)
    with torch.no_grad():
        partials = row.derivative(TensorFunctions(), value, *arguments)
    assert len(partials) == row.arity, f"the derivative of '{name}' in {TABLE} gives {len(partials)} numbers"
    for position, (partial, gradient) in enumerate(zip(partials, expected, strict=False)):
        wanted = torch.zeros_like(weights) if gradient is None else gradient
        said = f"the derivative of '{name}' in {TABLE}, by argument {position}, is not autograd's.\n"
        torch.testing.assert_close(partial * weights, wanted, rtol=1e-11, atol=1e-13, msg=said.__add__)


@pytest.mark.parametrize("name", [n for n in DEFINED if OPERATORS[n].smooth])
def test_value_follows_its_derivative(name: str) -> None:
    """Central differences of the torch spelling: autograd and the table could be wrong together."""
    row = OPERATORS[name]
    arguments = draw(row)
    if name == "where":
        arguments[0] = (arguments[0] > 0).double()
    if name == "mod":
        # Away from the jumps of the quotient.
        whole = (arguments[0] / arguments[1] - (arguments[0] / arguments[1]).round()).abs() > 1e-3
        arguments = [argument[whole] for argument in arguments]
    value = FUNCTIONS[name](*arguments)
    partials = row.derivative(TensorFunctions(), value, *arguments)
    for position, partial in enumerate(partials):
        step = 1e-6
        moved = [
            FUNCTIONS[name](*(a + sign * step * (p == position) for p, a in enumerate(arguments))) for sign in (1, -1)
        ]
        slope = (moved[0] - moved[1]) / (2 * step)
        # Second-order error of the difference, and a kink of another argument's comparison within the step.
        said = f"the derivative of '{name}' in {TABLE}, by argument {position}, is not the slope of its torch text.\n"
        torch.testing.assert_close(slope, partial + torch.zeros_like(slope), rtol=1e-5, atol=1e-7, msg=said.__add__)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("relu", (0.0,), (0.0,)),
        ("abs", (0.0,), (0.0,)),
        ("sign", (0.0,), (0.0,)),
        ("max", (1.5, 1.5), (0.5, 0.5)),
        ("min", (1.5, 1.5), (0.5, 0.5)),
        ("clamp", (1.0, -1.0, 1.0), (1.0, 0.0, 0.0)),
        ("clamp", (-1.0, -1.0, 1.0), (1.0, 0.0, 0.0)),
        ("hardtanh", (1.0,), (0.0,)),
        ("hardsigmoid", (3.0,), (0.0,)),
        ("pow", (0.0, 2.0), (0.0, 0.0)),
        ("pow", (2.0, 0.0), (0.0, math.log(2.0))),
        ("heaviside", (0.0,), (0.0,)),
        ("softplus", (25.0,), (1.0,)),
    ],
)
def test_derivative_at_kinks_is_the_stated_one_and_torchs(
    name: str, arguments: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    tensors = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arguments]
    value = FUNCTIONS[name](*tensors)
    with torch.no_grad():
        partials = OPERATORS[name].derivative(TensorFunctions(), value, *tensors)
    assert tuple(float(partial) for partial in partials) == pytest.approx(expected, abs=0)
    if value.requires_grad:
        found = torch.autograd.grad(value, tensors, allow_unused=True)
        assert tuple(0.0 if g is None else float(g) for g in found) == pytest.approx(expected, abs=0)


def test_clamp_is_differentiable_where_a_bound_is_wider() -> None:
    values = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([0.5], 0.0, [1.0, 0.2])]
    found = torch.autograd.grad(FUNCTIONS["clamp"](*values).sum(), values)
    assert [gradient.tolist() for gradient in found] == [[1.0], 0.0, [0.0, 1.0]]


ONE_ARGUMENT = [name for name in DEFINED if OPERATORS[name].user and OPERATORS[name].arity == 1]


def derivative_and_torchs(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The row's derivative, of torch's value, and torch's derivative, at each x in its dtype."""

    class Functions(TensorFunctions):
        def __getattr__(self, name: str) -> object:
            return lambda *a: FUNCTIONS[name](*(torch.as_tensor(number, dtype=x.dtype) for number in a))

    x = x.detach().requires_grad_()
    y = definition(name)(x)
    (expected,) = torch.autograd.grad(y.sum(), x) if y.requires_grad else (torch.zeros_like(x),)
    with torch.no_grad():
        (partial,) = OPERATORS[name].derivative(Functions(), y, x)
        return torch.as_tensor(partial, dtype=x.dtype).expand(x.shape), expected


@pytest.mark.parametrize("name", [name for name in ONE_ARGUMENT if OPERATORS[name].kinks])
def test_derivative_at_the_rows_kinks_is_torchs(name: str) -> None:
    found, expected = derivative_and_torchs(name, torch.tensor(OPERATORS[name].kinks, dtype=torch.float64))
    assert torch.equal(found, expected), f"at its kinks {OPERATORS[name].kinks} '{name}' has the derivative {found}"


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_derivative_stays_finite_far_out(name: str) -> None:
    """Wherever torch's own does: a form in which infinities meet gives NaN."""
    found, expected = derivative_and_torchs(name, torch.tensor([-1e4, -200.0, 200.0, 1e4], dtype=torch.float32))
    said = f"the derivative of '{name}' in {TABLE} at ±200 and ±10000 is {found}, torch's {expected}"
    assert (found.isfinite() | ~expected.isfinite()).all(), said


def test_heaviside_is_zero_at_zero_in_every_variant() -> None:
    v = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    for name in DERIVATIVES:
        spikes = FUNCTIONS["heaviside"](v)
        assert spikes.tolist() == FUNCTIONS[name](v, spikes, torch.tensor(2.0)).tolist() == [0.0, 0.0, 1.0]


def test_round_takes_halves_to_the_even_number() -> None:
    v = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], dtype=torch.float64)
    assert FUNCTIONS["round"](v).tolist() == [-2.0, -2.0, -0.0, 0.0, 2.0, 2.0]


@pytest.mark.parametrize("name", STEPS)
def test_a_given_derivative_is_differentiated_no_further(name: str) -> None:
    strange = [torch.nan, torch.inf, -torch.inf, -0.0]
    v = torch.tensor([0.3, -1.7, 0.5, 1e30, *strange], dtype=torch.float64, requires_grad=True)
    value = FUNCTIONS[name](v)
    found = FUNCTIONS[GIVEN](v, value, torch.exp(-v.square()) + 1)
    assert torch.equal(found.nan_to_num(7), value.nan_to_num(7))
    (first,) = torch.autograd.grad(found.sum(), v, create_graph=True)
    assert torch.equal(first[:4], torch.exp(-v[:4].square()) + 1)
    assert not first.requires_grad or not torch.autograd.grad(first.sum(), v)[0].any()
    finite = v.detach()[:4]
    again = lambda w: FUNCTIONS[GIVEN](w, FUNCTIONS[name](w), torch.exp(-w.square()) + 1)  # noqa: E731
    tangent = torch.func.jvp(again, (finite,), (torch.ones_like(finite),))[1]
    assert torch.equal(tangent, first[:4])


def test_epsilon_is_that_of_the_dtype() -> None:
    for dtype in (torch.float32, torch.float64):
        assert float(FUNCTIONS["epsilon"](torch.zeros((), dtype=dtype))) == torch.finfo(dtype).eps


@pytest.mark.parametrize("k", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_are_heaviside_with_the_published_derivative_twice_and_forward(name: str, k: float) -> None:
    published: dict[str, Callable[[Tensor], Tensor]] = {
        "fast_sigmoid": lambda v: 1 / (1 + k * v.abs()) ** 2,
        "atan": lambda v: k / 2 / (1 + (torch.pi / 2 * k * v) ** 2),
        "sigmoid": lambda v: k * torch.sigmoid(k * v) * (1 - torch.sigmoid(k * v)),
        "triangular": lambda v: k * torch.relu(1 - v.abs()),
    }
    derivative = published[name]

    def spike(v: Tensor) -> Tensor:
        return FUNCTIONS[SURROGATES[name]](v, FUNCTIONS["heaviside"](v), k)

    generator = torch.Generator().manual_seed(0)
    random = 3 * torch.randn(500, generator=generator, dtype=torch.float64)
    v = torch.cat([random, torch.tensor([0.0, 1.0, -1.0, 1e9, -1e9], dtype=torch.float64)]).requires_grad_()
    strange = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    assert spike(strange).tolist() == [0, 1, 0, 0]
    assert torch.equal(spike(v), (v > 0).double())
    (first,) = torch.autograd.grad(spike(v).sum(), v, create_graph=True)
    torch.testing.assert_close(first, derivative(v), rtol=1e-14, atol=0)
    tangent = torch.func.jvp(spike, (v.detach(),), (torch.ones_like(v),))[1]
    torch.testing.assert_close(tangent, derivative(v.detach()), rtol=1e-14, atol=0)
    smooth = v.detach()[:500].requires_grad_()
    if k:
        second = torch.func.grad(lambda v: torch.func.jvp(spike, (v,), (torch.ones_like(v),))[1].sum())(smooth)
        (expected,) = torch.autograd.grad(derivative(smooth).sum(), smooth)
        torch.testing.assert_close(second, expected, rtol=1e-12, atol=1e-14)


# Where each row's function must stand, for it to compile on a CPU and on a GPU.
CPU_HEADERS = (*(f"cpu/{path.name}" for path in (templates_dir() / "include/rnncc/cpu").glob("math*.h")), "cpu/vec.h")
CALLS = [row for row in OPERATORS.values() if re.match(r"\w+\(", row.cpp)]


def headers(*names: str) -> str:
    """The text of headers under templates/include/rnncc."""
    folder = templates_dir() / "include" / "rnncc"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


@pytest.mark.parametrize("row", CALLS, ids=lambda row: row.name)
def test_a_row_has_its_function_for_cpus_and_gpus(row: Operator) -> None:
    name = row.cpp.partition("(")[0]
    defined = re.compile(rf"^((RNNCC_INLINE|RNNCC_DEVICE) [^=;]*\b{name}\(|RNNCC_CONDITION\({name},)", re.MULTILINE)
    assert defined.search(headers(*CPU_HEADERS)), f"write rnncc::{name} in templates/include/rnncc/cpu/math_….h"
    assert defined.search(headers("cuda/math.cuh")), f"write rnncc::{name} in templates/include/rnncc/cuda/math.cuh"


@pytest.mark.parametrize("row", [row for row in OPERATORS.values() if row.fast], ids=lambda row: row.name)
def test_a_fast_form_is_there_for_each_dtype(row: Operator) -> None:
    name = row.fast.partition("(")[0]
    assert len(re.findall(rf"static float {name}\(", headers("cuda/fused/device/fast.cuh"))) >= 2  # float32, 16 bits


CALLED = [row for row in OPERATORS.values() if row.user and row.in_loop]


def every_operator(rows: Sequence[Operator] = CALLED) -> str:
    """A cell in whose loop these operators stand, with arguments from their domains."""
    lines, used = ["cell EveryOperator", "state h"], []
    for row in rows:
        low, high = row.domain
        names = [f"{row.name}_{i}" for i in range(row.arity)]
        # Different ones, so that there are no ties; the first depends on the state.
        moved = ["R@h[t-1]", "0.3", "0.7"]
        lines += [f"{a} = {low} + {high - low}*sigmoid(W@x + {m})" for a, m in zip(names, moved, strict=False)]
        arguments = [f"{names[0]} > 0", *names[1:]] if row.name == "where" else names
        used.append(f"{row.name}({', '.join(arguments)})")
    return "\n".join([*lines, f"h[t] = tanh({' + '.join(used)})", ""])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_operator_in_a_loop(device: str) -> None:
    """The kernel, against torch's functions and autograd."""
    dtype = torch.float64 if device == "cpu" else torch.float32
    module = float64_package(every_operator(), "every")
    layer = module.EveryOperator(3, 4, dtype=dtype, device=device)
    eager = module.EveryOperator(3, 4, dtype=torch.float64, backend="reference")
    eager.load_state_dict(layer.state_dict())
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    results = []
    for module in (layer, eager):
        output, h_n = module(x.to(next(module.parameters())))
        gradients = torch.autograd.grad(output.square().sum() + h_n.sum(), list(module.parameters()))
        results.append([output, *gradients])
    rtol, atol = (1e-9, 1e-11) if device == "cpu" else (1e-4, 1e-5)
    for ours, expected in zip(*results, strict=True):
        said = "tests/cpu/test_math.py and tests/cuda/test_math.py say which operator it is.\n".__add__
        torch.testing.assert_close(ours.cpu().double(), expected, rtol=rtol, atol=atol, msg=said)


@pytest.mark.parametrize("family", [ALTERNATING, GATHER], ids=lambda family: family.name)
def test_every_operator_in_a_loop_compiles_for_a_gpu(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Look
) -> None:
    # A fused kernel has no room for all of them; it takes the others as the alternating kernel does.
    rows = CALLED if family is ALTERNATING else [row for row in CALLED if row.fast]
    plan = lowered(Source("every.rnn", every_operator(rows)))
    monkeypatch.setattr(kernels, "plan", lambda _: plan)
    case = kernels.Case("everyoperator", family, "bf16", kernels.HOPPER, masked=False)
    assert kernels.sources(case)[0].device_units
    assert kernels.check(case, tmp_path, False, look) == ()
