"""Cells with matrix states under PyTorch's other tools: as the eager call, or as a loop in torch."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import rnncc
from tests.long import runs_all

pytestmark = pytest.mark.usefixtures("float64_first")
IN, H, HEADS = 5, 6, 3
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
CLASSES = {"gla": "GLA", "gateddeltanet": "GatedDeltaNet", "mlstm": "mLSTM", "ttt_linear": "TTT_Linear"}
# A learned start, and parameters beside the input's product; the cheapest to compile.
ALWAYS = ("ttt_linear",)
usual = pytest.mark.always(file=ALWAYS)
every = pytest.mark.parametrize("file", CLASSES)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(file: str, *, step: bool = False, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {"num_heads": HEADS, **DOUBLE, **options}
    return getattr(rnncc.load(file), CLASSES[file] + ("Cell" if step else ""))(IN, H, **options)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, **DOUBLE)


def states_of(module: Any, *first: int) -> Any:
    """As hx has them; `first`: layers and directions, of a layer, and the batch."""
    states = tuple(random(*first, *state.shape(module._sizes[0])) for state in module.spec.states)
    return states if len(states) > 1 else states[0]


def flat(results: Any) -> list[Tensor]:
    return pytree.tree_leaves(results)


def total(results: Any) -> Tensor:
    """A number of all results. Before its first step, mLSTM's m is -inf."""
    return torch.stack([torch.where(each.isfinite(), each, 0).square().sum() for each in flat(results)]).sum()


def trained(module: Any, given: tuple[Any, ...], *leaves: Tensor, by: Any = None) -> list[Tensor]:
    """The results of a call of the module, or of what stands for it, and the gradients of parameters and leaves."""
    results = (module if by is None else by)(*given)
    wanted = [*module.parameters(), *leaves]
    found = torch.autograd.grad(total(results), wanted, allow_unused=True)
    zeros = (torch.zeros_like(leaf) if each is None else each for leaf, each in zip(wanted, found, strict=True))
    return [*flat(results), *zeros]


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(flat(found), flat(expected), atol=1e-9, rtol=1e-9)


def saved(module: Any) -> Any:
    """The module, written and read by pickle, with the names that torch may load."""
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    with torch.serialization.safe_globals(rnncc.safe_globals()):
        return torch.load(buffer, weights_only=True)


@pytest.mark.long
@usual
@every
def test_compiled_for_every_size(file: str) -> None:
    """Sizes that differ from all others: torch takes equal ones for the same."""
    layer, step = make(file), make(file, step=True)
    # A single step, which is a shorter graph of the same, in the long suite alone: most tests of steps export them.
    modules = ((layer, ((13, 17), (7, 4), (2, 9))), (step, ((17,), (4,), (9,))))
    for module, sizes in modules if runs_all() else modules[:1]:
        compiled: Any = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
        for number, size in enumerate(sizes):
            x = random(*size, IN)
            first = () if module is step else (1,)
            hx = states_of(module, *first, size[-1])
            leaves = [each.requires_grad_() for each in flat(hx)]
            with torch.compiler.set_stance("fail_on_recompile" if number else "default"):
                found = trained(module, (x, hx), *leaves, by=compiled)
            close(found, trained(module, (x, hx), *leaves))


@usual
@every
def test_exported_for_every_size(file: str) -> None:
    layer, step, auto = make(file, bidirectional=True), make(file, step=True), torch.export.Dim.AUTO
    for module, example, sizes, dims in (
        (layer, (4, 3), (7, 2), (2,)),
        (step, (3,), (5,), ()),
    ):
        hx = states_of(module, *dims, example[-1])
        of_a_state = {len(dims): auto}
        of_states = (of_a_state,) * len(hx) if isinstance(hx, tuple) else of_a_state
        shapes = dict.fromkeys(range(len(example)), auto), of_states
        with torch.no_grad():
            program = torch.export.export(module, (random(*example, IN), hx), dynamic_shapes=shapes)
        again = program.module()
        x, hx = random(*sizes, IN), states_of(module, *dims, sizes[-1])
        close(trained(again, (x, hx)), trained(module, (x, hx)))
        with torch.no_grad():
            close(again(x, hx), module(x, hx))


