"""The kernels of `head_norm`: layer norm over each head. Their arithmetic on the CPU, thread by thread, and the op on a
GPU. float64 torch says what is right."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.runtime.eager import rows
from tests.cuda.harness import launches_of
from tests.emulated.compiled import library_of

on_gpu = pytest.mark.gpu
# The dtypes of value and result, as head_norm.cpp counts them, and the bound of the result's relative error.
DTYPES = (
    (torch.float32, torch.float32, 2e-6),
    (torch.bfloat16, torch.bfloat16, 6e-3),
    (torch.bfloat16, torch.float32, 2e-6),
    (torch.float16, torch.float16, 8e-4),
    (torch.float16, torch.float32, 2e-6),
)
dtypes_given = pytest.mark.parametrize("dtype", range(len(DTYPES)), ids=["f32", "bf16", "bf16-f32", "f16", "f16-f32"])
EPSILON = 1e-5
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Problem:
    """Tensors of a norm on a device, and the right results of them."""

    heads: int
    k: int
    given: tuple[Tensor, Tensor | None, Tensor | None]
    d: Tensor

    @staticmethod
    def make(shape: Sequence[int], dtype: int, vectors: str = "wb", device: str = "cpu") -> Problem:
        """`shape`: rows, heads, k, head_dim. The values of a row lie far from zero."""
        torch.manual_seed(1)
        count, heads, k, head_dim = shape
        width, (of_value, of_result, _) = k * heads * head_dim, DTYPES[dtype]

        def draw(*sizes: int) -> Tensor:
            return torch.randn(sizes, device=device)

        value = draw(count, width) * (0.5 + draw(count, 1).sigmoid()) + 3 * draw(count, 1)
        weight, bias, d = draw(width) + 1, draw(width), draw(count, width)
        given = (
            value.to(of_value),
            weight.to(of_result) if "w" in vectors else None,
            bias.to(of_result) if "b" in vectors else None,
        )
        return Problem(heads, k, given, d.to(of_result))

    def right(self) -> dict[str, Tensor]:
        """The results in float64."""
        leaves = [None if t is None else t.double().requires_grad_() for t in self.given]
        value = leaves[0]
        assert value is not None
        result = rows.layer_norm(value, self.heads, self.k, EPSILON, leaves[1], leaves[2])
        wanted = {f"d_{name}": t for name, t in zip(("value", "weight", "bias"), leaves, strict=True) if t is not None}
        made = torch.autograd.grad(result, list(wanted.values()), self.d.double())
        split = rows.split_heads(value.detach(), self.heads, self.k)
        statistics = {"means": split.mean(-1), "scales": (split.var(-1, correction=0) + EPSILON).rsqrt()}
        return {"normalised": result.detach(), **statistics, **dict(zip(wanted, made, strict=True))}

    def check(self, results: dict[str, Tensor]) -> None:
        """All results are right, as far as their dtypes allow."""
        right = self.right()
        assert results.keys() == right.keys()
        for name, own in results.items():
            bound = next(bound for value, result, bound in DTYPES if value == result == own.dtype)
            error = (own.double() - right[name]).norm() / right[name].norm().clamp(min=1e-9)
            assert own.isfinite().all() and error < bound, f"{name}: {error:.1e}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    opened = ctypes.CDLL(str(library_of(HERE / "head_norm.cpp", tmp_path_factory.mktemp("head_norm"))))
    opened.head_norm.restype = ctypes.c_char_p
    return opened


class Emulated:
    """A problem's results by the emulated kernels, and how these shared the work. `shift`: bytes from a multiple of 16
    to the tensors."""

    def __init__(self, library: ctypes.CDLL, problem: Problem, dtype: int, ctas: int = 2, shift: int = 0) -> None:
        self.library, self.problem, self.dtype, self.ctas, self.shift = library, problem, dtype, ctas, shift
        value, weight, bias = (None if t is None else self.place(t) for t in problem.given)
        assert value is not None
        head_dim = value.shape[-1] // (problem.heads * problem.k)
        self.numbers = (value.shape[0], problem.heads, problem.k, head_dim)
        of_result = DTYPES[dtype][1]
        statistics = torch.full((2, value.shape[0], problem.heads), torch.nan)
        self.results = {"normalised": self.place(torch.full_like(value, torch.nan, dtype=of_result))}
        self.results |= {"means": statistics[0], "scales": statistics[1]}
        self.forward = self.run((value, weight, bias, self.results["normalised"], None, None, *statistics, None, None))
        made = {"d_value": self.place(torch.full_like(value, torch.nan))}
        for name, vector in (("d_weight", weight), ("d_bias", bias)):
            if vector is not None:
                made[name] = torch.full_like(vector, torch.nan)
        d = self.place(problem.d)
        self.backward = self.run(
            (value, weight, None, None, d, made["d_value"], *statistics, made.get("d_weight"), made.get("d_bias"))
        )
        self.results |= made

    def place(self, tensor: Tensor) -> Tensor:
        """A copy that begins so many bytes after a multiple of 16."""
        held = torch.zeros(tensor.numel() + 32, dtype=tensor.dtype)
        first = (-held.data_ptr() % 16 + self.shift) // tensor.itemsize
        return held[first : first + tensor.numel()].view_as(tensor).copy_(tensor)

    def run(self, tensors: Sequence[Tensor | None]) -> tuple[int, int, int]:
        """The team, its turns, and whether pieces are aligned."""
        pointers = (ctypes.c_void_p * 10)(*(None if t is None else t.data_ptr() for t in tensors))
        backward = tensors[4] is not None
        numbers = (ctypes.c_int64 * 6)(*self.numbers, self.ctas, 4 if backward else 1)
        shared = (ctypes.c_int64 * 3)()
        problem = self.library.head_norm(pointers, numbers, ctypes.c_float(EPSILON), ctypes.c_int64(self.dtype), shared)
        assert problem is None, problem.decode()
        return shared[0], shared[1], shared[2]


# Rows, heads, k, head_dim: teams of one thread and of a whole CTA, pieces that are whole or not, rows too few or many.
SHAPES = [
    (7, 2, 1, 8), (1, 3, 4, 8), (40, 12, 4, 64), (9, 3, 4, 256), (5, 2, 1, 20), (6, 3, 3, 100), (3, 2, 3, 1),
    (2, 7, 1, 9), (3, 2, 4, 512), (2, 2, 4, 1024), (1, 40, 1, 33),
]  # fmt: skip
# Those that are emulated soon: all kinds of teams and pieces but rows too few for a CTA.
QUICK = [(7, 2, 1, 8), (40, 12, 4, 64), (5, 2, 1, 20), (3, 2, 3, 1), (1, 40, 1, 33)]


@pytest.mark.always(shape=QUICK, dtype=[0, 1])
@dtypes_given
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_emulated(library: ctypes.CDLL, shape: tuple[int, ...], dtype: int) -> None:
    problem = Problem.make(shape, dtype)
    problem.check(Emulated(library, problem, dtype).results)


@pytest.mark.parametrize("vectors", ["w", "b", ""])
def test_emulated_without_vectors(library: ctypes.CDLL, vectors: str) -> None:
    for dtype in range(len(DTYPES)):
        of_value, of_result, _ = DTYPES[dtype]
        if vectors or of_value == of_result:
            problem = Problem.make((5, 3, 2, 16), dtype, vectors)
            problem.check(Emulated(library, problem, dtype).results)


@dtypes_given
def test_emulated_beside_multiples_of_16(library: ctypes.CDLL, dtype: int) -> None:
    problem = Problem.make((5, 3, 2, 16), dtype)
    emulated = Emulated(library, problem, dtype, shift=4)
    problem.check(emulated.results)
    assert not emulated.forward[2] and not emulated.backward[2]
    assert Emulated(library, problem, dtype).backward[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "dtype", "ctas", "forward", "backward"),
    [
        # 16-bit numbers: 32 per thread.
        ((2, 3, 4, 256), 1, 1, (32, 2, 1), None),
        ((2, 3, 4, 256), 0, 1, (64, 2, 1), None),
        ((1, 2, 1, 8192), 1, 1, (256, 1, 1), None),
        # 40 rows of 12 heads are 480 teams of 8, of which a CTA of 128 threads has 16.
        ((40, 12, 4, 64), 1, 1000, (8, 1, 1), (8, 4, 1)),
        ((40, 12, 4, 64), 1, 3, (8, 10, 1), (8, 10, 1)),
    ],
)
def test_teams_and_turns(
    library: ctypes.CDLL,
    shape: tuple[int, ...],
    dtype: int,
    ctas: int,
    forward: tuple[int, ...],
    backward: tuple[int, ...] | None,
) -> None:
    emulated = Emulated(library, Problem.make(shape, dtype), dtype, ctas)
    assert emulated.forward == forward and backward in (None, emulated.backward)


def test_a_head_that_is_too_large(library: ctypes.CDLL) -> None:
    with pytest.raises(AssertionError, match="head_dim = 8448 is too large"):
        Emulated(library, Problem.make((1, 2, 1, 8448), 0), 0)
    # No number wraps around where the host counts.
    largest = (ctypes.c_int64 * 6)(1, 1, 1, 2**31 - 1, 1, 1)
    nothing, shared = (ctypes.c_void_p * 10)(), (ctypes.c_int64 * 3)()
    problem = library.head_norm(nothing, largest, ctypes.c_float(EPSILON), ctypes.c_int64(0), shared)
    assert problem is not None and b"head_dim = 2147483647 is too large" in problem


def test_values_far_from_zero(library: ctypes.CDLL) -> None:
    """The variance does not cancel: no worse than torch's own layer norm."""
    problem = Problem.make((6, 2, 2, 64), 0, "")
    far = Problem(2, 2, (problem.given[0] + 1000, None, None), problem.d)
    own = Emulated(library, far, 0).results["normalised"]
    right = far.right()["normalised"]
    others = rows.layer_norm(far.given[0], 2, 2, EPSILON, None, None)
    assert (own.double() - right).abs().max() <= 2 * (others.double() - right).abs().max() + 1e-6


