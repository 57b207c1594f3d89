"""CPU kernels that were not compiled with their package, for a dtype, or for lengths and resets: a call that needs them
has them compiled."""

from __future__ import annotations

import ctypes
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rnncc
from rnncc import on_demand
from rnncc.driver import build_package, load_module
from rnncc.machine.targets import own_instructions
from tests.compilers import write_compiler
from tests.fresh import run_fresh
from tests.runtime.late import TEXT, compiled, first_use_of, linear, ones, request_of


def agrees(layer: Any, dtype: torch.dtype = torch.float64) -> None:
    """The layer's values and gradients are those of torch's own, for which the cell's name is RNN."""
    torch.manual_seed(0)
    theirs: Any = nn.RNN(3, 4).to(dtype)
    with torch.no_grad():
        theirs.bias_hh_l0.zero_()
        for name, value in layer.to(dtype).named_parameters():
            getattr(theirs, name).copy_(value)
    x = torch.randn(5, 2, 3, dtype=dtype, requires_grad=True)
    for output, expected in zip(results(layer, x), results(theirs, x), strict=True):
        torch.testing.assert_close(output, expected)


def results(layer: Any, x: Tensor) -> list[Tensor]:
    """The output, and gradients."""
    output = layer(x)[0]
    return [output, *torch.autograd.grad(output.square().sum(), [x, layer.weight_ih_l0, layer.weight_hh_l0])]


