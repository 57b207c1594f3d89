"""The ops as torch sees them: schema, fake kernels, autograd of any order, autocast, compilation, transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.verify import relative_error

T, B, IN, H = 4, 2, 3, 4
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
CELLS = [("lstm", "LSTM"), ("gru", "GRU"), ("mingru", "minGRU"), ("slstm", "sLSTM"), ("rhn", "RHN")]


def make(file: str, name: str, **options: Any) -> Any:
    """A layer of a shipped cell in float64."""
    torch.manual_seed(0)
    return getattr(rnncc.load(file), name)(IN, H, **DOUBLE, **options)


def kernels_of(layer: Any) -> Any:
    """The ops of the layer's package."""
    kernels, why = layer._choose(torch.zeros(1, dtype=torch.float64))
    assert kernels is not None, why
    return kernels


def arguments(
    layer: Any, *, lengths: Tensor | None = None, reset: Tensor | None = None, recompute: bool = False
) -> tuple[Any, tuple[Any, ...]]:
    """The forward op of a layer's first loop, and arguments for it."""
    segment = layer.spec.segments[0]
    sizes = layer._sizes[0]
    torch.manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    streams = [random(T, B, stream.width(sizes)) for stream in segment.streams]
    loop = segment.plain if lengths is None and reset is None else segment.masked
    weights = [getattr(layer, f"{weight.attribute}_l0") for weight in loop.weights]
    states = [random(B, state.width(sizes)) for state in segment.states]
    return kernels_of(layer).ops[segment.name], (
        streams, weights, states, None, 0, lengths, reset, [], layer.spec.sizes_in_order(sizes), 1, [False],
        list(range(len(segment.sequences))), True, recompute,
    )  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("file", "name"), CELLS, ids=[c[1] for c in CELLS])
def test_opcheck(file: str, name: str) -> None:
    layer = make(file, name)
    op, given = arguments(layer)
    assert set(torch.library.opcheck(op, given).values()) == {"SUCCESS"}
    strided = [stream.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for stream in given[0]]
    assert set(torch.library.opcheck(op, (strided, *given[1:])).values()) == {"SUCCESS"}
    detached = [[t.detach() for t in group] for group in given[:3]]
    assert set(torch.library.opcheck(op, (*detached, *given[3:12], False, False)).values()) == {"SUCCESS"}


def test_opcheck_masked_and_linear() -> None:
    layer = make("lstm", "LSTM")
    op, given = arguments(layer, lengths=torch.tensor([4, 2]), reset=torch.rand(T, B) > 0.5)
    assert set(torch.library.opcheck(op, given).values()) == {"SUCCESS"}
    x, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((T, B, IN), (H, IN), (H,)))
    linear = kernels_of(layer).ops["linear"]
    for sample in ((x, weight, bias), (x, weight, None), (x.transpose(0, 1), weight.detach(), bias)):
        assert set(torch.library.opcheck(linear, sample).values()) == {"SUCCESS"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("file", "name"), CELLS, ids=[c[1] for c in CELLS])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_both_orders(file: str, name: str, masked: bool) -> None:
    layer = make(file, name, bidirectional=masked)
    x = torch.randn(T, B, IN, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {}
    if masked:
        options = {"lengths": torch.tensor([4, 2]), "reset": torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]])}

    def run(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip([n for n, _ in layer.named_parameters()], parameters, strict=True))
        output, states = torch.func.functional_call(layer, named, (x,), options)
        return output, *((states,) if isinstance(states, Tensor) else states)

    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(run, (x, *parameters))
    assert torch.autograd.gradgradcheck(run, (x, *parameters), fast_mode=True)


def test_linear_against_torch() -> None:
    linear = kernels_of(make("lstm", "LSTM")).ops["linear"]
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((T, B, IN), (H, IN), (H,))]
    torch.testing.assert_close(linear(*tensors), torch.nn.functional.linear(*tensors), atol=1e-12, rtol=1e-12)
    assert torch.autograd.gradcheck(linear, tuple(tensors))
    assert torch.autograd.gradgradcheck(linear, tuple(tensors))
    with pytest.raises(RuntimeError, match="do not fit"):
        linear(tensors[0], torch.randn(H, IN + 1, dtype=torch.float64), None)