def op() -> Any:
    """Through the dispatcher."""
    kernels, why = rnncc.load("layernormlstm").LayerNormLSTM(1, 1)._choose(torch.empty(0, device="cuda"))
    assert kernels is not None, why
    return kernels.ops["head_norm"]


def of_op(problem: Problem) -> dict[str, Tensor]:
    """A problem's results by the op."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in problem.given]
    value = leaves[0]
    assert value is not None
    result, means, scales = op()(*leaves, problem.heads, problem.k, EPSILON)
    wanted = {f"d_{name}": t for name, t in zip(("value", "weight", "bias"), leaves, strict=True) if t is not None}
    made = torch.autograd.grad(result, list(wanted.values()), problem.d)
    statistics = {"means": means, "scales": scales}
    return {"normalised": result.detach(), **statistics, **dict(zip(wanted, made, strict=True))}


@on_gpu
@dtypes_given
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("heads", [2, 3, 12])
def test_on_a_gpu(heads: int, k: int, dtype: int) -> None:
    for head_dim in (8, 20, 33, 64, 100, 256, 512):
        for count in (1, 7, 20000 if heads * k * head_dim <= 3072 else 2000):
            problem = Problem.make((count, heads, k, head_dim), dtype, device="cuda")
            problem.check(of_op(problem))


@on_gpu
@pytest.mark.parametrize("vectors", ["wb", "w", "b", ""])
def test_vectors_that_are_there(vectors: str) -> None:
    for dtype, (of_value, of_result, _) in enumerate(DTYPES):
        if vectors or of_value == of_result:
            problem = Problem.make((50, 3, 4, 256), dtype, vectors, "cuda")
            problem.check(of_op(problem))


@on_gpu
@dtypes_given
def test_the_same_bits_in_every_run_and_in_a_graph(dtype: int) -> None:
    problem = Problem.make((20000, 12, 4, 64), dtype, device="cuda")
    first, second = of_op(problem), of_op(problem)
    assert all(torch.equal(first[name], second[name]) for name in first)
    value, weight, bias = problem.given
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = op()(value, weight, bias, 12, 4, EPSILON)[0]
    value.mul_(0.5)
    graph.replay()
    assert torch.equal(captured, op()(value, weight, bias, 12, 4, EPSILON)[0])


@on_gpu
@dtypes_given
def test_no_rows(dtype: int) -> None:
    results = of_op(Problem.make((0, 3, 2, 16), dtype, device="cuda"))
    assert results["normalised"].shape == (0, 96) and results["means"].shape == (0, 3)
    assert not results["d_weight"].any() and not results["d_bias"].any()


@on_gpu
def test_tensors_with_gaps() -> None:
    whole = torch.randn(50, 4, 200, device="cuda")
    vectors = torch.randn(2, 96, 2, device="cuda")
    weight, bias = vectors[0, :, 0], vectors[1, :, 1]
    for value in (whole[..., :96], whole[..., 1:97], whole[..., 4:196:2], whole[:, :1, :96].expand(50, 4, 96)):
        leaves = [t.detach().requires_grad_() for t in (value, weight, bias)]
        right = [t.detach().double().requires_grad_() for t in leaves]
        own = op()(*leaves, 3, 2, EPSILON)[0]
        expected = rows.layer_norm(right[0], 3, 2, EPSILON, *right[1:])
        torch.testing.assert_close(own.double(), expected, rtol=1e-5, atol=1e-5)
        made = torch.autograd.grad(own.transpose(0, 1).sum(0).square().sum(), leaves)
        for d, other in zip(made, torch.autograd.grad(expected.sum(1).square().sum(), right), strict=True):
            assert (d.double() - other).norm() < 1e-5 * other.norm()


@on_gpu
@pytest.mark.parametrize("vectors", ["wb", "w", "b", ""])
def test_opcheck_and_second_derivatives(vectors: str) -> None:
    problem = Problem.make((6, 3, 2, 8), 0, vectors, "cuda")
    given = [None if t is None else t.requires_grad_() for t in problem.given]
    assert set(torch.library.opcheck(op(), (*given, 3, 2, EPSILON)).values()) == {"SUCCESS"}
    leaves = [t for t in given if t is not None]
    twice = []
    for run in (
        lambda v, w, b: op()(v, w, b, 3, 2, EPSILON)[0],
        lambda *t: rows.layer_norm(t[0], 3, 2, EPSILON, *t[1:]),
    ):
        once = torch.autograd.grad(run(*given), leaves, problem.d, create_graph=True)
        squares = torch.stack([d.square().sum() for d in once]).sum()
        twice.append(torch.autograd.grad(squares, leaves, allow_unused=True))
    for own, other in zip(*twice, strict=True):
        assert (own is None) == (other is None)
        if own is not None:
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


@on_gpu
def test_errors() -> None:
    value, vector = torch.randn(5, 24, device="cuda"), torch.ones(24, device="cuda")
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((value.double(), None, None, 3, 2), "no kernels for float64"),
        ((value, vector.bfloat16(), None, 3, 2), "the value's dtype, or be float32"),
        ((value.half(), vector.half(), vector, 3, 2), "differ in dtype"),
        ((value, vector[:5], None, 3, 2), "weight must be"),
        ((value, None, vector.cpu(), 3, 2), "same device|on the value's device"),
        ((value, None, None, 5, 2), "does not fit 5 heads"),
        ((value, None, None, 2**32, 2**32), "does not fit 4294967296 heads"),
        ((torch.randn(1, 2 * 9000, device="cuda"), None, None, 2, 1), "too large"),
    ]
    for given, message in cases:
        with pytest.raises(RuntimeError, match=message):
            op()(*given, EPSILON)


def layers(dtype: torch.dtype) -> tuple[Any, Any]:
    """A LayerNormLSTM with three heads on a GPU, and one of torch's own operators with the same parameters."""
    torch.manual_seed(2)
    cell = rnncc.load("layernormlstm").LayerNormLSTM
    made = [cell(24, 48, num_heads=3, device="cuda", dtype=dtype, backend=backend) for backend in (None, "reference")]
    with torch.no_grad():
        for parameter in made[0].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    made[1].load_state_dict(made[0].state_dict())
    return made[0], made[1]


