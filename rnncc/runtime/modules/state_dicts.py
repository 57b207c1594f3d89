"""State dictionaries: torch.nn's and ours, how their entries correspond, and whether the modules compute the same.

nn keeps two biases a gate and orders gates i, f, g, o (LSTM) or r, z, n (GRU). A cell has the biases that its equations
write; what nn's second bias adds is added to the first where a gate has only that one. Names and shapes do not tell a
cell: what comes from nn is taken by cells that give nn's results.

A layer that has nn's gates in another order has a buffer whose name says which, `rnncc_gates_i_f_o_g`. So its
dictionaries have that entry, and so have copies of them, and averages. It takes no dictionary without the entry whose
names nn's modules have, too. The buffer's value says nothing: neither a cast nor `to_empty` can spoil it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..spec import CellSpec, ParameterSpec
from .parameters import members_of
from .sparsity import SparseWeights

_GATES: dict[int, tuple[str, tuple[str, ...]]] = {
    4: ("nn.LSTM", ("i", "f", "g", "o")),
    3: ("nn.GRU", ("r", "z", "n")),
}
# By nn's `mode`: what a user calls the module, and the shipped cells that equal it.
_MODES = {
    "LSTM": ("nn.LSTM", "nn_LSTM and LSTM; with proj_size nn_LSTMP and LSTMP"),
    "GRU": ("nn.GRU", "nn_GRU and GRU"),
    "RNN_TANH": ("nn.RNN(nonlinearity='tanh')", "nn_RNN and Elman"),
    "RNN_RELU": ("nn.RNN(nonlinearity='relu')", "nn_RNN_relu and IRNN"),
}
_MODES_OF_GATES = {4: ("LSTM",), 3: ("GRU",), 1: ("RNN_TANH", "RNN_RELU")}
_MARK = "rnncc_gates"
# What torch.nn's modules name their parameters, and what pruning, weight norm and parametrizations make of that.
_NN_NAME = re.compile(r"(parametrizations\.)?(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)(?![^_.])")
_SUFFIX = re.compile(r"_l\d+(_reverse)?$")


class StateDicts(SparseWeights):
    """The part of layers and single steps that has to do with their state dictionaries."""

    spec: ClassVar[CellSpec]
    bias: bool
    constants: dict[str, float]
    dims: dict[str, int | None]
    # An entry for each layer and direction, direction-major as in torch.nn: l0, l0_reverse, l1, …
    _suffixes: list[str]
    _sizes: list[dict[str, int]]

    def _mark_order(self, factory: Mapping[str, Any]) -> None:
        """Make the buffer whose name says the order of the gates, where torch.nn has these gates in another order."""
        if (name := order_mark(self.spec)) is not None:
            self.register_buffer(name, torch.zeros(1, **factory))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # A hook would do as well, but pickling a layer would then name the module that this package was loaded as.
        mark_state_dict(self, destination, prefix)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        if problem := self._check_state_dict(state_dict, prefix, local_metadata):
            error_messages = rest[3]
            error_messages.append(problem)
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _check_state_dict(self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any]) -> str:
        """What is wrong with a dictionary, or "". What is not ours is brought into our form, in place."""
        return check_order(self, state_dict, prefix, local_metadata)[0]


def suffix_of(name: str) -> str:
    """`_l0_reverse` of `weight_ih_l0_reverse`; "" where there is none."""
    match = _SUFFIX.search(name)
    return match.group() if match else ""


def mark_state_dict(module: StateDicts, state_dict: dict[str, Any], prefix: str) -> None:
    """Note the gates' order beside the values, so that loading can tell our dictionaries from torch.nn's. Plain copies
    lose it: where the order matters, `order_mark` names an entry."""
    metadata = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        metadata[prefix[:-1]][_MARK] = gate_names(module.spec)


def order_mark(cell: CellSpec) -> str | None:
    """The name of the buffer of a layer that has nn's gates in another order; None for other cells."""
    gates = gate_names(cell)
    _, order = _GATES.get(len(gates), ("", ()))
    if set(order) != set(gates) or list(order) == gates:
        return None
    return "_".join((_MARK, *gates))


