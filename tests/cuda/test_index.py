"""The index of fused kernels as the library reads it, and how kernels divide the batch and the steps of a call."""

from __future__ import annotations

import ctypes
import re
from itertools import pairwise, product
from pathlib import Path

import pytest

from rnncc.ir.family import GATHER, GRID, SCATTER, STEPWISE, WIDE, Family
from rnncc.ir.problem import Problem
from rnncc.ir.target import GPUS, code_file, number_of
from rnncc.runtime.kernels.index import read_index
from rnncc.runtime.kernels.kernels import runs_on
from rnncc.stages.schedule import schedule
from rnncc.stages.schedule.kernels import fused_kernels
from rnncc.stages.schedule.scan import scan_ctas
from tests.compiling import plan_of
from tests.cpu.host import build
from tests.rendering import for_gpus
from tests.stages.scheduling import backward, forward


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    found = build("../cuda/index.cpp", "generic", tmp_path_factory.mktemp("index"))
    found.index_new.restype = ctypes.c_void_p
    found.index_find.restype = found.index_row.restype = found.ctas.restype = ctypes.c_int64
    return found


class Index:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.pointer = library, ctypes.c_void_p(library.index_new())

    def add(self, folder: Path) -> int:
        return int(self.library.index_add(self.pointer, str(folder).encode()))

    def find(self, program: str, dtype: str, head_dim: int) -> list[tuple[str, str]]:
        """The folder and the text of each table."""
        text = ctypes.create_string_buffer(1 << 16)
        count = self.library.index_find(
            self.pointer, program.encode(), dtype.encode(), ctypes.c_int64(head_dim), text, ctypes.c_int64(1 << 16)
        )
        lines = text.value.decode().splitlines(keepends=True)
        begins = [number for number, line in enumerate(lines) if line.startswith("table")]
        assert len(begins) == count
        pairs = pairwise([*begins, len(lines) + 1])
        return [(lines[begin - 1].rstrip(), "".join(lines[begin : end - 1])) for begin, end in pairs]

    def row(self, program: str, dtype: str, *sizes: int) -> int:
        """The first batch of the row for head_dim, heads and batch."""
        return int(self.library.index_row(self.pointer, program.encode(), dtype.encode(), *map(ctypes.c_int64, sizes)))


@pytest.fixture
def index(library: ctypes.CDLL) -> Index:
    return Index(library)


def write_index(folder: Path, *problems: Problem, gpus: tuple[str, ...] = ("h200",)) -> list[str]:
    """The index of the LSTM's kernels for these problems and GPUs: its tables."""
    plan = plan_of("lstm")
    bundle = for_gpus([plan], [[found for gpu in gpus for found in fused_kernels(plan, problems, GPUS[gpu])]])
    text = next(file.text for file in bundle.files if file.path == "cuda/fused.txt")
    folder.mkdir()
    (folder / "fused.txt").write_text(text, encoding="utf-8")
    units = [unit.name for unit in bundle.device_units if unit.architectures]
    named = {kernel.name for table in read_index(folder / "fused.txt") for kernel in table.kernels}
    assert len(set(units)) == len(units) and set(units) == named
    return [f"table{table}" for table in re.split("^table", text, flags=re.MULTILINE)[1:]]


def test_what_is_rendered_is_what_is_read(tmp_path: Path, index: Index) -> None:
    tables = write_index(tmp_path / "one", Problem(768, 1, "bf16"))
    assert index.add(tmp_path / "one") == sum(table.count("\nkernel ") for table in tables)
    found = index.find("lstm_0_forward", "bf16", 768)
    assert found == [(str(tmp_path / "one"), tables[0])] and tables[0].startswith("table program=lstm_0_forward ")
    # Several kernels with groups of the same batch stand side by side.
    batches = re.findall(r"group_batch=(\d+)", tables[0])
    assert len(set(batches)) < len(batches)