@pytest.mark.always(file=("gla", "ttt_linear"))
@every
def test_traced_for_every_size(file: str) -> None:
    layer, step = make(file, num_layers=2, bidirectional=True), make(file, step=True)
    for module, example, sizes, dims in ((layer, (4, 3), (7, 2), (4,)), (step, (3,), (5,), ())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that are checked
            given = random(*example, IN), states_of(module, *dims, example[-1])
            trace: Any = torch.jit.trace(module, given)  # type: ignore[no-untyped-call]
        x, hx = random(*sizes, IN), states_of(module, *dims, sizes[-1])
        close(trace(x, hx), module(x, hx))


@pytest.mark.one_in(4)
@every
def test_transforms(file: str) -> None:
    """Against autograd on the kernels."""
    layer, x = make(file), random(3, 2, IN)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return total(functional_call(layer, parameters, (x,)))

    each = random(2, 3, 2, IN)
    wanted = [trained(layer, (one,))[-len(parameters) :] for one in each]
    close(vmap(grad(loss), (None, 0))(parameters, each), [torch.stack(same) for same in zip(*wanted, strict=True)])

    def output(x: Tensor) -> Tensor:
        value: Tensor = layer(x)[0]
        return value

    jacobian: Any = torch.autograd.functional.jacobian
    expected = jacobian(output, x)
    close(jacrev(output)(x), expected)
    close(jacfwd(output)(x), expected)
    close(jvp(output, (x,), (x.cos(),))[1], torch.einsum("tbhsci,sci->tbh", expected, x.cos()))
    # Masks and states that vmap batches.
    hx, lengths, reset = states_of(layer, 2, 1, 2), torch.tensor([[3, 0], [1, 3]]), torch.rand(2, 3, 2) > 0.6

    def call(*given: Any) -> list[Tensor]:
        return flat(layer(given[0], given[1], lengths=given[2], reset=given[3]))

    alone = [call(each[i], pytree.tree_map(lambda s, i=i: s[i], hx), lengths[i], reset[i]) for i in range(2)]
    close(vmap(call)(each, hx, lengths, reset), [torch.stack(same) for same in zip(*alone, strict=True)])


@usual
@every
def test_second_derivatives_and_forward_mode(file: str) -> None:
    layer, step = make(file), make(file, step=True)
    for module, x, first in ((layer, random(2, 1, IN), (1, 1)), (step, random(1, IN), (1,))):
        given = [x.requires_grad_(), *((each / 2).requires_grad_() for each in flat(states_of(module, *first)))]

        def call(x: Tensor, *hx: Tensor, module: Any = module) -> tuple[Tensor, ...]:
            return tuple(flat(module(x, hx if len(hx) > 1 else hx[0])))

        assert torch.autograd.gradcheck(call, given, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, given, fast_mode=True)


@usual
@every
def test_copies_state_dicts_and_the_meta_device(file: str) -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    layer, step, x = make(file, **options), make(file, step=True), random(4, 2, IN)
    other = type(layer)(IN, H, num_heads=HEADS, **options, **DOUBLE)
    assert set(other.state_dict()) >= {"S0_l0", "S0_l1_reverse", "c0_l0"} or file != "ttt_linear"
    other.load_state_dict(layer.state_dict())
    for same in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), saved(layer)):
        close(same(x), layer(x))
    hx = states_of(step, 2)
    for same in (copy.deepcopy(step), pickle.loads(pickle.dumps(step)), saved(step)):
        close(same(x[0], hx), step(x[0], hx))
    for module, given in ((layer, x), (step, x[0])):
        elsewhere = copy.deepcopy(module).to("meta")
        found, expected = flat(elsewhere(given.to("meta"))), flat(module(given))
        assert all(each.is_meta for each in found)
        assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in expected]
        views, others = module.gate_parameters(), elsewhere.gate_parameters()
        assert {name: view.shape for name, view in views.items()} == {name: v.shape for name, v in others.items()}


