"""torch.compile with sizes that change, torch.func transforms eager and compiled, torch.export."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

import rnncc

IN, H = 3, 8
SIZES = ((7, 6), (9, 2), (3, 11))


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(file: str = "lstm", name: str = "LSTM", **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load(file), name)(IN, H, dtype=torch.float64, **options)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)


def whole(function: Any, **options: Any) -> Any:
    """Compiled, as one graph."""
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def plain(layer: Any, steps: int, batch: int) -> tuple[Any, ...]:
    return (random(steps, batch, IN),)


def given_states(layer: Any, steps: int, batch: int) -> tuple[Any, ...]:
    states = tuple(random(len(layer._sizes), batch, H) for _ in layer.spec.states)
    return random(steps, batch, IN), states if len(states) > 1 else states[0]


def masks(batch: int, steps: int) -> dict[str, Tensor]:
    return {"lengths": torch.arange(batch) % (steps + 1), "reset": torch.rand(steps, batch) > 0.7}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("file", "name", "options", "given", "masked"),
    [
        ("lstm", "LSTM", {}, plain, False),
        ("lstm", "LSTM", {"bidirectional": True, "num_layers": 2, "recompute": True}, given_states, True),
        ("mingru", "minGRU", {"bidirectional": True}, given_states, False),
    ],
)
def test_new_sizes_compile_nothing_again(
    file: str, name: str, options: dict[str, Any], given: Callable[..., tuple[Any, ...]], masked: bool
) -> None:
    layer = make(file, name, **options)
    compiled = whole(layer, dynamic=True)

    def gradients(run: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Tensor]:
        output, final = run(*arguments, **keywords)
        finals = final if isinstance(final, tuple) else (final,)
        loss = output.square().sum() + sum(state.sum() for state in finals)
        return [output, *torch.autograd.grad(loss, list(layer.parameters()))]

    # Sizes that differ from all others: torch takes equal ones for the same.
    gradients(compiled, given(layer, 13, 5), masks(5, 13) if masked else {})
    with torch.compiler.set_stance("fail_on_recompile"):
        for steps, batch in SIZES:
            call = given(layer, steps, batch), masks(batch, steps) if masked else {}
            close(gradients(compiled, *call), gradients(layer, *call))


def test_the_second_size_makes_all_sizes_compiled() -> None:
    """Without dynamic=True torch compiles once for the first size and once for all others."""
    layer = make()
    compiled = whole(layer)
    compiled(random(5, 4, IN))
    compiled(random(7, 6, IN))
    with torch.compiler.set_stance("fail_on_recompile"):
        x = random(9, 8, IN)
        close(compiled(x), layer(x))


@pytest.mark.parametrize(("file", "name"), [("lstm", "LSTM"), ("mingru", "minGRU")])
def test_the_ops_say_that_compilers_may_take_them(file: str, name: str) -> None:
    layer, x = make(file, name), random(5, 4, IN)
    with torch._dynamo.config.patch(only_allow_pt2_compliant_ops=True):
        close(whole(layer)(x), layer(x))


def test_a_single_step_compiles_for_every_batch() -> None:
    step = rnncc.load("lstm").LSTMCell(IN, H, dtype=torch.float64)
    compiled = whole(step, dynamic=True)
    compiled(random(4, IN), (random(4, H), random(4, H)))
    with torch.compiler.set_stance("fail_on_recompile"):
        x, states = random(6, IN), (random(6, H), random(6, H))
        close(compiled(x, states), step(x, states))


def test_inductor_compiles_a_layer_among_others() -> None:
    layer, readout = make(), torch.nn.Linear(H, 1, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        value: Tensor = readout(layer(x.tanh())[0]).square().mean()
        return value

    x, parameters = random(5, 4, IN), [*layer.parameters(), *readout.parameters()]
    value = torch.compile(loss, fullgraph=True)(x)
    close(torch.autograd.grad(value, parameters), torch.autograd.grad(loss(x), parameters))


def transforms(layer: Any) -> dict[str, Callable[[Tensor], Any]]:
    """Functions of an input [T, B, I] that differentiate or batch the layer."""
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        value: Tensor = functional_call(layer, parameters, (x,))[0].square().sum()
        return value

    def output(x: Tensor) -> Tensor:
        value: Tensor = layer(x)[0]
        return value

    return {
        "grad": lambda x: grad(loss)(parameters, x),
        "vmap": lambda x: vmap(output, 1, 1)(x.unsqueeze(2)),
        "gradients of each batch entry": lambda x: vmap(grad(loss), (None, 1))(parameters, x.unsqueeze(2)),
        "jacrev": lambda x: jacrev(output)(x),
        "jacfwd": lambda x: jacfwd(output)(x),
        "jvp": lambda x: jvp(output, (x,), (x.cos(),)),
        "hessian": lambda x: hessian(lambda x: loss(parameters, x))(x),
    }


TRANSFORMS = ("grad", "vmap", "gradients of each batch entry", "jacrev", "jacfwd", "jvp", "hessian")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    """Against the eager loop, which is torch's operators alone; and two of them against autograd on the kernels."""
    layer, x = make(bidirectional=True), random(3, 2, IN)
    found = transforms(layer)[name](x)
    close(found, transforms(make(bidirectional=True, backend="reference"))[name](x))
    if name == "jacrev":
        close(found, torch.autograd.functional.jacobian(lambda x: layer(x)[0], x))  # type: ignore[no-untyped-call]
    if name == "hessian":
        close(found, torch.autograd.functional.hessian(lambda x: layer(x)[0].square().sum(), x))  # type: ignore[no-untyped-call]


