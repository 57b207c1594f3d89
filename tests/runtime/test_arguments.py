"""What a layer or functional op takes: dtypes, shapes, names of constants."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rnncc
from rnncc.language.source import Source
from tests.packages import reference_package


def test_a_cell_without_parameters_takes_its_inputs_dtype() -> None:
    layer = rnncc.compile("cell Decay\nstate h\nh[t] = 0.5*h[t-1] + x\n").Decay(2, 2)
    x = torch.ones(3, 1, 2, dtype=torch.float64)
    output, _ = layer(x)
    assert output.dtype == torch.float64
    assert output[:, 0, 0].tolist() == [1.0, 1.5, 1.75]


def test_the_functional_op_refuses_weights_of_another_shape() -> None:
    function = rnncc.load("lstm").lstm
    streams, states = torch.zeros(2, 1, 8), (torch.zeros(1, 2), torch.zeros(1, 2))
    weight = torch.zeros(8, 2)
    with pytest.raises(ValueError, match=r"LSTM: the weight R must be \[8, 2\], got \[2, 8\]"):
        function(streams, weight.t(), states)
    with pytest.raises(ValueError, match=r"the stream i must be \[2, 1, 8\], got \[2, 1, 7\]|the stream W must be"):
        function(streams[..., :7], weight, states)
    with pytest.raises(ValueError, match=r"streams must be \[T, B, width\], got \[2, 8\]"):
        function(streams[:, 0], weight, states)
    with pytest.raises(ValueError, match=r"the state c must be \[1, 2\], got \[2, 2\]"):
        function(streams, weight, (states[0], torch.zeros(2, 2)))
    with pytest.raises(TypeError, match=r"a weight is torch.float64, but the first stream is torch.float32"):
        function(streams, weight.double(), states)
    with pytest.raises(ValueError, match=r"LSTM takes 2 states \(h, c\), got 1"):
        function(streams, weight, states[0])
    with pytest.raises(ValueError, match=r"lengths must lie between 0 and the number of steps, 2"):
        function(streams, weight, states, lengths=[3])
    with pytest.raises(RuntimeError, match=r"reset must have the input's steps and batch \(2, 1\), got \(1, 2\)"):
        function(streams, weight, states, reset=torch.zeros(1, 2))


def test_the_functional_op_says_what_it_cannot_be_given() -> None:
    module = rnncc.load("scrn")
    with pytest.raises(
        NotImplementedError, match=r"SCRN computes the stream .* of its loop 1 \(h\) from s of an earlier loop"
    ):
        module.scrn(torch.zeros(2, 1, 4), [], hidden_size=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hidden_size": "2"}, "hidden_size should be of type int, got: str"),
        ({"hidden_size": 2.0}, "hidden_size should be of type int, got: float"),
        ({"num_heads": None}, "num_heads should be of type int, got: NoneType"),
        ({"input_size": "a"}, "input_size should be of type int, got: str"),
        ({"reverse": "yes"}, "reverse should be of type bool, got: str"),
        ({"return_delays": 3}, "return_delays should be of type bool, got: int"),
        ({"recompute": "x"}, "recompute should be of type bool, got: str"),
        ({"constants": 3}, "constants should be a dict of numbers by name, got: int"),
        ({"constants": {"bata": 0.5}}, "LIF has no constant 'bata'; its own: beta, theta"),
        ({"constants": {"beta": "a"}}, "beta should be a number, got: str"),
        ({"streams": None}, "LIF: streams should be a tensor or several, got: NoneType"),
        ({"streams": [[0.0]]}, "LIF: streams should be tensors, got: list"),
        ({"states": {"s": torch.zeros(1, 2)}}, "LIF: states should be a tensor or several, got: dict"),
        ({"states": (torch.zeros(1, 2), None)}, "LIF: states should be tensors, got: NoneType"),
        ({"streams": torch.zeros(2, 1, 2).long()}, "LIF takes floating-point streams, got torch.int64"),
        (
            {"streams": torch.zeros(2, 1, 2, dtype=torch.complex64)},
            "LIF takes floating-point streams, got torch.complex64",
        ),
    ],
)
def test_what_the_functional_op_is_not_given_is_named(given: dict[str, Any], message: str) -> None:
    usual = {"streams": torch.zeros(2, 1, 2), "weights": torch.zeros(2, 2), "hidden_size": 2}
    with pytest.raises(TypeError, match=message):
        rnncc.load("lif").lif(**usual | given)


def test_the_functional_op_takes_no_constant_that_is_another_program() -> None:
    op, streams, weights = rnncc.load("rhn").rhn, torch.zeros(3, 1, 4), torch.zeros(8, 2)
    with pytest.raises(ValueError, match=r"L=3 is another program than this op was built with \(L=2\)"):
        op(streams, weights, hidden_size=2, constants={"L": 3})
    with pytest.raises(ValueError, match="backend must be None, 'cpu', 'cuda' or 'reference', got 'gpu'"):
        op(streams, weights, hidden_size=2, backend="gpu")


def test_a_constant_that_shapes_the_program_is_no_flag() -> None:
    """True equals 1."""
    text = "cell OneBack\nconst k = 1\nstate h\nh[t] = tanh(W@x + R@h[t-k])\n"
    package, _ = reference_package(Source("back.rnn", text), "back")
    assert package.OneBack(3, 4, k=1.0)
    with pytest.raises(TypeError, match="k should be a number, got: bool"):
        package.OneBack(3, 4, k=True)
    with pytest.raises(TypeError, match="k should be a number, got: bool"):
        package.oneback(torch.zeros(2, 1, 4), torch.zeros(4, 4), constants={"k": True})


def test_complex_numbers_are_refused() -> None:
    """The reference would drop their imaginary part."""
    layer = rnncc.load("lstm").LSTM(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        layer.to(torch.complex64)
    with pytest.raises(TypeError, match=r"LSTM takes floating-point input, got torch\.complex64"):
        layer(torch.zeros(2, 1, 3, dtype=torch.complex64))


def test_explain_names_what_the_functional_op_takes() -> None:
    text = rnncc.load("lstm").LSTM(3, 4).explain()
    assert "lstm_0: streams " in text and "weights R (weight_hh)" in text


def test_a_single_step_explains_itself() -> None:
    module = rnncc.load("lstm")
    lines = module.LSTM(3, 4).explain().replace(", 16 with recompute", "").splitlines()
    assert module.LSTMCell(3, 4).explain().splitlines() == lines and "keeps 80 bytes" in "".join(lines)
    assert "CPU kernels" in lines[0]
    assert "the eager fallback (backend='reference')" in module.LSTMCell(3, 4, backend="reference").explain()
    with pytest.raises(ValueError, match="batch_size must be greater than zero"):
        module.LSTMCell(3, 4).explain(0)


def test_constants_may_bear_any_name() -> None:
    text = "cell Named\nconst name = 1\nstate h\nfor k in 1..name:\n    n[k] = tanh(W@x + R@h[t-1])\nh[t] = n[name]\n"
    layer = rnncc.compile(text, "named", name=2).Named(3, 4)
    assert [name for name in layer.gate_parameters() if name.startswith("W")] == ["W_n_2"]


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_a_layer_from_one_of_torch_has_its_shape_and_values(name: str) -> None:
    theirs = getattr(torch.nn, name)(3, 4, 2, batch_first=True, bidirectional=True, dtype=torch.float64)
    ours = getattr(rnncc.load(f"nn_{name.lower()}"), f"nn_{name}").from_torch(theirs)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0], rtol=1e-10, atol=1e-10)
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_tensors_of_several_devices_are_refused_and_meta_tensors_give_shapes() -> None:
    module = rnncc.load("lstm")
    x, layer = torch.zeros(3, 2, 4), module.LSTM(4, 5)
    elsewhere: dict[str, Callable[[], Any]] = {
        "states": lambda: layer(x, [torch.zeros(1, 2, 5, device="meta")] * 2),
        "reset": lambda: layer(x, reset=torch.zeros(3, 2, device="meta")),
        "parameters": lambda: module.LSTM(4, 5, device="meta")(x),
        "input": lambda: layer(x.to("meta")),
    }
    for call in elsewhere.values():
        with pytest.raises(RuntimeError, match="not at the same device"):
            call()
    layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.to("meta"))
    with pytest.raises(RuntimeError, match="not at the same device"):
        layer(x)
    output, (h, _) = module.LSTM(4, 5, 2, bidirectional=True, device="meta")(x.to("meta"))
    assert output.shape == (3, 2, 10) and h.shape == (4, 2, 5) and output.is_meta


def test_a_layer_refuses_a_parameter_of_another_shape() -> None:
    module = rnncc.load("lstm")
    x = torch.zeros(2, 1, 3)
    for backend in ("cpu", "reference"):
        layer = module.LSTM(3, 4, backend=backend)
        layer.weight_hh_l0 = nn.Parameter(torch.zeros(4, 16))
        with pytest.raises(RuntimeError, match=r"LSTM: weight_hh_l0 must be \[16, 4\], got \[4, 16\]"):
            layer(x)
    cell = module.LSTMCell(3, 4)
    cell.bias_ih = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(RuntimeError, match=r"LSTM: bias.* must be \[16\], got \[4, 4\]"):
        cell(x[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_layers": 1.5}, "num_layers should be of type int, got: float"),
        ({"num_layers": True}, "num_layers should be of type int, got: bool"),
        ({"bias": 1}, "bias should be of type bool, got: int"),
        ({"batch_first": "a"}, "batch_first should be of type bool, got: str"),
        ({"bidirectional": 2}, "bidirectional should be of type bool, got: int"),
        ({"return_delays": None}, "return_delays should be of type bool, got: NoneType"),
        ({"proj_size": 1.0}, "proj_size should be of type int, got: float"),
        ({"state_dtype": torch.int32}, "state_dtype should be a floating-point torch.dtype or None, got: torch.int32"),
        ({"state_dtype": "float32"}, "state_dtype should be a floating-point torch.dtype or None, got: 'float32'"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rnncc.load("lstm").LSTM(3, 4, **given)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_state_dtype_goes_with_the_inputs(backend: str) -> None:
    module = rnncc.load("lstm")
    for dtype, state_dtype in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        layer = module.LSTM(3, 4, dtype=dtype, state_dtype=state_dtype, backend=backend)
        with pytest.raises(TypeError, match=f"state_dtype={state_dtype} does not go with an input of {dtype}"):
            layer(torch.zeros(2, 1, 3, dtype=dtype))


def test_a_reset_may_be_nested_lists() -> None:
    module = rnncc.load("lstm")
    layer, x = module.LSTM(3, 4), torch.randn(3, 2, 3)
    reset = [[False, True], [True, False], [False, False]]
    expected, _ = layer(x, reset=torch.tensor(reset))
    assert torch.equal(layer(x, reset=reset)[0], expected) and not torch.equal(layer(x)[0], expected)
    assert torch.equal(layer(x[:, 0], reset=[False, True, False])[0], expected[:, 0])
    for wrong in ("no", [[True], [True, False]]):
        with pytest.raises(TypeError, match="reset must be a tensor \\[T, B\\] or nested lists of bool, got"):
            layer(x, reset=wrong)
    turned = module.LSTM(3, 4, batch_first=True)
    with pytest.raises(RuntimeError, match=r"reset must have the input's steps and batch \(2, 3\), got \(3,\)"):
        turned(x.transpose(0, 1), reset=[False] * 3)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("picked", [0, 1, 2])
def test_no_steps_give_gradients_of_zero(backend: str, picked: int) -> None:
    layer = rnncc.load("lstm").LSTM(3, 4, 2, backend=backend)
    with torch.no_grad():
        layer.weight_hh_l0.fill_(torch.nan)
    states = [torch.full((2, 1, 4), -0.0, requires_grad=True) for _ in range(2)]
    x = torch.zeros(0, 1, 3, requires_grad=True)
    output, last = layer(x, states)
    for before, after in zip(states, last, strict=True):
        assert torch.equal(before.signbit(), after.signbit())
    made = torch.autograd.grad((output, *last)[picked].sum(), [x, *layer.parameters()])
    assert all(not gradient.any() for gradient in made)


def test_a_vectorised_jacobian_is_that_of_one_row_at_a_time() -> None:
    layer = rnncc.load("lstm").LSTM(3, 2, dtype=torch.float64)
    x = torch.randn(3, 1, 3, dtype=torch.float64)

    def run(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = layer(x)[0]
        return output

    jacobian: Any = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(run, x, vectorize=True), jacobian(run, x), rtol=1e-12, atol=1e-12)


def test_the_functional_op_returns_sequences_of_states() -> None:
    module = rnncc.load("lstm")
    generator = torch.Generator().manual_seed(0)
    streams = torch.randn((4, 3, 20), generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn((20, 5), generator=generator, dtype=torch.float64)
    lengths = torch.tensor([4, 0, 2])
    for options in ({}, {"lengths": lengths}, {"lengths": lengths, "backend": "reference"}):
        output, last, sequences = module.lstm(streams, weight, hidden_size=5, return_sequences_of=("c", "h"), **options)
        c = sequences["c"]
        assert list(sequences) == ["c", "h"] and torch.equal(sequences["h"], output)
        # The states after t steps are the final ones of the first t.
        for t in range(1, 5):
            expected = module.lstm(streams[:t], weight, hidden_size=5)[1][1]
            active = (lengths >= t if options else torch.ones(3, dtype=torch.bool)).unsqueeze(1)
            torch.testing.assert_close(c[t - 1], torch.where(active, expected, 0))
        (gradient,) = torch.autograd.grad(c.sum() + last[1].sum(), streams)
        assert gradient.isfinite().all() and gradient.abs().max() > 0
    with pytest.raises(ValueError, match="can return the sequences of h, c, not of 'z'"):
        module.lstm(streams, weight, hidden_size=5, return_sequences_of=("z",))


@pytest.mark.parametrize("single", [False, True], ids=["layer", "cell"])
def test_states_of_a_wrong_structure_are_named(single: bool) -> None:
    """What is wanted, and what was given: counting would say that a nested pair is two."""
    lstm, gru = rnncc.load("lstm"), rnncc.load("gru")
    two = lstm.LSTMCell(3, 4) if single else lstm.LSTM(3, 4)
    one = gru.GRUCell(3, 4) if single else gru.GRU(3, 4)
    x = torch.zeros(2, 3) if single else torch.zeros(5, 2, 3)
    h = torch.zeros(2, 4) if single else torch.zeros(1, 2, 4)
    nothing: Any = ()
    for hx, got in (
        (nothing, "got a tuple of 0"),
        (h, "got a tensor"),
        ((h,), "got a tuple of 1 tensor"),
        ([h, h, h], "got a list of 3 tensors"),
        ((h, None), "got a tuple of 2: a tensor, None"),
        ((h, (h, h)), r"got a tuple of 2: a tensor, a tuple of 2 tensors\. A call returns \(output, states\): pass"),
        ((h, [h, 1.0]), "got a tuple of 2: a tensor, a list of 2: a tensor, an object of type float"),
        ({"h": h, "c": h}, "got an object of type dict"),
        ("hc", "got an object of type str"),
        (5, "got an object of type int"),
    ):
        with pytest.raises(TypeError, match=rf"^LSTM(Cell)?: hx must be a tuple of 2 tensors, for .*; {got}"):
            two(x, hx)
    for given, got in (
        ((h, h), "a tuple of 2 tensors"),
        (([h],), "a tuple of 1: a list of 1 tensor"),
        (0, "an object"),
    ):
        with pytest.raises(TypeError, match=rf"^GRU(Cell)?: hx must be a tensor, for .*; got {got}"):
            one(x, given)
