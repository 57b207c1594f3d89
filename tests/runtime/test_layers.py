"""Layers against torch.nn: outputs, final states and every gradient, through state_dict; on kernels and reference."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc

pytestmark = pytest.mark.usefixtures("float64_first")
BACKENDS = ("cpu", "reference")
TWINS: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("nn_lstm", "nn_LSTM", nn.LSTM, {}),
    ("lstm", "LSTM", nn.LSTM, {}),
    ("nn_gru", "nn_GRU", nn.GRU, {}),
    ("gru", "GRU", nn.GRU, {}),
    ("nn_rnn", "nn_RNN", nn.RNN, {}),
    ("elman", "Elman", nn.RNN, {}),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True},
    {"bidirectional": True, "bias": False, "batch_first": True},
]
T, B, IN, H = 7, 3, 5, 6
DOUBLE: dict[str, Any] = {"dtype": torch.float64}


def layer_class(file: str, name: str) -> Any:
    """A shipped cell's layer."""
    return getattr(rnncc.load(file), name)


def tuple_of(states: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Final states as a tuple."""
    return (states,) if isinstance(states, Tensor) else states


def gradients(output: Tensor, states: tuple[Tensor, ...], wanted: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a loss that reads every element with a weight of its own."""
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) * t).sum() for t in (output, *states)
    )
    return torch.autograd.grad(loss, wanted)  # type: ignore[arg-type]


