"""Plans for each known GPU: they keep to its limits, and ask for nothing that it does not have."""

from __future__ import annotations

import pytest

from rnncc.ir.family import WIDE, Scope
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS, Target
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.rates import product_rate, rates
from tests.stages.scheduling import backward, forward

H200 = GPUS["h200"]


@pytest.mark.one_in(3, "gpu")
@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("head_dim", [64, 512, 1024])
def test_plans_keep_to_the_gpu(gpu: Target, head_dim: int) -> None:
    clusters = dict(gpu.clusters)
    for loop in (forward("lstm"), backward("lstm")):
        found = schedule(loop, Problem(head_dim, 2, "bf16"), gpu)
        # Two matrices of 16 MB do not fit everywhere.
        assert found.kernels or (head_dim == 1024 and gpu.sms < 128)
        for kernel in found.kernels:
            assert kernel.shared_bytes <= gpu.shared_bytes
            assert kernel.threads * kernel.registers <= 65_536
            is_grid = kernel.family.scope is Scope.GRID
            assert 2 * kernel.ctas <= gpu.sms if is_grid else kernel.ctas in clusters


@pytest.mark.one_in(3)
@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS.values() if not gpu.has_clusters], ids=str)
def test_a_gpu_without_clusters_has_single_ctas_and_grids(gpu: Target) -> None:
    for loop in (forward("lstm"), backward("lstm")):
        small, large = (
            schedule(loop, Problem(head_dim, heads, "bf16"), gpu) for head_dim, heads in ((64, 12), (768, 1))
        )
        for found, scope in ((small, Scope.CLUSTER), (large, Scope.GRID)):
            kernel = found.kernel_for(16)
            assert kernel is not None and kernel.family.scope is scope
            assert scope is Scope.GRID or kernel.ctas == 1
        # No family needs a cluster of several CTAs, and WIDE is Hopper's.
        for found in (small, large):
            assert all(kernel.family is not WIDE for kernel in found.kernels)
        # No quicker than on an H200.
        for found, head_dim, heads in ((small, 64, 12), (large, 768, 1)):
            quickest = schedule(loop, Problem(head_dim, heads, "bf16"), H200).step_us
            assert found.step_us is not None and quickest is not None and found.step_us > quickest


def test_ptx_has_no_products_of_warpgroups() -> None:
    problem = Problem(768, 1, "bf16", 128)
    assert any(kernel.family is WIDE for kernel in schedule(forward("lstm"), problem, H200).kernels)
    found = schedule(forward("lstm"), problem, H200.with_ptx(), reasons=True)
    assert all(kernel.family is not WIDE for kernel in found.kernels)
    (limits,) = (entry.limits for entry in found.rejected if entry.family is WIDE)
    assert [limit.name for limit in limits] == ["GPUs but those of compute capability 9.0"]


def test_an_a100_multiplies_half_as_many_floats_per_cycle() -> None:
    """As an A10 of the same generation does per SM: 64 multiply-adds, not 128."""
    a100, a10 = GPUS["a100"], GPUS["a10"]
    per_cycle = [product_rate(gpu, "fp32") / (gpu.sms * gpu.clock_mhz) for gpu in (a100, a10)]
    assert 2 * per_cycle[0] == pytest.approx(per_cycle[1])
    for name in ("float_product", "alternating_float_product"):
        cycles = [getattr(rates(gpu), name) * gpu.clock_mhz for gpu in (a100, a10)]
        assert cycles[0] == pytest.approx(2 * cycles[1], rel=0.01)
    # There products take longer than the operands that lanes wait for.
    assert rates(a100).float_waiting_product == rates(a100).float_product
    assert rates(a10).float_waiting_product > rates(a10).float_product
