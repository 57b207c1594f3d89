"""Ways of calling an op on a GPU: again, on another stream, captured in a graph. The bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.cuda.harness import DTYPES, FUSED, Call, Packages, ctas_of, draw

pytestmark = pytest.mark.gpu

Results = dict[str, Tensor]
# gather and scatter, the same in clusters, grid, alternating.
FAMILIES = pytest.mark.parametrize("head_dim", [64, 256, 768, 40])


def call_of(head_dim: int, packages: Packages) -> Call:
    dtype = DTYPES[dict(FUSED["lstm"]).get(head_dim, "fp32")]
    return draw(packages("lstm"), "lstm", head_dim, 2, 16, 50, dtype)


def assert_same(found: Results, expected: Results) -> None:
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []


@FAMILIES
def test_twice_the_same(head_dim: int, packages: Packages) -> None:
    call = call_of(head_dim, packages)
    assert_same(call.run(), call.run())
    leaves = call.leaves()
    values = leaves.values()
    first = leaves.gradients(values, retain_graph=True)
    # The memory of what a call saved is not another call's meanwhile.
    call.run()
    assert_same(leaves.gradients(values), first)


def on_side_stream(run: Callable[[], Results]) -> Results:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = run()
    torch.cuda.current_stream().wait_stream(stream)
    return found


def in_a_graph(run: Callable[[], Results]) -> Results:
    on_side_stream(run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for _ in range(2):
        for value in found.values():
            value.fill_(float("nan"))
        graph.replay()
    return found


@FAMILIES
@pytest.mark.parametrize("way", [on_side_stream, in_a_graph])
def test_streams_and_graphs(way: Callable[[Callable[[], Results]], Results], head_dim: int, packages: Packages) -> None:
    call = call_of(head_dim, packages)
    expected = call.run()
    assert_same(way(call.run), expected)


@FAMILIES
def test_three_streams_at_once(head_dim: int, packages: Packages) -> None:
    """Kernels whose blocks wait for each other must not wait for blocks that another kernel keeps from running."""
    dtype = DTYPES[dict(FUSED["lstm"]).get(head_dim, "fp32")]
    calls = [draw(packages("lstm"), "lstm", head_dim, 1, batch, 200, dtype) for batch in (16, 9, 3)]
    expected = [call.run() for call in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]  # type: ignore[no-untyped-call]
    found: list[Results] = []
    for call, stream in zip(calls, streams, strict=True):
        with torch.cuda.stream(stream):
            found.append(call.run())
    torch.cuda.synchronize()
    for ours, same in zip(found, expected, strict=True):
        assert_same(ours, same)


@pytest.mark.parametrize(("head_dim", "heads"), [(64, 6), (256, 3)])
def test_ctas_have_sms_for_themselves(head_dim: int, heads: int, packages: Packages, tmp_path: Path) -> None:
    """Groups of batch entries are as narrow as can run side by side; more CTAs would be in each other's way."""
    dtype = dict(FUSED["lstm"])[head_dim]
    call = draw(packages("lstm"), "lstm", head_dim, heads, 16, 5, DTYPES[dtype])
    name = f"_{dtype.replace('fp16', 'f16')}_{head_dim}_"
    ctas = {kernel: count for kernel, count in ctas_of(call.run, tmp_path).items() if name in kernel}
    assert {kernel.split("_")[2] for kernel in ctas} >= {"forward", "backward"}
    sms = torch.cuda.get_device_properties("cuda").multi_processor_count
    assert all(sms / 2 < count <= sms for count in ctas.values())