def test_float64_is_compiled_by_the_first_call_and_once(late_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = rnncc.compile(TEXT, "late_float64")
    assert compiled(capfd.readouterr().err) == []
    agrees(module.Late(3, 4), torch.float32)
    assert compiled(capfd.readouterr().err) == []
    agrees(module.Late(3, 4))
    assert compiled(capfd.readouterr().err) == ["float64"]
    agrees(module.Late(3, 4))
    first_use_of(module).STATE.provided.clear()  # as in another process: found in the cache, without a word
    first_use_of(module).provide_for_cpu(own_instructions(), "f64")
    assert capfd.readouterr().err == ""


def test_lengths_are_compiled_by_the_first_call_that_has_them(
    late_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In each dtype, once; dtypes of 16 bits with float32."""
    module = rnncc.compile(TEXT, "late_lengths")
    layer, x, lengths = module.Late(3, 4), torch.randn(5, 2, 3), torch.tensor([2, 5])
    expected = [layer(x[:2, :1])[0], layer(x[:, 1:])[0]]
    capfd.readouterr()

    def check(dtype: torch.dtype, bound: float = 1e-5) -> list[str]:
        output = layer.to(dtype)(x.to(dtype), lengths=lengths)[0].float()
        torch.testing.assert_close([output[:2, :1], output[:, 1:]], expected, rtol=bound, atol=bound)
        return compiled(capfd.readouterr().err)

    assert check(torch.float32) == ["float32 for lengths and resets"]
    assert check(torch.float32) == check(torch.bfloat16, 0.02) == []
    # The product with the inputs lies in the file of loops without lengths.
    assert check(torch.float64, 0.02) == ["float64", "float64 for lengths and resets"]


def test_float64_alone(late_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Then other dtypes come later, and those of 16 bits with float32."""
    module = load_module(request_of(TEXT, "late_float64_alone"), ("f64",))
    agrees(module.Late(3, 4))
    assert compiled(capfd.readouterr().err) == []
    layer = module.Late(3, 4)
    expected = layer(torch.ones(2, 1, 3))[0]
    assert compiled(capfd.readouterr().err) == ["float32"]
    agrees(layer, torch.float32)
    found = layer.bfloat16()(torch.ones(2, 1, 3, dtype=torch.bfloat16))[0]
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    assert compiled(capfd.readouterr().err) == []


def whole(module: ModuleType) -> Any:
    """Without gradients: the op of a whole layer."""
    layer = module.Late(3, 4).double().eval()
    with torch.inference_mode():
        return layer(ones(5, 2, 3))[0]


def packed_weights(module: ModuleType) -> Any:
    layer = module.Late(3, 4).double().eval().requires_grad_(False)
    return layer(ones(1, 1, 3))[0]


def masked(module: ModuleType) -> Any:
    return module.Late(3, 4).double()(ones(5, 2, 3), lengths=torch.tensor([2, 5]))[0]


def step(module: ModuleType) -> Any:
    return module.LateCell(3, 4).double()(ones(2, 3))[0]


def functional(module: ModuleType) -> Any:
    return module.late(ones(5, 2, 4), [ones(4, 4).requires_grad_()], hidden_size=4)[0]


def by_torch_compile(module: ModuleType) -> Any:
    compiled_layer: Any = torch.compile(module.Late(3, 4).double(), fullgraph=True, backend="aot_eager")
    return compiled_layer(ones(5, 2, 3))[0]


def exported(module: ModuleType) -> Any:
    program: Any = torch.export.export(module.Late(3, 4).double(), (ones(5, 2, 3),))
    return program.module()(ones(5, 2, 3))[0]


def checkpointed(module: ModuleType) -> Any:
    layer: Any = module.Late(3, 4).double()
    return checkpoint(lambda x: layer(x)[0], ones(5, 2, 3), use_reentrant=False)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "call", [whole, packed_weights, masked, step, functional, linear, by_torch_compile, exported, checkpointed],
    ids=lambda call: call.__name__,
)  # fmt: skip
def test_whatever_calls(
    call: Callable[[ModuleType], Tensor], late_module: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    result = call(late_module)
    assert result.dtype == torch.float64 and result.isfinite().all()
    if result.requires_grad:
        torch.autograd.backward(result.sum())
    said = ["float64", *["float64 for lengths and resets"] * (call is masked)]
    assert compiled(capfd.readouterr().err) == said
    torch.manual_seed(0)
    assert torch.equal(call(late_module), result)


def test_where_it_cannot_be_compiled_the_op_says_why(
    late_module: ModuleType, late_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next call tries again."""
    layer, x = late_module.Late(3, 4).double(), ones(5, 2, 3)
    begin = "this package has no CPU kernels that compute in float64"
    with monkeypatch.context() as without:
        without.setenv("CXX", str(tmp_path / "none"))
        with pytest.raises(RuntimeError, match=begin + r" yet: no C\+\+ compiler found: .*\[RNN601\]; install one"):
            layer(x)
    fails = write_compiler(tmp_path / "fails", 'echo half > "$out"; echo "error: no" >&2; exit 1')
    said = begin + r" yet: the compiler failed on \w+: error: no \[RNN602\]"
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match=said) as caught:
        broken.setenv("CXX", str(fails))
        layer(x)
    assert list((late_cache / "tmp").iterdir()) == []
    log = re.search(r"everything it said is in (\S+log)", str(caught.value))
    assert log and "error: no" in Path(log[1]).read_text(encoding="utf-8")
    state = first_use_of(late_module).STATE
    with monkeypatch.context() as another:
        another.setattr(state, "about", {**state.about, "code": "another"})
        with pytest.raises(RuntimeError, match=begin + r" yet: another rnncc than this one .*\[RNN609\]"):
            layer(x)
    with monkeypatch.context() as alone:
        alone.setitem(sys.modules, "rnncc.on_demand", None)
        with pytest.raises(RuntimeError, match=begin + ", and rnncc, which compiles them .*`rnncc build"):
            layer(x)
    state.library.rnncc_set_kernel_handler(None)
    with pytest.raises(RuntimeError, match=begin + "; `rnncc build` makes a package that has kernels for every call"):
        layer(x)
    state.library.rnncc_set_kernel_handler(first_use_of(late_module)._HANDLER)
    agrees(late_module.Late(3, 4))
    state.library.rnncc_set_kernel_handler(None)
    with pytest.raises(RuntimeError, match=begin + " for lengths and resets; `rnncc build`"):
        layer(x, lengths=torch.tensor([2, 5]))


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_it_compiles_is_pythons(late_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call begins anew."""

    def interrupted(*given: Any) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(on_demand, "compile_for_cpu", interrupted)
        with pytest.raises(KeyboardInterrupt):
            try:
                step(late_module)
            except RuntimeError:
                time.sleep(1)  # where the interrupt comes, if it came not at once
    agrees(late_module.Late(3, 4))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("setting", ["0", "1"])
def test_the_setting_about_fused_kernels_is_not_about_these(
    setting: str, late_module: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without kernels a call could not run."""
    monkeypatch.setenv("RNNCC_COMPILE", setting)
    agrees(late_module.Late(3, 4))
    assert compiled(capfd.readouterr().err) == ["float64"]


def test_a_built_package_has_every_dtype_and_asks_for_none(tmp_path: Path) -> None:
    folder = build_package(request_of(TEXT, "late_built"), tmp_path, "cpu")
    program = (
        "import sys; sys.modules['rnncc'] = None\n"
        "import torch, late_built\n"
        "for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):\n"
        "    late_built.Late(3, 4).to(dtype)(torch.ones(5, 2, 3, dtype=dtype))[0].sum().backward()\n"
    )
    done = run_fresh(program, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    symbols = ctypes.CDLL(str(folder / "liblate_built.so"))
    for isa in ("generic", "v3", "v4"):
        assert all(hasattr(symbols, f"late_0_forward_{isa}_{suffix}") for suffix in ("f32", "f64"))


@pytest.mark.long
def test_a_package_remembers_which_program_it_is(late_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Constants that one of its cells has otherwise, and zoneout."""
    text = "\n".join(
        f"cell {name}\nconst n = {n}\nstate h\nv[0] = W@x + R@h[t-1] + b\n"
        "for m in 1..n:\n    v[m] = tanh(2*v[m-1])\nh[t] = v[n]\n"
        for name, n in (("One", 1), ("Three", 3))
    )
    for shaping, zoneout in (({}, ()), ({"n": 2}, ("h",))):
        module = load_module(request_of(text, "late_options", constants=shaping, zoneout=zoneout), ())
        for name in ("One", "Three"):
            layer = getattr(module, name)(3, 4, dtype=torch.float64).eval()
            x = torch.randn(5, 2, 3, dtype=torch.float64)
            expected = getattr(module, name)(3, 4, dtype=torch.float64, backend="reference").eval()
            expected.load_state_dict(layer.state_dict())
            torch.testing.assert_close(layer(x)[0], expected(x)[0])
    assert compiled(capfd.readouterr().err) == ["float64"] * 2


def test_what_is_in_the_cache_is_checked(
    late_module: ModuleType, late_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    agrees(late_module.Late(3, 4))
    instructions, state = own_instructions(), first_use_of(late_module).STATE
    source, stem, options, code = (state.about[name] for name in ("source", "stem", "options", "code"))
    made = on_demand.compile_for_cpu((source, stem, code), options, (instructions, "f64"))
    capfd.readouterr()
    content = made.read_bytes()
    made.unlink()  # the open library stays as it is
    made.write_bytes(content[:-1] + b"\1")
    state.provided.clear()
    first_use_of(late_module).provide_for_cpu(instructions, "f64")
    assert "is damaged" in capfd.readouterr().err