@pytest.mark.always(file=("gla",))
@every
def test_autocast_and_counted_products(file: str) -> None:
    """As the eager loop: which dtypes come out, and how many products there are."""
    layer, x = make(file, dtype=torch.float32, num_heads=1), random(5, 3, IN).float()
    for dtype in (torch.bfloat16, torch.float16):
        for given in (None, states_of(layer, 1, 3)):
            hx = pytree.tree_map_only(Tensor, Tensor.float, given)
            found, counts = [], []
            for backend in (None, "reference"):
                layer.backend = backend
                with torch.autocast("cpu", dtype=dtype), FlopCounterMode(display=False) as counter:
                    results = flat(layer(x, hx))
                    total(results).backward()  # type: ignore[no-untyped-call]
                found.append([(each.dtype, each.shape) for each in results])
                counts.append(counter.get_total_flops())
            assert found[0] == found[1] and counts[0] == counts[1] > 0
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.always(file=("gla", "ttt_linear"))
@every
def test_matrices_have_32_bits_where_inputs_have_16(file: str) -> None:
    """Other states have the input's dtype, or all have what `state_dtype` says. `hx` may have either dtype."""
    for dtype in (torch.bfloat16, torch.float16):
        in_half = partial(Tensor.to, dtype=dtype)
        layer, step = (make(file, step=one, dtype=dtype) for one in (False, True))
        x, wanted = random(5, 3, IN).to(dtype), {s.name: s.dtype(dtype) for s in layer.spec.states}
        assert set(wanted.values()) == {torch.float32, dtype} if file == "mlstm" else {torch.float32}
        output, states = layer(x)
        assert output.dtype == dtype and [each.dtype for each in flat(states)] == list(wanted.values())
        assert [each.dtype for each in flat(step(x[0])[1])] == list(wanted.values())
        rounded = pytree.tree_map_only(Tensor, in_half, states)
        again = pytree.tree_map_only(Tensor, Tensor.clone, states)
        for given in (states, rounded):
            assert [each.dtype for each in flat(layer(x, given)[1])] == list(wanted.values())
        # Also in the eager loop, without gradients and in the functional op.
        layer.backend = "reference"
        assert [each.dtype for each in flat(layer(x, again)[1])] == list(wanted.values())
        layer = make(file, dtype=dtype, state_dtype=dtype)
        with torch.no_grad():
            assert {each.dtype for each in flat(layer(x))} == {dtype}


def test_calls_of_one_step_lose_no_bits_of_a_matrix() -> None:
    """In 16 bits steps and pieces equal the whole, bit by bit: GLA's only state is a matrix."""
    layer, step = (make("gla", step=one, dtype=torch.bfloat16) for one in (False, True))
    step.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x = random(9, 3, IN).bfloat16()
    output, whole = layer(x)
    first, state = layer(x[:4])
    second, last = layer(x[4:], state)
    assert torch.equal(torch.cat([first, second]), output) and torch.equal(last, whole)
    outputs, carried = [], None
    for row in x:
        made, carried = step(row, carried)
        outputs.append(made)
    assert carried is not None and torch.equal(torch.stack(outputs), output) and torch.equal(carried, whole[0])


@every
def test_every_form_of_input(file: str) -> None:
    """Packed rows, lengths, batch_first by strides, one sequence, empty batches, no step: as each other."""
    layer, lengths = make(file, num_layers=2, bidirectional=True), torch.tensor([7, 0, 3, 5])
    x, hx = random(7, 4, IN), states_of(layer, 4, 4)
    output, last = layer(x, hx, lengths=lengths)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    rows = torch.cat([x[:length, b] for b, length in enumerate(lengths)])
    wanted = torch.cat([output[:length, b] for b, length in enumerate(lengths)])
    close(layer(rows, hx, offsets=offsets, max_length=9), (wanted, last))
    lengths = torch.tensor([5, 7, 1, 3])
    packed, finals = layer(pack_padded_sequence(x, lengths, enforce_sorted=False), hx)
    close((pad_packed_sequence(packed, total_length=7)[0], finals), layer(x, hx, lengths=lengths))
    output, last = layer(x, hx)
    close(layer(x[:, 1], pytree.tree_map(lambda s: s[:, 1], hx)), [each[:, 1] for each in flat((output, last))])
    layer.batch_first = True
    close(layer(x.transpose(0, 1), hx), (output.transpose(0, 1), last))
    turned = pytree.tree_map(lambda s: s.mT.contiguous().mT if s.dim() > 3 else s, hx)
    close(layer(x.transpose(0, 1), turned)[1], last)
    layer.batch_first = False
    for steps, batch in ((0, 4), (3, 0), (1, 4)):
        given = random(steps, batch, IN).requires_grad_(), states_of(layer, 4, batch)
        found = trained(layer, given, given[0])
        layer.backend = "reference"
        close(found, trained(layer, given, given[0]))
        layer.backend = None