def test_kernels_are_added_to_those_that_there_are(tmp_path: Path, index: Index) -> None:
    write_index(tmp_path / "one", Problem(64, 1, "bf16"))
    write_index(tmp_path / "both", Problem(64, 12, "fp16"), Problem(64, 1, "fp16"))
    assert index.add(tmp_path / "missing") == -1
    assert index.find("lstm_0_forward", "bf16", 64) == []
    assert index.add(tmp_path / "one") > 1
    first = index.find("lstm_0_forward", "bf16", 64)
    assert first and index.find("lstm_0_forward", "f16", 64) == []
    assert index.add(tmp_path / "both") > 1
    assert index.find("lstm_0_forward", "bf16", 64) == first
    found = index.find("lstm_0_forward", "f16", 64)
    assert ["heads=12 " in table for _, table in found] == [True, False]
    assert index.find("lstm_0_forward", "bf16", 128) == []
    # What was added last comes first.
    write_index(tmp_path / "again", Problem(64, 2, "bf16"))
    assert index.add(tmp_path / "again") > 1
    assert [folder for folder, _ in index.find("lstm_0_forward", "bf16", 64)] == [
        str(tmp_path / name) for name in ("again", "one")
    ]


NAME = "lstm_0_forward_bf16_64_grid"
GOOD = (
    "table program=lstm_0_forward dtype=bf16 head_dim=64 heads=1 architecture=sm_90a\n"
    f"kernel name={NAME} family=grid scope=grid ctas=8 cluster=1 threads=256 shared_bytes=0 group_batch=8 multiple=1 "
    "concurrent_groups=16 exchange_steps=64 relayed_head_dim=0 for_zeros=0 directions=2\n"
    f"row batch=1 kernels={NAME} pass_ns=540\n"
)
ROW = f"row batch=9 kernels={NAME},{NAME} pass_ns=540,600\n"


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "table program=lstm_0_forward dtype=bf16 head_dim=64",
        GOOD + GOOD.partition("row")[0],
        GOOD + ROW.replace("=9", "=1"),
        GOOD + ROW.replace(",600", ""),
        GOOD + ROW.replace("=9", ""),
        GOOD + GOOD.splitlines(keepends=True)[1],
        GOOD.partition("\n")[2],
        GOOD.replace("for_zeros=0", "for_zeros=2"),
        GOOD.replace("directions=2", "directions=3"),
        GOOD.replace("directions=2", "directions=0"),
        GOOD.replace("exchange_steps=64", "exchange_steps=-1"),
        GOOD.replace("exchange_steps=64", "exchange_steps=0"),  # CTAs would write beside it
        GOOD.replace("cluster=1", "cluster=3"),
        GOOD.replace("scope=grid", "scope=tile"),
        GOOD.replace(" scope=grid", ""),
        GOOD.replace(" ctas=8", " ctas=8 ctas=8"),
        GOOD.replace("540", "0.54"),
        GOOD.replace("540", ""),
        GOOD.replace(f"kernels={NAME}", "kernels=other"),
        GOOD.replace("sm_90a", "sm_9"),
        GOOD.rstrip(),
        "\n" + GOOD,
        "x" * 5000,
    ],
)
def test_of_an_index_that_cannot_be_read_nothing_is_taken(text: str, tmp_path: Path, index: Index) -> None:
    (tmp_path / "fused.txt").write_text(GOOD + ROW, encoding="utf-8")
    assert index.add(tmp_path) == 1
    (tmp_path / "fused.txt").write_text(text, encoding="utf-8")
    assert index.add(tmp_path) == -1
    ((_, table),) = index.find("lstm_0_forward", "bf16", 64)
    assert table == GOOD + ROW
    assert [index.row("lstm_0_forward", "bf16", 64, 1, batch) for batch in (1, 8, 9, 10_000)] == [1, 1, 9, 9]
    # Two heads count as twice the batch.
    assert [index.row("lstm_0_forward", "bf16", 64, 2, batch) for batch in (4, 5)] == [1, 9]


@pytest.mark.parametrize(
    ("architecture", "runs", "others"),
    [
        ("sm_80", ["8.0", "8.6", "8.9"], ["9.0"]),
        ("sm_86", ["8.6", "8.9"], ["8.0", "9.0"]),
        ("sm_90a", ["9.0"], ["8.9", "10.0"]),
        ("sm_120", ["12.0", "12.1"], ["10.3"]),
        ("compute_80", ["8.0", "8.9", "9.0", "12.1"], []),
        ("compute_90", ["9.0", "10.0", "12.0"], ["8.9"]),
        ("sm_7", [], ["7.0", "8.0"]),
        ("sm_90b", [], ["9.0"]),
    ],
)
def test_which_gpu_runs_which_code(architecture: str, runs: list[str], others: list[str], library: ctypes.CDLL) -> None:
    def asked(capability: str) -> tuple[bool, bool]:
        major, minor = map(int, capability.split("."))
        return bool(library.runs_on(architecture.encode(), major, minor)), runs_on(architecture, major, minor)

    assert [asked(capability) for capability in runs] == [(True, True)] * len(runs)
    assert [asked(capability) for capability in others] == [(False, False)] * len(others)


