"""Exported programs: gradients are decided when they run, not when they were traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import rnncc

T, B, IN, H = 5, 3, 3, 4
LAYERS: list[tuple[str, str, dict[str, Any]]] = [
    ("lstm", "LSTM", {}),
    ("lstm", "LSTM", {"bidirectional": True, "num_layers": 2, "recompute": True}),
    ("slstm", "sLSTM", {"num_heads": 2}),
    ("lif", "LIF", {}),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(file: str, name: str, **options: Any) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    layer = getattr(rnncc.load(file), name)(IN, H, dtype=torch.float64, **options)
    return layer, torch.randn(T, B, IN, dtype=torch.float64)


def results(module: Any, x: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    x = x.clone().requires_grad_()
    output = module(x)[0]
    return [output, *torch.autograd.grad(output.square().sum(), [x, *module.parameters()])]


class Kept(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many tensors each forward of a loop kept for its backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: list[int] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if op.__name__.endswith("_forward.default"):
            self.counts.append(len(result[2]))
        return result


@pytest.mark.one_in(4)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("file", "name", "options"), LAYERS)
def test_a_program_has_gradients_where_they_are_on(file: str, name: str, options: dict[str, Any], grad: bool) -> None:
    layer, x = make(file, name, **options)
    expected = results(layer, x)
    with torch.set_grad_enabled(grad):
        exported = torch.export.export(layer, (x,))
    for program in (exported.module(), exported.run_decompositions().module()):
        assert all(map(torch.equal, results(program, x), expected))
        with Kept() as kept, torch.no_grad():
            assert torch.equal(program(x)[0], expected[0]) and program(x)[0].grad_fn is None
        with kept, torch.inference_mode():
            assert torch.equal(program(x)[0], expected[0])
        assert kept.counts and not any(kept.counts)
        with kept:
            program(x)
        assert kept.counts[-1]


class Checkpointed(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


def test_a_program_compiled_or_checkpointed() -> None:
    layer, x = make("lstm", "LSTM", bidirectional=True)
    expected = results(layer, x)
    with torch.no_grad():
        program = torch.export.export(layer, (x,)).module()
    compiled: Any = torch.compile(program, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x)[0], expected[0])
    torch.testing.assert_close(results(compiled, x), expected, atol=1e-12, rtol=1e-12)
    assert all(map(torch.equal, results(Checkpointed(program), x), expected))


def test_a_program_clips_the_recurrent_gradient_or_is_refused() -> None:
    """Of an autograd.Function, torch.export keeps the forward alone: a clip in torch's own operators would be lost."""
    layer, x = make("lstm", "LSTM", recurrent_gradient_clip=0.01)
    expected = results(layer, x)
    for program in (torch.export.export(layer, (x,)), torch.export.export(layer, (x,)).run_decompositions()):
        assert all(map(torch.equal, results(program.module(), x), expected))
    layer.backend = "reference"
    step = rnncc.load("lstm").LSTMCell(IN, H, backend="reference", dtype=x.dtype, recurrent_gradient_clip=0.01)
    for module, argument in ((layer, x), (step, x[0])):
        for strict in (False, True):
            with pytest.raises(Exception, match="would have gradients without the recurrent_gradient_clip"):
                torch.export.export(module, (argument,), strict=strict)
    layer.recurrent_gradient_clip = None
    unclipped = results(torch.export.export(layer, (x,)).module(), x)
    assert not torch.allclose(unclipped[1], expected[1])


@pytest.mark.long
def test_the_eager_loop_decomposes_into_core_operators() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = rnncc.load("lstm").LSTM(IN, H, bidirectional=True, backend="reference")

        def forward(self, x: Tensor, h: Tensor, c: Tensor, lengths: Tensor, reset: Tensor) -> Any:
            return self.layer(x, (h, c), lengths=lengths, reset=reset)

    given = (torch.randn(T, B, IN), *torch.randn(2, 2, B, H), torch.tensor([5, 2, 3]), torch.rand(T, B) < 0.3)
    with torch.no_grad():
        program = torch.export.export(Model(), given).run_decompositions()
    ops = {node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    assert {op for op in ops if torch.Tag.core not in op.tags} == set()


@pytest.mark.long
def test_the_reference_s_clip_is_in_a_compiled_backward() -> None:
    layer, x = make("lstm", "LSTM", recurrent_gradient_clip=0.01, backend="reference")
    parameters = dict(layer.named_parameters())

    def loss(x: Tensor, *values: Tensor) -> tuple[Tensor]:
        output, _ = functional_call(layer, dict(zip(parameters, values, strict=True)), (x,))
        return (output.square().sum(),)

    expected = results(layer, x)
    torch.testing.assert_close(results(torch.compile(layer, backend="aot_eager"), x), expected)
    joint = aot_export_joint_simple(loss, (x, *parameters.values()), trace_joint=True)
    _, (_, *gradients) = joint((x, *(p.detach() for p in parameters.values())), (torch.ones((), dtype=x.dtype),))
    torch.testing.assert_close(gradients, expected[2:])