def test_linear_takes_one_dtype_as_torch_does() -> None:
    linear = kernels_of(make("lstm", "LSTM")).ops["linear"]
    x, weight, bias = torch.randn(T, B, IN), torch.randn(H, IN), torch.randn(H)
    for own in (linear, torch.nn.functional.linear):
        for mixed in ((x.bfloat16(), weight, None), (x, weight.half(), None), (x, weight.double(), None)):
            assert "the same dtype" in raised(lambda mixed=mixed, own=own: own(*mixed))  # type: ignore[misc]
    assert "the same dtype" in raised(lambda: linear(x, weight, bias.bfloat16()))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert "the same dtype" in raised(lambda: linear(x.bfloat16(), weight, None))


def test_retain_graph_gives_the_same_gradient_twice() -> None:
    layer = make("lstm", "LSTM")
    loss = layer(torch.randn(T, B, IN, dtype=torch.float64))[0].square().sum()
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_unneeded_gradients_are_not_computed() -> None:
    layer = make("lstm", "LSTM")
    layer.weight_hh_l0.requires_grad_(False)
    x = torch.randn(T, B, IN, dtype=torch.float64)
    layer(x)[1][0].sum().backward()
    assert layer.weight_hh_l0.grad is None and layer.weight_ih_l0.grad is not None
    layer.requires_grad_(False)
    assert layer(x)[0].grad_fn is None


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("file", "name"), CELLS[:3], ids=[c[1] for c in CELLS[:3]])
def test_compiles_as_one_graph(file: str, name: str) -> None:
    layer = make(file, name, num_layers=2)
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(T, B, IN, dtype=torch.float64, requires_grad=True)
    cases: tuple[dict[str, Any], ...] = ({}, {"lengths": torch.tensor([4, 2])})
    for options in cases:
        expected, got = layer(x, **options)[0], compiled(x, **options)[0]
        assert torch.equal(got, expected)
        wanted = [x, *layer.parameters()]
        for a, b in zip(
            torch.autograd.grad(got.square().sum(), wanted),
            torch.autograd.grad(expected.square().sum(), wanted),
            strict=True,
        ):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_autocast_casts_inputs_and_keeps_the_state() -> None:
    layer = rnncc.load("lstm").LSTM(IN, H)
    x = torch.randn(T, B, IN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, (h, _) = layer(x)
        output.float().sum().backward()
    assert output.dtype == torch.bfloat16 and h.dtype == torch.float32
    assert layer.weight_hh_l0.grad.dtype == torch.float32
    torch.testing.assert_close(output.float(), layer(x)[0], atol=3e-2, rtol=3e-2)


def lru(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """The output of LRU's equations in complex numbers."""
    p = parameters
    decay = torch.exp(torch.complex(-p["nu"].exp(), p["th"].exp()))
    inputs = p["gam"].exp() * torch.complex(x @ p["W_u"].T, x @ p["W_w"].T)
    state, found = torch.zeros_like(inputs[0]), []
    for value in inputs:
        state = decay * state + value
        found.append(state)
    states = torch.stack(found)
    return states.real @ p["C1"][0].T - states.imag @ p["C2"][0].T + p["D"] * x


def test_autocast_keeps_the_vectors_of_a_loop_without_products() -> None:
    """Decays near 1 and phases over many steps; a decay in 16 bits may be one of growth."""
    torch.manual_seed(0)
    layer = rnncc.load("lru").LRU(H, H)
    x = torch.randn(2048, B, H)
    exact = {name: value.detach().double().requires_grad_() for name, value in layer.gate_parameters().items()}
    expected = lru(exact, x.double())
    torch.autograd.backward(expected.square().sum())
    for backend in (None, "reference"):
        layer.backend = backend
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x)[0]
            output.float().square().sum().backward()
        assert relative_error(output, expected) < 1e-2
        gradients = layer.gate_parameters(grad=True)
        errors = {name: relative_error(gradients[name], value.grad) for name, value in exact.items()}
        assert {name: error for name, error in errors.items() if not error < 3e-2} == {}
    layer.backend = None
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(x[:64])[0], layer(x[:64])[0])