@pytest.mark.long
@every
def test_zoneout_of_every_state(file: str) -> None:
    """Without training, a state is the mean of itself and of what a step without zoneout makes."""
    zoned, plain = make(file, step=True, zoneout=0.25).eval(), make(file, step=True)
    assert set(zoned.zoneout) == {state.name for state in zoned.spec.states}
    x, hx = random(2, IN), states_of(zoned, 2)
    y, new = plain(x, hx)
    means = [0.25 * old + 0.75 * value for old, value in zip(flat(hx), flat(new), strict=True)]
    close(zoned(x, hx), [y, *means])
    layer = make(file, zoneout=0.25)
    assert all(each.isfinite().all() for each in trained(layer, (random(40, 2, IN),)))


def test_declared_blocks_are_those_of_heads() -> None:
    text = "cell A\nstate S: matrix(H, H)\noutput y\nweights M: {}\nk = W@x\nS[t] = M@S[t-1] + k@T(k)\ny = S[t]@k\n"
    blocks = rnncc.compile(text.format("blockdiag(2)")).A
    blocks(IN, 8, num_heads=2)
    for heads, message in ((1, "num_heads must be a multiple of 2"), (4, "2 must be a multiple of num_heads")):
        with pytest.raises(ValueError, match=message):
            blocks(IN, 8, num_heads=heads)
    with pytest.raises(rnncc.RnnccError, match="is of low rank: it can only stand before '@'"):
        rnncc.compile(text.format("lowrank(2)").replace("M@S[t-1]", "S[t-1]@M"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["sparse(density=0.5)", "lowrank(1)"])
def test_other_forms_of_a_matrix_in_a_product(form: str) -> None:
    text = (
        f"cell A\nstate S: matrix(H, H)\noutput y\nweights M: {form}\nk = W@x\nS[t] = M@S[t-1] + k@T(k)\ny = S[t]@k\n"
    )
    layer, x = rnncc.compile(text).A(IN, 8, num_heads=2, **DOUBLE), random(5, 3, IN)

    def loop() -> tuple[Tensor, Tensor]:
        views = layer.gate_parameters()
        matrix = views["M_S"] if "M_S" in views else views["M__u_S"] @ views["M__v_S"]
        if "M_S" in views:
            matrix = matrix * layer.M_mask_l0.view_as(matrix)
        state, outputs = x.new_zeros(3, 2, 4, 4), []
        for k in (x @ layer.weight_ih_l0.T).view(5, 3, 2, 4):
            state = matrix @ state + k[..., :, None] * k[..., None, :]
            outputs.append((state @ k[..., None]).reshape(3, 8))
        return torch.stack(outputs), state[None]

    close(trained(layer, (x,)), trained(layer, (), by=loop))


@pytest.mark.long
@pytest.mark.parametrize("file", ["gateddeltanet", "ttt_linear"])
def test_aot_inductor(file: str, tmp_path: Any) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.step = make(file, bidirectional=True).float(), make(file, step=True).float()

        def forward(self, x: Tensor) -> list[Tensor]:
            return flat((self.layer(x), self.step(x[0])))

    model, sizes = Both(), {0: torch.export.Dim("steps", max=4096), 1: torch.export.Dim("batch", max=4096)}
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(5, 4, IN),), dynamic_shapes=(sizes,))
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        run = torch._inductor.aoti_load_package(path)
        for size in ((9, 2), (1, 1)):
            x = torch.randn(*size, IN)
            torch.testing.assert_close(run(x), model(x))