@pytest.mark.long
@pytest.mark.parametrize("name", ["gradients of each batch entry", "jvp"])
def test_transforms_within_what_is_compiled(name: str) -> None:
    """The op has no rule for them: the loop is compiled in torch's own operators, never to wrong numbers."""
    layer, x = make(), random(2, 2, IN)
    run = transforms(layer)[name]
    close(whole(run)(x), run(x))


@pytest.mark.always(file=["mingru"])
@pytest.mark.parametrize(
    ("file", "name", "options", "masked"),
    [
        ("lstm", "LSTM", {"bidirectional": True, "num_layers": 2, "recompute": True}, True),
        ("mingru", "minGRU", {}, False),
    ],
)
def test_compiled_autograd_of_an_eager_forward(file: str, name: str, options: dict[str, Any], masked: bool) -> None:
    """The whole backward as one graph, of what ran without a compiler."""
    layer, x = make(file, name, **options), random(5, 4, IN).requires_grad_()
    inputs, keywords = [x, *layer.parameters()], masks(4, 5) if masked else {}
    expected = torch.autograd.grad(layer(x, **keywords)[0].square().sum(), inputs)
    loss = layer(x, **keywords)[0].square().sum()
    with torch._dynamo.compiled_autograd._enable(whole_backward):
        loss.backward()
    close([tensor.grad for tensor in inputs], list(expected))


def whole_backward(graph: Any) -> Any:
    return torch.compile(graph, fullgraph=True, backend="aot_eager")


def test_an_ensemble() -> None:
    layers = [make() for _ in range(3)]
    for layer in layers:
        layer.reset_parameters()
    stacked, buffers = stack_module_state(layers)
    x = random(3, 2, IN)
    found = vmap(lambda own: functional_call(layers[0], (own, buffers), (x,))[0])(stacked)
    close(found, torch.stack([layer(x)[0] for layer in layers]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("strict", [True, False])
def test_export_keeps_the_ops_and_any_size(strict: bool) -> None:
    layer = make(num_layers=2, bidirectional=True, batch_first=True).eval()
    any_size = torch.export.Dim.AUTO
    shapes = {"input": {0: any_size, 1: any_size}, "hx": None, "lengths": {0: any_size}}
    with torch.no_grad():
        program = torch.export.export(
            layer, (random(4, 5, IN), None), {"lengths": torch.tensor([5, 1, 0, 2])},
            dynamic_shapes=shapes, strict=strict,
        )  # fmt: skip
        stream = io.BytesIO()
        torch.export.save(program, stream)
        stream.seek(0)
        again = torch.export.load(stream).module()
        x, lengths = random(2, 9, IN), torch.tensor([3, 9])
        close(again(x, None, lengths=lengths), layer(x, lengths=lengths))
    ops = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum(op.endswith("lstm_0_forward.default") for op in ops) == 2


@pytest.mark.long
def test_the_reference_is_exported_in_torch_s_own_operators() -> None:
    """For what knows torch's operators alone. The number of steps is that of the example."""
    layer = make(backend="reference").eval()
    with torch.no_grad():
        program = torch.export.export(
            layer, (random(3, 4, IN),), dynamic_shapes=({1: torch.export.Dim.AUTO},)
        ).run_decompositions()
        x = random(3, 7, IN)
        close(program.module()(x), make()(x))
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert {op.namespace for op in calls if isinstance(op, torch._ops.OpOverload)} == {"aten"}