def test_the_op_takes_vectors_in_float32_beside_streams_in_16_bits() -> None:
    op, (streams, weights, states, *rest) = arguments(make("indrnn", "IndRNN"))
    given = [
        [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        for tensors, dtype in ((streams, torch.bfloat16), (weights, torch.float32), (states, torch.float32))
    ]
    assert set(torch.library.opcheck(op, (*given, *rest)).values()) == {"SUCCESS"}


def test_functional_transforms_run_through_the_reference() -> None:
    layer = make("lstm", "LSTM")
    x = torch.randn(T, B, IN, dtype=torch.float64, requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        result: Tensor = layer(x)[0].square().sum()
        return result

    (expected,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), expected, atol=1e-12, rtol=1e-12)


def raised(action: Callable[[], Any]) -> str:
    """The message of the RuntimeError that an action raises."""
    with pytest.raises(RuntimeError) as caught:
        action()
    return str(caught.value)


def test_the_op_refuses_what_does_not_fit() -> None:
    op, given = arguments(make("lstm", "LSTM"))
    streams, weights, states = ([t.detach() for t in group] for group in given[:3])
    rest = (*given[3:12], False, False)
    assert "weights, got 2" in raised(lambda: op(streams, weights * 2, states, *rest))
    assert "shape" in raised(lambda: op([streams[0][..., :-1]], weights, states, *rest))
    assert "shape" in raised(lambda: op(streams, weights, [states[0][:1], states[1]], *rest))
    assert "elements" in raised(lambda: op(streams, [weights[0][:-1]], states, *rest))
    assert "float64" in raised(lambda: op([streams[0].float()], weights, states, *rest))
    assert "no sequence 9" in raised(lambda: op(streams, weights, states, *given[3:11], [9], False, False))
    assert "wanted twice" in raised(lambda: op(streams, weights, states, *given[3:11], [0, 0], False, False))


def test_a_refused_call_keeps_nothing() -> None:
    """Neither its arguments nor what it had made."""
    op, given = arguments(make("lstm", "LSTM"))
    weights, states = ([t.detach() for t in group] for group in given[1:3])
    for rest in (
        (*given[3:11], [9], False, False),
        (*given[3:11], [0, 0], False, False),
        (torch.zeros(2), *given[4:12], False, False),
    ):
        streams = [torch.randn_like(stream) for stream in given[0]]
        counts = [stream._use_count() for stream in streams]  # type: ignore[attr-defined]
        raised(lambda streams=streams, rest=rest: op(streams, weights, states, *rest))  # type: ignore[misc]
        assert [stream._use_count() for stream in streams] == counts  # type: ignore[attr-defined]


def test_fake_kernels_agree_on_empty_tensors() -> None:
    op, given = arguments(make("lstm", "LSTM"))
    empty = [stream.detach()[:0].requires_grad_() for stream in given[0]]
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        expected = op(empty, *given[1:])
    assert [[t.shape for t in group] for group in op(empty, *given[1:])] == [[t.shape for t in g] for g in expected]
    linear = kernels_of(make("lstm", "LSTM")).ops["linear"]
    bias = torch.randn(H)
    assert torch.equal(linear(torch.empty(T, 0), torch.empty(H, 0), bias), bias.expand(T, H))


@pytest.mark.parametrize("recompute", [False, True])
def test_what_a_call_returns_follows_its_arguments_and_not_whether_gradients_are_on(recompute: bool) -> None:
    """Whoever traced a call without gradients did not know that they would be wanted."""
    op, given = arguments(make("lstm", "LSTM"))
    given = (*given[:11], [])  # no sequence is returned that the backward could read
    counts = []
    for training in (False, True):
        for recorded in (False, True):
            with torch.set_grad_enabled(recorded):
                sequences, finals, saved = op(*given, training, recompute)
            counts.append(len(saved))
            assert not any(tensor.requires_grad for tensor in saved)
            if recorded:
                inputs = [tensor for group in given[:3] for tensor in group]
                flowing = [torch.ones_like(value) for value in (*sequences, *finals)]
                found = torch.autograd.grad([*sequences, *finals], inputs, flowing)
                again = op(*given, True, recompute)
                expected = torch.autograd.grad([*again[0], *again[1]], inputs, flowing)
                assert all(map(torch.equal, found, expected))
    assert counts[0] == counts[1] == 0 and counts[2] == counts[3] > 0


@pytest.mark.parametrize("recompute", [False, True])
def test_a_weight_without_elements_stands_for_none(recompute: bool) -> None:
    """AOTInductor hands an empty list over as None, so that a compiled call gives none."""
    op, (streams, weights, states, *rest) = arguments(make("mingru", "minGRU"), recompute=recompute)
    assert weights == []
    nothing = torch.empty(0, dtype=torch.float64)
    both = [streams * 2, [nothing] * 2, states * 2, *rest[:7], [0, 1], *rest[8:]]
    for given in ([streams, [nothing], states, *rest], both):
        inputs = [*given[0], *given[2]]
        assert set(torch.library.opcheck(op, tuple(given)).values()) == {"SUCCESS"}
        found = []
        for own in (given[1][:0], given[1]):
            sequences, finals, _ = op(given[0], own, *given[2:])
            found.append([*sequences, *finals])
        assert all(map(torch.equal, *found))
        gradients = [torch.autograd.grad([value.sum() for value in values], inputs) for values in found]
        assert all(map(torch.equal, *gradients))
    assert "weights, got 1" in raised(lambda: op(streams, [nothing.new_ones(1)], states, *rest))


@pytest.mark.long
def test_no_memory_grows() -> None:
    import resource

    layer = rnncc.load("lstm").LSTM(IN, H)
    x = torch.randn(T, B, IN)

    def run(times: int) -> None:
        for _ in range(times):
            layer(x, lengths=[4, 2])[0].sum().backward()

    run(300)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096


def both_directions(masked: bool) -> tuple[Any, list[tuple[Any, ...]], tuple[Any, ...]]:
    """The LSTM's forward op, tensors of two directions, and its other arguments up to `reverse`."""
    masks: dict[str, Any] = {"lengths": torch.tensor([4, 2]), "reset": torch.rand(T, B) > 0.5} if masked else {}
    op, given = arguments(make("lstm", "LSTM"), **masks)
    other = tuple([torch.randn_like(t).requires_grad_() for t in group] for group in given[:3])
    return op, [given[:3], other], given[3:10]


def one_after_the_other(groups: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The lists of all directions as one list each, the first direction's tensors first."""
    return tuple([tensor for part in parts for tensor in part] for parts in zip(*groups, strict=True))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_directions_of_one_call_are_those_of_two(masked: bool, recompute: bool) -> None:
    op, groups, rest = both_directions(masked)
    last = ([0], True, recompute)
    together = op(*one_after_the_other(groups), *rest, [False, True], *last)
    apart = [op(*group, *rest, [reverse], *last) for group, reverse in zip(groups, (False, True), strict=True)]
    expected = one_after_the_other(apart)
    assert all(torch.equal(a, b) for x, y in zip(together, expected, strict=True) for a, b in zip(x, y, strict=True))
    inputs = [tensor for group in one_after_the_other(groups) for tensor in group]
    # No gradient comes for what the second direction returns last.
    values, same_values = ([*made[0], *made[1]][:-1] for made in (together, expected))
    flowing = [torch.randn_like(value) for value in values]
    found = torch.autograd.grad(values, inputs, flowing)
    assert all(torch.equal(a, b) for a, b in zip(found, torch.autograd.grad(same_values, inputs, flowing), strict=True))


@pytest.mark.long
def test_opcheck_of_two_directions() -> None:
    for masked, recompute in ((False, False), (True, True)):
        op, groups, rest = both_directions(masked)
        given = (*one_after_the_other(groups), *rest, [False, True], [1, 0], True, recompute)
        assert set(torch.library.opcheck(op, given).values()) == {"SUCCESS"}


def test_directions_that_differ_are_refused() -> None:
    op, groups, rest = both_directions(masked=False)
    streams, weights, states = ([t.detach() for t in group] for group in one_after_the_other(groups))
    last = ([0], False, False)
    assert "no direction" in raised(lambda: op(streams, weights, states, *rest, [], *last))
    assert "expected 1 streams, got 0" in raised(lambda: op(streams[:1], weights, states, *rest, [False, True], *last))
    longer = [streams[0], torch.cat([streams[1]] * 2)]
    assert "the same T" in raised(lambda: op(longer, weights, states, *rest, [False, True], *last))
    mixed = [streams[0], streams[1].float()]
    assert "all directions" in raised(
        lambda: op(mixed, [weights[0], weights[1].float()], [*states[:2], *(s.float() for s in states[2:])], *rest,
                   [False, True], *last)
    )  # fmt: skip


def test_no_steps_of_two_directions() -> None:
    op, groups, rest = both_directions(masked=False)
    streams, weights, states = one_after_the_other(groups)
    empty = [stream.detach()[:0].requires_grad_() for stream in streams]
    _, finals, _ = op(empty, weights, states, *rest, [False, True], [0], True, False)
    assert all(torch.equal(final, state) for final, state in zip(finals, states, strict=True))
    flowing = [torch.randn_like(final) for final in finals]
    found = torch.autograd.grad(finals, [*weights, *states], flowing)
    assert all(not gradient.any() for gradient in found[: len(weights)])
    assert all(torch.equal(gradient, given) for gradient, given in zip(found[len(weights) :], flowing, strict=True))