@on_gpu
def test_a_layer_s_norm_is_one_kernel_and_two_backwards() -> None:
    layer, _ = layers(torch.bfloat16)
    x = torch.randn(9, 4, 24, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def run() -> None:
        layer(x)[0].sum().backward()

    run()
    names = [name for name in launches_of(run) if "head_norm" in name or "layer_norm" in name]
    assert names == ["head_norm_bf16_bf16", "head_norm_backward_bf16_bf16", "head_norm_sums_bf16"]


@on_gpu
@pytest.mark.parametrize("how", ["eager", "compiled", "autocast"])
def test_a_layer_as_torch_s_operators(how: str) -> None:
    layer, reference = layers(torch.float32)
    x = torch.randn(9, 4, 24, device="cuda")
    results = []
    for each in (layer, reference):
        run = torch.compile(each, fullgraph=True) if how == "compiled" and each is layer else each
        each.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=how == "autocast"):
            output = run(x)[0]
        output.float().square().sum().backward()
        results.append([output.detach().float(), *(parameter.grad for parameter in each.parameters())])
    bound = 5e-2 if how == "autocast" else 1e-4
    for own, other in zip(*results, strict=True):
        assert (own - other).norm() < bound * other.norm()


@on_gpu
def test_transforms_take_torch_s_operators() -> None:
    layer, reference = layers(torch.float32)
    x = torch.randn(5, 9, 4, 24, device="cuda")
    own = torch.func.vmap(lambda x: layer(x)[0])(x)
    torch.testing.assert_close(own, torch.stack([reference(each)[0] for each in x]), rtol=1e-4, atol=1e-4)
