"""What a built package of the LSTM must do where there is neither rnncc nor a compiler.

`python tests/wheel_use.py SITE`: SITE is a folder into which its wheel was installed. Any Python with a torch that the
wheel's metadata allows runs it; torch 2.10.0, 2.11.0 and 2.13.0 have.
"""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

# Another import of rnncc fails, wherever it is installed.
sys.modules["rnncc"] = None  # type: ignore[assignment]
sys.path.insert(0, sys.argv[1])

import lstm  # type: ignore[import-not-found]  # noqa: E402
import torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def gradients(layer: Any, x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    """The output and all gradients."""
    output = layer(x, **options)[0]
    return output, *torch.autograd.grad(output.float().square().sum(), [x, *layer.parameters()])


torch.manual_seed(0)
for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4), (torch.bfloat16, 6e-2)):
    layer = lstm.LSTM(6, 8, 2, bidirectional=True, dtype=dtype)
    assert "CPU kernels" in layer.explain(), layer.explain()
    eager = copy.deepcopy(layer)
    eager.backend = "reference"
    x = torch.randn(9, 4, 6, dtype=dtype, requires_grad=True)
    masks: list[dict[str, Any]] = [{}, {"lengths": torch.tensor([9, 3, 0, 5])}, {"reset": torch.rand(9, 4) < 0.2}]
    for options in masks:
        for ours, theirs in zip(gradients(layer, x, **options), gradients(eager, x, **options), strict=True):
            assert (ours - theirs).abs().max() <= bound * max(1.0, theirs.abs().max().item()), (dtype, options)

layer, x = lstm.LSTM(6, 8), torch.randn(9, 4, 6)
expected = layer(x)[0]
compiled: torch.Tensor = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0]  # type: ignore[no-untyped-call]
compiled.sum().backward()  # type: ignore[no-untyped-call]
assert torch.equal(compiled, expected)
with torch.no_grad():
    any_size = torch.export.Dim.AUTO
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: any_size, 1: any_size},))
    assert torch.equal(program.module()(x[:7, :3])[0], layer(x[:7, :3])[0])
with torch.autocast("cpu", torch.bfloat16):
    assert layer(x)[0].dtype == torch.bfloat16
assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[0], expected)
leaf = x.clone().requires_grad_()
checkpoint(lambda value: layer(value)[0], leaf, use_reentrant=False).sum().backward()
assert leaf.grad is not None
(first,) = torch.autograd.grad(layer(x)[0].square().sum(), layer.weight_ih_l0, create_graph=True)
first.sum().backward()
with forward_ad.dual_level():
    dual = forward_ad.make_dual(x, x.cos())  # type: ignore[no-untyped-call]
    tangent = forward_ad.unpack_dual(layer(dual)[0]).tangent  # type: ignore[no-untyped-call]
wanted: torch.Tensor = torch.func.jvp(lambda value: layer(value)[0], (x,), (x.cos(),))[1]
assert torch.equal(tangent, wanted)
print(f"torch {torch.__version__}: all right")