def check_order(
    module: StateDicts, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any]
) -> tuple[str, bool]:
    """Whether the rows of a dictionary lie in the order of the module's gates: what is wrong, or "", and whether the
    dictionary is known to be rnncc's. Where nothing is wrong, `state_dict` has the module's own mark afterwards."""
    name, gates, own = module.spec.name, gate_names(module.spec), order_mark(module.spec)
    keys = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
    marked = local_metadata.get(_MARK)
    if marked is None:
        marked = next((key.split("_")[2:] for key in keys if key.startswith(f"{_MARK}_")), None)
    if marked is not None and list(marked) != gates:
        return f"the gates of the saved layer are {', '.join(marked)}; those of {name} are {', '.join(gates)}", True
    if own is not None:
        if marked is None and keys and all(map(_NN_NAME.match, keys)):
            problem = _order_problem(module, gates, certain=True)
            hint = f"if they are a {name}'s own, add the buffer '{prefix}{own}', which says their order"
            return f"{problem}; {hint}", False
        state_dict.setdefault(prefix + own, torch.zeros(1))
    return "", marked is not None


def gate_names(cell: CellSpec) -> list[str]:
    """The gates in the order of the rows of `weight_ih` (else of `weight_hh`)."""
    for attribute in ("weight_ih", "weight_hh"):
        parameter = _parameter(cell, attribute)
        if parameter is not None:
            return [_gate(member.name) for member in parameter.members]
    return []


def _gate(member: str) -> str:
    return member.split("_", 1)[1] if "_" in member else ""


def _parameter(cell: CellSpec, attribute: str) -> ParameterSpec | None:
    return next((p for p in cell.parameters if p.attribute == attribute), None)


def translate(module: StateDicts, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any]) -> str:
    """Bring torch.nn's keys in `state_dict` (changed in place) into ours. Returns what is wrong, or ""."""
    gates = gate_names(module.spec)
    problem, known = check_order(module, state_dict, prefix, local_metadata)
    if problem or known:
        return problem
    extra = _second_biases(module, state_dict, prefix)
    if extra and (modes := _MODES_OF_GATES.get(len(gates), ())):
        # Which nonlinearity an nn.RNN has does not stand in its dictionary.
        problems = [difference(module, mode) for mode in modes]
        if all(problems):
            return "; ".join(problems)
    if extra and (problem := _order_problem(module, gates, certain=True)):
        return problem
    return _merge_all(module, state_dict, prefix, extra)


def _second_biases(module: StateDicts, state_dict: Mapping[str, Any], prefix: str) -> list[str]:
    """The layers and directions for which there is nn's second bias and the cell has none: the dictionary is nn's."""
    if _parameter(module.spec, "bias_hh") is not None:
        return []
    return [suffix for suffix in module._suffixes if f"{prefix}bias_hh{suffix}" in state_dict]


def difference(module: StateDicts, mode: str) -> str:
    """Why the module's cell is not that of torch.nn's of a `mode` ("LSTM", "GRU", "RNN_TANH", "RNN_RELU"), or "".

    Both run some steps of a small layer in float64, with the same random parameters of some units in size. Zoneout is
    taken as 0, dropouts as in evaluation.
    """
    name, shipped = _MODES[mode]
    projection = 2 if "P" in module.dims else 0
    if projection and mode != "LSTM":
        return f"{module.spec.name} has a projection, {name} has none"
    options: dict[str, Any] = {"bias": module.bias, "device": "meta", "dtype": torch.float64}
    made = {"LSTM": nn.LSTM, "GRU": nn.GRU}.get(mode, nn.RNN)
    own = {"proj_size": projection} if projection else {}
    # On the meta device nothing is drawn: torch's generators stay as they are.
    theirs = made(3, 4, **options, **own, **({} if made is not nn.RNN else {"nonlinearity": mode[4:].lower()}))
    generated = _dense(next(base for base in type(module).__mro__ if "spec" in vars(base)))
    zoneout = {mask.of: 0.0 for mask in module.spec.masks if mask.drawn == "zoneout"}
    dropout = 0.5 if any(mask.drawn == "recurrent_dropout" for mask in module.spec.masks) else 0.0
    dims = {key: size for key, size in module.dims.items() if size is not None and key != "P"}
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    values: dict[str, Any] = {key: draw(*value.shape) for key, value in theirs.state_dict().items()}
    theirs.load_state_dict(values, assign=True)
    x = 3 * draw(6, 5, 3)
    try:
        ours = generated(
            3, 4, backend="reference", zoneout=zoneout, recurrent_dropout=dropout, **options, **own,
            **module.constants, **dims,
        ).eval()  # fmt: skip
        extra = _second_biases(ours, values, "")
        gates = gate_names(ours.spec)
        problem = _order_problem(ours, gates, certain=False) if mode in _MODES_OF_GATES.get(len(gates), ()) else ""
        if problem := problem or _merge_all(ours, values, "", extra):
            return problem
        ours.load_state_dict(values, assign=True)
        with torch.no_grad():
            results = [_results(layer, x) for layer in (ours, theirs)]
    except (RuntimeError, TypeError, ValueError):
        # Parameters or inputs that nn has not, of other shapes, or sizes that do not suit: no need to say which.
        same = False
    else:
        same = len(results[0]) == len(results[1]) and all(
            a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(*results, strict=True)
        )
    return "" if same else f"{module.spec.name} computes something else than {name}; the cells for it are {shipped}"


