"""Measures FlashRNN's own package and rnncc on a GPU, side by side in one run, and cuDNN's LSTM beside them.

    python benchmarks/gpu_flashrnn.py [--flashrnn FOLDER] [--quick] [--only WORDS] [--shard I/N] [--out FILE]
    python benchmarks/gpu_flashrnn.py --show FILE

FOLDER holds FlashRNN's package, as `pip install --no-deps --target FOLDER flashrnn` puts it there; without the option
the installed package is taken. The cells are LSTM and sLSTM over 1024 steps in bfloat16. FlashRNN runs by each of its
backends for GPUs: `cuda_fused`, `cuda` (which alternates between two kernels) and `triton_fused`.

A case is a process of its own: rnncc and one peer, on the same numbers, measured in turn. First all processes compile,
many at a time. Then one after the other measures. There are two layouts. In `interface`, both take tensors in the
shapes of FlashRNN's function, rnncc by `rnncc.compat.flashrnn`. In `own`, each takes them as its kernels want them, and
copies none; rnncc, by its op, then takes the bias as a part of Wx. Both leave out the product of the layer's input with
its weights. cuDNN's LSTM is torch.nn.LSTM in float16, with inputs as wide as the hidden size: its time includes that
product, which a run also measures alone (`input_ms`).

`run` is the forward, or the forward and the backward to Wx, R and b. `ms` is a median of CUDA events in milliseconds,
per call of calls back to back; `call_ms` is that of single calls. `difference` is the largest one between the peer's
values and rnncc's: of the output, and with the backward of the gradients of Wx and R, as a part of the largest.
`from_float32` is the largest difference of the output from one computed in float32.

WORDS, separated by commas, choose peers, cells, sizes (as 64x12) and batch sizes (as B16). A run that is started again
goes on where it stopped; --retry measures anew what failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from pathlib import Path
from typing import Any

import flashrnn_package
from flashrnn_cases import Case, case_of, failure, select, table
from gpu_run import MINUTES, Results, gpu, in_time, parser_of, part, read_or_measure, words_of

# Seconds for all processes to compile, and for one to measure.
BUILD_SECONDS, CASE_SECONDS = 300.0, 60.0


class Process:
    """A case's process, which answers in lines of JSON."""

    def __init__(self, case: Case, arguments: Sequence[str], folder: Path) -> None:
        self.case, self.folder = case, folder
        self.command = [sys.executable, str(Path(__file__).with_name("flashrnn_case.py")), str(case), *arguments]
        self.started: subprocess.Popen[str] | None = None

    def start(self, variables: dict[str, str]) -> dict[str, Any]:
        """Start it, and wait until it is ready. The answer."""
        own = {"TORCH_EXTENSIONS_DIR": str(self.folder / "built" / str(self.case)), "MAX_JOBS": "4"}
        Path(own["TORCH_EXTENSIONS_DIR"]).mkdir(parents=True, exist_ok=True)
        with self.log().open("w") as log:
            self.started = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | variables | own, process_group=0,
            )  # fmt: skip
        return self.answer()

    def log(self) -> Path:
        """Where its text goes."""
        return self.folder / f"{self.case}.log"

    def answer(self) -> dict[str, Any]:
        """Wait for its next line."""
        assert self.started is not None and self.started.stdout is not None
        line = self.started.stdout.readline()
        if line:
            told: dict[str, Any] = json.loads(line)
            return told
        last = [line.strip() for line in self.log().read_text().splitlines() if line.strip()]
        return {"error": f"the process ended ({self.started.wait()}): {last[-1] if last else 'without a word'}"}

    def warnings(self) -> list[str]:
        """What rnncc said of kernels that it could not take."""
        return [line for line in self.log().read_text().splitlines() if "RNNCC_LOG" in line] if self.started else []

    def measure(self) -> dict[str, Any]:
        """Have it measure. The answer."""
        assert self.started is not None and self.started.stdin is not None
        print("go", file=self.started.stdin, flush=True)
        return self.answer()

    def stop(self) -> None:
        """End it and all that it started."""
        if self.started is not None and self.started.poll() is None:
            os.killpg(self.started.pid, signal.SIGKILL)
            self.started.wait()


def run(cases: Sequence[Case], results: Results, passed: Sequence[str], folder: Path, minutes: float = MINUTES) -> None:
    """Measure the cases, and add their rows. What time does not allow is left for the next run. `passed`: arguments of
    each process."""
    if not cases:
        return
    begin = time.monotonic()
    variables = flashrnn_package.environment(folder)
    processes = [Process(case, passed, folder) for case in cases]
    with ThreadPoolExecutor(os.cpu_count()) as builders, ThreadPoolExecutor(1) as measurer:
        try:
            building = [builders.submit(process.start, variables) for process in processes]
            answers = [waited(future, begin + BUILD_SECONDS, "not compiled") for future in building]
            print(f"compiled in {time.monotonic() - begin:.0f} s", flush=True)
            left = minutes - (time.monotonic() - begin) / 60
            for process, answer in in_time(list(zip(processes, answers, strict=True)), left):
                if "error" not in answer:
                    until = time.monotonic() + CASE_SECONDS
                    answer = waited(measurer.submit(process.measure), until, "not measured")
                process.stop()
                rows = answer.get("rows") or [failure(process.case, answer["error"])]
                results.add(*rows)
                print("\n".join([str(process.case), *list(table(rows))[1:], *process.warnings()]), flush=True)
        finally:
            # A builder that is waiting to start a process would start it still.
            builders.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.stop()


def waited(future: Future[dict[str, Any]], until: float, what: str) -> dict[str, Any]:
    """A process's answer, or an error where it does not come in time."""
    try:
        return future.result(max(0.0, until - time.monotonic()))
    except TookTooLong:
        future.cancel()
        return {"error": f"{what} in time"}


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print the table. 1 where nothing can be measured."""
    parser = parser_of(__doc__, Path("gpu_flashrnn.json"))
    parser.add_argument("--flashrnn", type=Path, metavar="FOLDER", help="where FlashRNN's package is")
    parser.add_argument("--folder", type=Path, help="where to compile, to go on there later; default a temporary one")
    parser.add_argument("--retry", action="store_true", help="measure anew what failed")
    arguments = parser.parse_args(words)

    def about() -> dict[str, Any]:
        return gpu(arguments.commit) | {"flashrnn": flashrnn_package.find(arguments.flashrnn)}

    def measure(results: Results) -> None:
        if arguments.retry:
            failed = {case_of(row) for row in results.rows if row["ms"] is None}
            results.rows = [row for row in results.rows if case_of(row) not in failed]
        done = {case_of(row) for row in results.rows}
        passed = [str(arguments.flashrnn.resolve())] if arguments.flashrnn else []
        passed += ["--quick"] if arguments.quick else []
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.folder or Path(temporary)).resolve()
            run([case for case in cases if case not in done], results, passed, folder, arguments.minutes)

    try:
        cases = part(select(words_of(arguments), arguments.quick), arguments.shard)
        rows, _ = read_or_measure(arguments, measure, about)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"gpu_flashrnn: {error}", file=sys.stderr)
        return 1
    print("\n".join(table([row for row in rows if case_of(row) in cases])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
