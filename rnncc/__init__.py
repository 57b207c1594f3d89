"""rnncc: recurrent cells as equations, compiled into differentiable PyTorch ops.

    import torch, rnncc

    lstm = rnncc.load("lstm")                  # a shipped cell's name, or the path of a .rnn file
    layer = lstm.LSTM(64, 128, num_layers=2)   # the arguments of torch.nn.LSTM, and more: help(lstm.LSTM)
    x = torch.randn(100, 32, 64)
    output, (h_n, c_n) = layer(x)              # x [T, B, 64], output [T, B, 128]
    output.sum().backward()
    print(layer.explain())                     # which kernels run, and why

    mine = rnncc.compile('''
    cell Leaky
    state h
    h[t] = 0.9*h[t-1] + 0.1*tanh(W@x + R@h[t-1] + b)
    ''')
    output, h_n = mine.Leaky(64, 128)(x)

On the command line, `rnncc --help` has more: `rnncc check` finds mistakes, `rnncc verify` compares with a reference,
`rnncc bench` times. `rnncc.compat` has the interfaces of torch.nn, FlashRNN and Haste. Nothing heavy is imported before
a cell is loaded or compiled.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from rnncc.language.diagnostics import Diagnostic, InternalError, RnnccError
from rnncc.machine.forks import unforked
from rnncc.machine.garbage import uncollected
from rnncc.version import VERSION

if TYPE_CHECKING:
    import os
    from types import ModuleType
    from typing import Any

__version__ = VERSION
__all__ = ["Diagnostic", "InternalError", "RnnccError", "__version__", "compile", "load", "safe_globals"]


def load(
    name_or_path: str | os.PathLike[str], /, *, parallel_newton: bool = False, **shaping: float | int | str
) -> ModuleType:
    """The module with a file's cells: layers (`LSTM`), single steps (`LSTMCell`) and functional ops (`lstm`).

    Built into the cache on the first call for a text, loaded from there afterwards. Without a C++ compiler the
    module runs its eager fallback instead, and says so.

    Args:
        name_or_path: a shipped cell's name (`lstm`) or the path of a `.rnn` file; an existing path goes first.
        parallel_newton: also compile GPU kernels that work on many steps of a loop without recurrent matrices at a
            time where its steps are not affine, by Newton's method; they run calls of few channels and many steps.
        shaping: constants of the text that shape the program (loop bounds, delays, functions), by name.

    Raises:
        RnnccError: every mistake in the text at once (RNN1xx, RNN2xx), or what keeps the package from being built
            (RNN6xx) or loaded (RNN7xx).
    """
    loaded: ModuleType = _driver().load_file(name_or_path, {"constants": shaping, "newton": parallel_newton})
    return loaded


def compile(
    text: str, name: str = "cell", /, *, parallel_newton: bool = False, **shaping: float | int | str
) -> ModuleType:
    """The same as `load` for a text; `name` names it in diagnostics, as a file's name would.

    Raises:
        RnnccError: as for `load`.
    """
    loaded: ModuleType = _driver().load_text(text, name, {"constants": shaping, "newton": parallel_newton})
    return loaded


def _driver() -> ModuleType:
    """rnncc.driver, imported with all that a load needs before it begins."""
    with unforked(), uncollected():
        from rnncc import driver
        from rnncc.stages import build  # noqa: F401

        codecs.lookup("utf-8-sig")  # imports it
        return driver


def safe_globals() -> list[Any]:
    """What `torch.load(path, weights_only=True)` must be allowed for layers of `load` and `compile`, their classes and
    functional ops, whole or within a model, and for what `rnncc.compat` makes of them (`nn.replace`, `TwoStates`):

        with torch.serialization.safe_globals([*rnncc.safe_globals(), MyModel]):
            model = torch.load(path, weights_only=True)

    The file then says which cells are built; a cell's text can do nothing but compute.
    """
    from rnncc import driver
    from rnncc.compat.instances import KINDS, pickled_class
    from rnncc.compat.two_states import TwoStates

    return [driver.unpickle, pickled_class, TwoStates, *KINDS]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext rnncc` in a notebook: the cell magic `%%rnn`."""
    from rnncc.extras import needs

    with needs("notebook", "%load_ext rnncc"):
        from rnncc.notebook.magic import register
    register(shell)