def _dense(generated: Any) -> Any:
    """The class without its masks: small matrices may have no room for them."""
    if not any(parameter.sparsity for parameter in generated.spec.parameters):
        return generated
    parameters = tuple(replace(parameter, sparsity=None) for parameter in generated.spec.parameters)
    return type(generated.__name__, (generated,), {"spec": replace(generated.spec, parameters=parameters)})


def _results(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The output and the final states."""
    output, states = layer(x)
    return [output, states] if isinstance(states, Tensor) else [output, *states]


def _order_problem(module: StateDicts, gates: list[str], *, certain: bool) -> str:
    """Whether nn's rows would land in other gates. `certain`: the dictionary is surely nn's."""
    if len(gates) not in _GATES:
        return ""
    source, order = _GATES[len(gates)]
    if list(order) == gates or (not certain and set(order) != set(gates)):
        return ""
    return (
        f"{source} packs its gates as {', '.join(order)}, {module.spec.name} as {', '.join(gates)}: "
        "the rows would land in the wrong gates"
    )


def _merge_all(module: StateDicts, state_dict: dict[str, Any], prefix: str, suffixes: Sequence[str]) -> str:
    for suffix in suffixes:
        problem = _merge(module, state_dict, prefix, suffix, module._sizes[module._suffixes.index(suffix)])
        if problem:
            return problem
    return ""


def _merge(module: StateDicts, state_dict: dict[str, Any], prefix: str, suffix: str, sizes: Any) -> str:
    """Distribute nn's `bias_hh`: to bR where the gate has one, else to b."""
    first, inner = _parameter(module.spec, "bias_ih"), _parameter(module.spec, "bR")
    key = f"{prefix}bias_hh{suffix}"
    bias = state_dict.get(f"{prefix}bias_ih{suffix}")
    if not module.bias or first is None or bias is None:
        return f"{module.spec.name} has no bias to which {key} could be added"
    total: Tensor = state_dict[key]
    if total.shape != bias.shape:
        return f"{key} has the shape {tuple(total.shape)}, bias_ih {tuple(bias.shape)}"
    own = {_gate(member.name): member for member in inner.members} if inner is not None else {}
    merged, inside = bias.clone(), {}
    pairs = zip(members_of(first, merged, sizes), members_of(first, total, sizes), strict=True)
    for (member, rows), (_, added) in pairs:
        if _gate(member.name) in own:
            inside[_gate(member.name)] = added
        else:
            rows += added
    state_dict[f"{prefix}bias_ih{suffix}"] = merged
    del state_dict[key]
    if inner is not None:
        missing = [gate for gate in own if gate not in inside]
        if missing:
            return f"{key} has no part for {', '.join(missing)}"
        state_dict[f"{prefix}bR{suffix}"] = torch.cat([inside[_gate(member.name)] for member in inner.members])
    return ""


def to_torch(module: StateDicts) -> dict[str, Tensor]:
    """The layer's values under torch.nn's keys. Raises RuntimeError where the gates' order is not nn's."""
    problem = _order_problem(module, gate_names(module.spec), certain=True)
    if problem:
        raise RuntimeError(problem)
    result: dict[str, Tensor] = {}
    inner, first = _parameter(module.spec, "bR"), _parameter(module.spec, "bias_ih")
    for sizes, suffix in zip(module._sizes, module._suffixes, strict=True):
        for parameter in module.spec.parameters:
            name = parameter.attribute + suffix
            if parameter is inner or not hasattr(module, name):
                continue
            result[name] = module._value_of(parameter, suffix).detach().clone()
        if first is None or not module.bias or f"bias_hh{suffix}" in result:
            continue
        second = torch.zeros_like(result[f"bias_ih{suffix}"])
        if inner is not None:
            values = {
                _gate(member.name): rows
                for member, rows in members_of(inner, getattr(module, f"bR{suffix}").detach(), sizes)
            }
            for member, rows in members_of(first, second, sizes):
                if _gate(member.name) in values:
                    rows.copy_(values[_gate(member.name)])
        result[f"bias_hh{suffix}"] = second
    return result