def test_the_best_code_is_found(tmp_path: Path, library: ctypes.CDLL) -> None:
    def found(major: int, minor: int) -> str:
        text = ctypes.create_string_buffer(64)
        library.find(str(tmp_path / "lstm").encode(), major, minor, text, ctypes.c_int64(64))
        return text.value.decode()

    def add(architecture: str) -> None:
        (tmp_path / "cuda").mkdir(exist_ok=True)
        (tmp_path / code_file("lstm", architecture)).write_bytes(b"")
        (tmp_path / code_file("lstm", architecture)).rename(tmp_path / Path(code_file("lstm", architecture)).name)

    assert found(9, 0) == ""
    for architecture, expected in (
        ("compute_80", {(8, 0): "compute_80", (9, 0): "compute_80", (12, 0): "compute_80"}),
        ("sm_80", {(8, 9): "sm_80", (9, 0): "compute_80"}),
        ("compute_90", {(8, 9): "sm_80", (9, 0): "compute_90", (12, 0): "compute_90"}),
        ("sm_90a", {(9, 0): "sm_90a", (10, 0): "compute_90"}),
        ("sm_86", {(8, 9): "sm_86", (8, 0): "sm_80"}),
    ):
        add(architecture)
        assert library.number_of(str(tmp_path / code_file("lstm_sm_0", architecture)).encode()) == number_of(
            architecture
        )
        assert {capability: found(*capability) for capability in expected} == expected


def test_each_gpu_has_tables_of_its_own(tmp_path: Path, index: Index) -> None:
    tables = write_index(tmp_path / "one", Problem(64, 12, "bf16"), gpus=("a100", "rtx4090", "l4", "h200"))
    assert index.add(tmp_path / "one") > len(tables)
    programs: dict[str, set[str]] = {}
    for table in read_index(tmp_path / "one" / "fused.txt"):
        programs.setdefault(table.architecture, set()).add(table.program)
    assert set(programs) == {"sm_80", "sm_89", "sm_90a"}
    assert all({"lstm_0_forward", "lstm_0_backward"} <= own for own in programs.values())
    # GPUs of one architecture may get the same table, which stands there once.
    assert len(set(tables)) == len(tables)


def shared(library: ctypes.CDLL, family: Family, group_batch: int, multiple: int, *counts: int) -> tuple[int, ...]:
    """The batch of a group, groups, passes, groups per launch and launches. `group_batch`: the largest batch of a group
    (0: any), and what it is a multiple of; `counts`: heads, batch, places."""
    result = (ctypes.c_int64 * 5)()
    library.share(family.scope.value.encode(), group_batch, multiple, *map(ctypes.c_int64, counts), result)
    return tuple(result)


@pytest.mark.parametrize(
    ("family", "most", "heads", "batch", "places", "expected"),
    [
        (GATHER, 8, 12, 16, 132, (2, 8, 1)),  # 11 groups of a head side by side: small ones
        (GATHER, 8, 1, 16, 7, (3, 6, 1)),
        (GATHER, 8, 1, 128, 7, (8, 16, 3)),
        (SCATTER, 8, 12, 16, 7, (8, 2, 4)),  # fewer clusters than heads
        (GATHER, 8, 1, 16, 0, (0, 0, 0)),
        (GRID, 8, 1, 16, 2, (8, 2, 1)),
        (GRID, 8, 1, 17, 2, (5, 4, 2)),  # a third group would never start: another launch
        (GRID, 16, 1, 17, 2, (9, 2, 1)),
        (GRID, 8, 3, 8, 2, (0, 0, 0)),
        (GRID, 32, 2, 1, 5, (1, 1, 1)),
        (GRID, 8, 1, 0, 2, (0, 0, 0)),
        (GATHER, 8, 24, 16, 132, (4, 4, 1)),  # two directions of 12 heads
        (GRID, 8, 2, 16, 2, (8, 2, 2)),  # two directions, each of which would take both places
    ],
    ids=lambda value: value.name if isinstance(value, Family) else None,
)
def test_a_batch_is_divided(
    family: Family, most: int, heads: int, batch: int, places: int, expected: tuple[int, ...], library: ctypes.CDLL
) -> None:
    assert shared(library, family, most, 1, heads, batch, places)[:3] == expected


