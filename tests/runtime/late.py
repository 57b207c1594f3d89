"""A cell whose CPU kernels are compiled when a call first needs them, and what was said."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rnncc.ir.request import Request
from rnncc.language.read import from_text

TEXT = "cell Late\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n"
SECONDS = 60


def request_of(text: str, name: str, **program: Any) -> Request:
    return Request(from_text(f"<{name}>", text), name, **program)


def first_use_of(module: ModuleType) -> Any:
    return sys.modules[f"{module.__name__}._runtime.kernels.first_use"]


def compiled(said: str) -> list[str]:
    """What was compiled, as progress names it."""
    return re.findall(r"^rnncc: compiling \w+ in (.+)$", said, re.MULTILINE)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


def linear(module: ModuleType) -> Any:
    kernels, _ = module._package.kernels()
    return kernels.ops["linear"](ones(2, 3), ones(4, 3), None)