def close(ours: Tensor, theirs: Tensor) -> None:
    """Equal to 1e-10, relative to the largest element."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-10 * max(1.0, theirs.abs().max().item())


def sample(module: Any, batch_first: bool = False) -> tuple[Tensor, list[Tensor]]:
    """An input and initial states that fit a torch.nn module."""
    generator = torch.Generator().manual_seed(0)
    shape = (B, T, IN) if batch_first else (T, B, IN)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    count = module.num_layers * (2 if module.bidirectional else 1)
    widths = [module.proj_size or H, H][: 2 if isinstance(module, nn.LSTM) else 1]
    states = [torch.randn((count, B, w), generator=generator, dtype=torch.float64, requires_grad=True) for w in widths]
    return x, states


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("file", "name", "twin", "extra"), TWINS, ids=[t[1] for t in TWINS])
def test_a_layer_equals_its_twin_in_torch(
    file: str, name: str, twin: Any, extra: dict[str, Any], options: dict[str, Any], backend: str
) -> None:
    theirs = twin(IN, H, **options, **extra, **DOUBLE)
    ours = layer_class(file, name)(IN, H, **options, **DOUBLE, backend=backend)
    ours.load_state_dict(theirs.state_dict())
    x, states = sample(theirs, bool(options.get("batch_first")))
    for hx in (None, states):
        wanted = [x, *(hx or [])]
        expected, expected_last = theirs(x, None if hx is None else hx[0] if len(hx) == 1 else tuple(hx))
        got, got_last = ours(x, None if hx is None else hx[0] if len(hx) == 1 else tuple(hx))
        close(got, expected)
        for ours_last, theirs_last in zip(tuple_of(got_last), tuple_of(expected_last), strict=True):
            close(ours_last, theirs_last)
        own = dict(ours.named_parameters())
        shared = [key for key in own if key in dict(theirs.named_parameters())]
        # Where two of nn's biases are one here, both have its gradient.
        a = gradients(got, tuple_of(got_last), [*wanted, *(own[key] for key in shared)])
        b = gradients(expected, tuple_of(expected_last), [*wanted, *(theirs.get_parameter(key) for key in shared)])
        assert len(a) >= len(wanted) + 2
        for ours_gradient, theirs_gradient in zip(a, b, strict=True):
            close(ours_gradient, theirs_gradient)
    back = twin(IN, H, **options, **extra, **DOUBLE)
    back.load_state_dict(ours.to_torch())
    close(back(x)[0], theirs(x)[0])


def test_the_same_seed_gives_nn_s_parameters() -> None:
    torch.manual_seed(3)
    theirs = nn.LSTM(IN, H, 2, bidirectional=True)
    torch.manual_seed(3)
    ours = layer_class("nn_lstm", "nn_LSTM")(IN, H, 2, bidirectional=True)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_projection_loads_from_nn(backend: str) -> None:
    theirs = nn.LSTM(IN, H, 2, proj_size=4, bidirectional=True, **DOUBLE)
    ours = layer_class("lstmp", "LSTMP")(IN, H, 2, proj_size=4, bidirectional=True, **DOUBLE, backend=backend)
    ours.load_state_dict(theirs.state_dict())
    x, states = sample(theirs)
    expected, (h, c) = theirs(x, tuple(states))
    got, (our_h, our_c) = ours(x, tuple(states))
    close(got, expected)
    close(our_h, h)
    close(our_c, c)
    wanted = [x, *states]
    for a, b in zip(gradients(got, (our_h, our_c), wanted), gradients(expected, (h, c), wanted), strict=True):
        close(a, b)
    with pytest.raises(ValueError, match="LSTMP"):
        layer_class("lstm", "LSTM")(IN, H, proj_size=3)


def test_other_gate_orders_are_refused_never_permuted() -> None:
    layer = rnncc.compile(
        "cell Other\nstate h, c\nf, i, g, o = W@x + R@h[t-1] + b\n"
        "c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)\nh[t] = sigmoid(o)*tanh(c[t])\n"
    ).Other(IN, H)
    with pytest.raises(RuntimeError, match="i, f, g, o"):
        layer.load_state_dict(nn.LSTM(IN, H).state_dict())
    with pytest.raises(RuntimeError, match="gates of the saved layer"):
        layer.load_state_dict(layer_class("lstm", "LSTM")(IN, H).state_dict())
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="i, f, g, o"):
        layer.to_torch()


@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_are_what_packing_is(backend: str) -> None:
    theirs = nn.GRU(IN, H, 2, bidirectional=True, **DOUBLE)
    ours = layer_class("nn_gru", "nn_GRU")(IN, H, 2, bidirectional=True, **DOUBLE, backend=backend)
    ours.load_state_dict(theirs.state_dict())
    x, states = sample(theirs)
    lengths = torch.tensor([4, 7, 1])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    expected, last = theirs(packed, states[0])
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected, total_length=T)
    got, our_last = ours(x, states[0], lengths=lengths)
    close(got, expected)
    close(our_last, last)
    assert not got[4:, 0].any()
    wanted = [x, *states]
    for a, b in zip(gradients(got, (our_last,), wanted), gradients(expected, (last,), wanted), strict=True):
        close(a, b)
    close(ours(x, states[0], lengths=[4, 7, 1])[0], expected)
    close(ours(x, states[0], lengths=[T] * B)[0], ours(x, states[0])[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_pads_a_batch_entry_does_not_matter(backend: str) -> None:
    # sLSTM's m starts at -inf, which a batch entry past its end still holds in the reverse direction.
    for file, name in (("slstm", "sLSTM"), ("qrnn", "QRNN")):
        layer = layer_class(file, name)(IN, H, bidirectional=True, **DOUBLE, backend=backend)
        clean = torch.randn(T, B, IN, **DOUBLE)
        clean[4:, 0] = 0
        dirty = clean.clone()
        dirty[4:, 0] = torch.nan
        results = []
        for x in (clean, dirty):
            output, last = layer(x.requires_grad_(), lengths=[4, T, T])
            results.append((output, *gradients(output, tuple_of(last), [x, *layer.parameters()])))
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b) and torch.isfinite(a).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sequences_unbatched_inputs_and_dropout(backend: str) -> None:
    theirs = nn.LSTM(IN, H, 2, dropout=0.5, bidirectional=True, **DOUBLE)
    ours = layer_class("nn_lstm", "nn_LSTM")(IN, H, 2, dropout=0.5, bidirectional=True, **DOUBLE, backend=backend)
    ours.load_state_dict(theirs.state_dict())
    x, states = sample(theirs)
    output, (h, c) = ours(x[:0], tuple(states))
    assert output.shape == (0, B, 2 * H) and torch.equal(h, states[0]) and torch.equal(c, states[1])
    (gradient,) = torch.autograd.grad(h.sum() + output.sum(), states[0])
    assert torch.equal(gradient, torch.ones_like(gradient))
    torch.manual_seed(5)
    expected = theirs(x)[0]
    torch.manual_seed(5)
    close(ours(x)[0], expected)
    ours.eval()
    theirs.eval()
    single, (h1, _) = ours(x[:, 0], (states[0][:, 0], states[1][:, 0]))
    alone, (h2, _) = theirs(x[:, 0], (states[0][:, 0], states[1][:, 0]))
    close(single, alone)
    close(h1, h2)


def test_single_steps_equal_nn_s_cells() -> None:
    theirs = nn.LSTMCell(IN, H, **DOUBLE)
    ours = rnncc.load("nn_lstm").nn_LSTMCell(IN, H, **DOUBLE)
    ours.load_state_dict(theirs.state_dict())
    x, h, c = torch.randn(B, IN, **DOUBLE), torch.randn(B, H, **DOUBLE), torch.randn(B, H, **DOUBLE)
    for a, b in zip(ours(x, (h, c)), theirs(x, (h, c)), strict=True):
        close(a, b)
    for a, b in zip(ours(x[0]), theirs(x[0]), strict=True):
        close(a, b)


def test_gate_parameters_are_views_by_the_language_s_names() -> None:
    layer = layer_class("lstm", "LSTM")(IN, H, 2, num_heads=2, bidirectional=True)
    gates = layer.gate_parameters(1, reverse=True)
    assert gates["W_f"].shape == (H, 2 * H) and gates["R_f"].shape == (2, H // 2, H // 2) and gates["b_f"].shape == (H,)
    assert gates["W_f"].data_ptr() == layer.weight_ih_l1_reverse[H : 2 * H].data_ptr()
    assert gates["R_f"].data_ptr() == layer.weight_hh_l1_reverse[H : 2 * H].data_ptr()
    assert layer.gate_parameters(0, grad=True)["R_f"] is None
    layer(torch.randn(T, B, IN))[0].sum().backward()
    assert layer.gate_parameters(0, grad=True)["R_f"].abs().sum() > 0
    assert torch.equal(gates["b_f"], torch.ones(H))  # init b_f = 1
    with pytest.raises(ValueError, match="layer 2"):
        layer.gate_parameters(2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_are_a_block_diagonal_matrix(backend: str) -> None:
    heads = 2
    blocked = layer_class("lstm", "LSTM")(IN, H, num_heads=heads, **DOUBLE, backend=backend)
    dense = layer_class("lstm", "LSTM")(IN, H, **DOUBLE, backend=backend)
    with torch.no_grad():
        dense.weight_ih_l0.copy_(blocked.weight_ih_l0)
        dense.bias_ih_l0.copy_(blocked.bias_ih_l0)
        for name, blocks in blocked.gate_parameters().items():
            if name.startswith("R_"):
                dense.gate_parameters()[name][0].copy_(torch.block_diag(*blocks))  # type: ignore[no-untyped-call]
    x = torch.randn(T, B, IN, **DOUBLE)
    close(blocked(x)[0], dense(x)[0])


def test_errors_read_like_nn_s() -> None:
    ours = layer_class("lstm", "LSTM")(IN, H)
    theirs = nn.LSTM(IN, H)
    x = torch.randn(T, B, IN)
    bad: list[tuple[Any, ...]] = [
        (torch.randn(T, B, IN + 1),),
        (x, (torch.zeros(1, B + 1, H), torch.zeros(1, B, H))),
        (torch.randn(T, B, IN, 1),),
        (x.double(),),
    ]
    for arguments in bad:
        with pytest.raises((RuntimeError, ValueError)) as expected:
            theirs(*arguments)
        with pytest.raises(expected.type) as got:
            ours(*arguments)
        assert str(got.value).split("size")[0] == str(expected.value).split("size")[0]
    with pytest.raises(TypeError, match="2 tensor"):
        ours(x, torch.zeros(1, B, H))
    with pytest.raises(TypeError, match="no input 'gap'"):
        ours(x, gap=x)
    with pytest.raises(ValueError, match="lengths"):
        ours(x, lengths=[T + 1] * B)


def test_constructor_errors() -> None:
    LSTM = layer_class("lstm", "LSTM")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dropout": 2.0}, "range"),
        ({"num_layers": 0}, "num_layers"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_heads": 4}, "num_heads must divide"),
        ({"backend": "tpu"}, "backend"),
    ]
    for keywords, message in cases:
        with pytest.raises(ValueError, match=message):
            LSTM(**({"input_size": IN, "hidden_size": H} | keywords))
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        LSTM(IN, H, foo=1)
    with pytest.warns(UserWarning, match="dropout"):
        LSTM(IN, H, dropout=0.5)


def test_a_broken_constraint_names_its_line() -> None:
    module = rnncc.compile("cell Same\nstate h\nh[t] = x + h[t-1]\n")
    with pytest.raises(ValueError, match=r"input_size must equal hidden_size because of line 3; got 5, 6"):
        module.Same(IN, H)
    # Layer 1 of a bidirectional stack has I = 2H.
    with pytest.raises(ValueError, match=r"input_size must equal hidden_size because of line 3; got 12, 6"):
        module.Same(H, H, num_layers=2, bidirectional=True)
    output, last = module.Same(H, H)(torch.ones(3, 1, H))
    assert output[:, 0, 0].tolist() == [1, 2, 3] and last.shape == (1, 1, H)


def test_sizes_that_a_sum_of_widths_makes_equal() -> None:
    """H + I is 2*H where I must be H, but heads do not cut it part by part: x has no heads."""
    text = "cell Joined\nstate h: 2*H\nu = W@x\nh[t] = tanh(concat(u, x) + R@h[t-1])\n"
    package = rnncc.compile(text, "joined")
    with pytest.raises(ValueError, match="input_size must equal hidden_size"):
        package.Joined(4, 6)
    layer = package.Joined(6, 6, num_heads=2, dtype=torch.float64)
    plain = package.Joined(6, 6, num_heads=2, dtype=torch.float64, backend="reference")
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    found, expected = layer(x)[0], plain(x)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    (d_found,), (d_expected,) = (torch.autograd.grad(each.square().sum(), x) for each in (found, expected))
    torch.testing.assert_close(d_found, d_expected, rtol=0, atol=1e-12)


def test_layers_are_copied_pickled_and_saved() -> None:
    layer = layer_class("lstm", "LSTM")(IN, H, 2)
    x = torch.randn(T, B, IN)
    expected = layer(x)[0]
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    for again in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(stream, weights_only=False),
    ):
        assert torch.equal(again(x)[0], expected) and type(again) is type(layer)
    # The text and the class alone: neither the compiler nor the version of rnncc that loaded it.
    assert b"rnncc_loaded" not in pickle.dumps(layer)


def test_representation_and_weights() -> None:
    layer = layer_class("lstm", "LSTM")(IN, H, 2, bias=False, bidirectional=True)
    assert repr(layer) == "LSTM(5, 6, num_layers=2, bias=False, bidirectional=True)"
    assert [len(weights) for weights in layer.all_weights] == [2, 2, 2, 2]
    layer.flatten_parameters()
    assert "CPU kernels" in layer.explain()
    assert "reference" in layer_class("lstm", "LSTM")(IN, H, backend="reference").explain()


def test_shaping_constants_make_another_program() -> None:
    RHN = layer_class("rhn", "RHN")
    deeper = RHN(IN, H, L=3)
    assert "R_n_3" in deeper.gate_parameters() and "R_n_3" not in RHN(IN, H).gate_parameters()
    assert deeper(torch.randn(T, B, IN))[0].shape == (T, B, H)


def test_the_functional_op_is_the_loop_alone() -> None:
    module = rnncc.load("lstm")
    layer = module.LSTM(IN, H, **DOUBLE)
    x = torch.randn(T, B, IN, **DOUBLE)
    streams = x @ layer.weight_ih_l0.t() + layer.bias_ih_l0
    states = (torch.zeros(B, H, **DOUBLE), torch.zeros(B, H, **DOUBLE))
    output, (h, c) = module.lstm(streams, layer.weight_hh_l0, states)
    expected, (h_n, c_n) = layer(x)
    close(output, expected)
    close(h, h_n[0])
    close(c, c_n[0])
    padded = streams.detach().clone()
    padded[1:, 0] = float("nan")
    padded.requires_grad_()
    module.lstm(padded, layer.weight_hh_l0, states, lengths=torch.tensor([1] + [T] * (B - 1)))[0].sum().backward()
    assert padded.grad is not None and bool(padded.grad.isfinite().all())
    with pytest.raises(ValueError, match="1 weights"):
        module.lstm(streams, [], states)
    with pytest.raises(TypeError, match="'hiden_size'"):
        module.lstm(streams, layer.weight_hh_l0, states, hiden_size=H)
    for heads in (0, 4):
        with pytest.raises(ValueError, match="num_heads"):
            module.lstm(streams, layer.weight_hh_l0, states, num_heads=heads)