@pytest.mark.parametrize(
    ("batch", "places", "expected"),
    [
        (256, 5, (64, 4, 1)),  # not five groups of 52
        (17, 1, (32, 1, 1)),
        (1, 5, (16, 1, 1)),
        (97, 2, (64, 2, 1)),
        (320, 5, (64, 5, 1)),
        (321, 5, (48, 7, 2)),  # two launches
    ],
)
def test_groups_are_multiples_of_what_a_warp_takes(
    batch: int, places: int, expected: tuple[int, int, int], library: ctypes.CDLL
) -> None:
    assert shared(library, WIDE, 64, 16, 1, batch, places)[:3] == expected


def test_a_launch_of_a_step_takes_the_whole_batch(library: ctypes.CDLL) -> None:
    assert shared(library, STEPWISE, 0, 1, 1, 500, 1) == (500, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("most", "heads", "batch", "places", "expected"),
    [
        (8, 1, 16, 2, (8, 2, 1, 2, 1)),  # one launch takes them
        (8, 1, 17, 2, (5, 4, 2, 2, 2)),  # no group larger than it must be
        (8, 1, 33, 2, (6, 6, 3, 2, 3)),
        (8, 1, 35, 3, (6, 6, 2, 3, 2)),
        (8, 1, 37, 3, (7, 6, 2, 3, 2)),
        (8, 1, 25, 3, (5, 5, 2, 3, 2)),  # the last launch has fewer groups
        (8, 2, 16, 2, (8, 2, 2, 1, 2)),  # two directions
        (8, 3, 16, 2, (0, 0, 0, 0, 0)),  # no head's CTAs would all run
    ],
)
def test_a_grid_takes_a_larger_batch_in_several_launches(
    most: int, heads: int, batch: int, places: int, expected: tuple[int, ...], library: ctypes.CDLL
) -> None:
    assert shared(library, GRID, most, 1, heads, batch, places) == expected
    # Groups of clusters follow each other in one launch.
    assert shared(library, GATHER, most, 1, heads, batch, places)[4] == 1


@pytest.mark.parametrize(
    ("head_dim", "heads", "dtype"),
    [(768, 1, "bf16"), (1024, 1, "bf16"), (1536, 1, "bf16"), (1024, 2, "fp32"), (256, 3, "fp16")],
)
def test_planned_as_shared_out(head_dim: int, heads: int, dtype: str, library: ctypes.CDLL) -> None:
    """How kernels divide a batch is the same in the plan, which computes times for it, and in the library."""
    for loop in (forward("lstm"), backward("lstm")):
        for kernel, batch in product(
            schedule(loop, Problem(head_dim, heads, dtype), GPUS["h200"]).kernels,
            (1, 15, 16, 17, 33, 64, 97, 256, 1000),
        ):
            found = shared(
                library, kernel.family, kernel.group_batch or 0, kernel.multiple, heads, batch, kernel.concurrent_groups
            )
            group, groups, passes, at_once, launches = found
            assert (group, passes, launches) == (kernel.group(batch), kernel.passes(batch), kernel.launches(batch))
            if launches > 1 or kernel.launch_batch is not None:
                assert min(batch, at_once * group) == min(batch, kernel.batch_of_a_launch(batch))
            assert groups * group >= batch


def test_ctas_share_steps_as_they_were_planned_to(library: ctypes.CDLL) -> None:
    for tile, clusters, steps, most in product((8, 64, 128), (1, 7, 100, 500), (1, 100, 1024, 10**6), (1, 8, 16)):
        numbers = (ctypes.c_int64(number) for number in (clusters, steps, most, 132))
        assert library.ctas(tile, *numbers) == scan_ctas(clusters, most, 132, -(-steps // tile))
