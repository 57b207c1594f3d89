"""Compilers that print too much, write nothing or something else, never end, or find the disk full."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.machine.cache import Cache
from rnncc.stages.build import Job, Toolchain, build, elf, find_toolchain, install, processes
from rnncc.stages.build.commands import find_ninja
from tests.compilers import write_compiler
from tests.stages.test_build import KEY, answer, product, toy

ROOT = Path(__file__).resolve().parents[2]
REAL = find_toolchain().command[0]


def failure(compiler: Path, cache: Path) -> Diagnostic:
    """What a build with that compiler says; it leaves nothing in the cache."""
    with pytest.raises(RnnccError) as caught:
        build(Job(KEY, "toy", Cache(cache), Toolchain((str(compiler),), "")), product)
    left = [path for kind in ("packages", "objects", "tmp", "locks") for path in (cache / kind).glob("*")]
    assert left == [] and len(caught.value.diagnostics) == 1
    return caught.value.diagnostics[0]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("true", "was not written"),
        (': > "$out"', "is empty"),
        ('echo garbage > "$out"', "is not an ELF file"),
        ('cp /bin/true "$out" 2>/dev/null || cp /usr/bin/true "$out"', "is an ELF file of another kind"),
        (f'"{REAL}" "$@" && truncate -s 600 "$out"', "is cut short"),
    ],
)
def test_a_compiler_that_reports_success_is_not_believed(body: str, fault: str, tmp_path: Path) -> None:
    # $@ has lost what the search for -o shifted away: the arguments again.
    body = body.replace('"$@"', '$(cat "$0.$$")')
    compiler = write_compiler(tmp_path / "cxx", body)
    compiler.write_text(compiler.read_text().replace('"$0.arguments"', '"$0.$$"'))
    found = failure(compiler, tmp_path / "cache")
    assert found.code == "RNN602" and f"'{compiler}' reported success, but" in found.message
    assert found.message.endswith(fault), found.message


def test_a_library_that_is_cut_short_is_seen(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    (tmp_path / "a.cpp").write_text("int table[5000] = {1}; int f() { return table[7]; }\n")
    subprocess.run([REAL, "-shared", "-fPIC", "a.cpp", "-o", "lib.so"], cwd=tmp_path, check=True)
    assert elf.fault(library) == ""
    data = library.read_bytes()
    for length in range(1, len(data), 997):
        library.write_bytes(data[:length])
        assert elf.fault(library) in ("is not an ELF file", "is cut short")


@pytest.mark.parametrize("status", [0, 1])
def test_output_is_bounded(status: int, tmp_path: Path) -> None:
    """Lines, and one line without an end."""
    print_much = (
        "head -c 20000000 /dev/zero | tr '\\0' x; echo; yes warning | head -c 20000000; echo\n"
        "echo 'a.cpp:1: error: no'\n"
        f"yes more | head -c 20000000; echo the end; exit {status}"
    )
    compiler = write_compiler(tmp_path / "cxx", print_much)
    outcome = processes.Programs().run([str(compiler), "-o", "x"])
    assert outcome.succeeded == (status == 0)
    assert len(outcome.text) < 2 * processes.KEPT + 100
    assert outcome.text.startswith("xxx") and outcome.text.endswith("more\nthe end\n")
    assert "bytes more …" in outcome.text and outcome.error == "a.cpp:1: error: no"


def test_a_log_is_bounded(tmp_path: Path) -> None:
    compiler = write_compiler(tmp_path / "cxx", "yes 'an error' | head -c 30000000; exit 1")
    found = failure(compiler, tmp_path / "cache")
    (log,) = (tmp_path / "cache" / "logs").iterdir()
    assert found.code == "RNN602" and str(log) in found.help
    assert log.stat().st_size < 2_000_000


@pytest.mark.parametrize("version", ["printf 'g\\377\\376 1.0\\n'", "yes version | head -c 20000000"])
def test_a_version_may_be_anything(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(write_compiler(tmp_path / "cxx", "", version)))
    assert find_toolchain().version in ("g\ufffd\ufffd 1.0", "version")


def test_what_fails_is_told_apart_where_colours_are_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    found = failure(write_compiler(tmp_path / "cxx", "echo 'a.cpp:1: error: no'; exit 1"), tmp_path / "cache")
    assert found.message == "the compiler failed on toy: a.cpp:1: error: no"
    found = failure(write_compiler(tmp_path / "cxx", r"""
        printf 'one;\n  two;  // toy.rnn:12\n' > src/a.cpp; echo 'src/a.cpp:2:3: error: no'; exit 1
    """), tmp_path / "cache")  # fmt: skip
    assert found.message == "the compiler failed on toy: src/a.cpp:2:3: error: no (toy.rnn:12)"


def test_a_compiler_that_fails_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says goes to the disk: where that is full, nothing arrives."""
    compiler = write_compiler(tmp_path / "cxx", "exit 1")
    free = 1 << 40
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, free))
    found = failure(compiler, tmp_path / "cache")
    assert found.code == "RNN602" and found.message == "the compiler failed on toy: it printed nothing"
    free = 1 << 20
    assert failure(compiler, tmp_path / "cache").code == "RNN605"
    write_compiler(compiler, "echo 'collect2: error: ld returned 1 exit status'; exit 1")
    assert failure(compiler, tmp_path / "cache").code == "RNN605"
    write_compiler(compiler, "echo 'a.cpp:1: error: no'; exit 1")
    assert failure(compiler, tmp_path / "cache").code == "RNN602"


@pytest.mark.parametrize("folder", [".", "tools", "w\udcff", "a b$(c)'ü"])
@pytest.mark.parametrize("by", ["CXX", "PATH"])
def test_a_compiler_may_be_named_from_here_and_lie_anywhere(
    folder: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs run in folders of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir(exist_ok=True)
    compiler = tmp_path / folder / "my-c++"
    compiler.symlink_to(shutil.which(REAL) or REAL)
    monkeypatch.setenv("CXX", shlex.quote(f"./{folder}/my-c++") if by == "CXX" else "my-c++")
    monkeypatch.setenv("PATH", folder, prepend=":")
    assert answer(build(Job(KEY, "toy", Cache(tmp_path / "cache"), find_toolchain()), product)) == 42
    compiler.unlink()
    write_compiler(compiler, f"cat '{tmp_path}/none' >&2; exit 1")
    assert failure(compiler, tmp_path / "other").code == "RNN602"


def test_without_an_executable_of_python_s_ninja_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that embeds Python."""
    monkeypatch.setenv("PATH", str(Path(find_ninja()).parent), prepend=":")
    for nowhere in ("", None):
        monkeypatch.setattr(sys, "executable", nowhere)
        assert Path(find_ninja()).is_file()


def test_ninja_is_found_where_its_wheel_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither beside this Python nor on PATH: `pip install --user`, `--target`, or packages of another environment."""
    site, real = tmp_path / "lib" / "site", find_ninja()
    about = site / "ninja-1.13.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ninja\nVersion: 1.13.0\n")
    recorded = "completions/ninja,,\n../../bin/ninja,,\n"
    (about / "RECORD").write_text(recorded)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(sys, "path", [str(site)])
    # In an environment; and where `--target` puts programs, whatever is recorded.
    for program in (tmp_path / "bin" / "ninja", site / "bin" / "ninja"):
        program.parent.mkdir()
        program.write_text("no program")
        assert find_ninja() == "ninja"  # which then fails by its name
        program.unlink()
        program.symlink_to(real)
        assert Path(find_ninja()).samefile(program)
        program.unlink()
    for damaged in (b"ninja,sha256=0,many\n", b"\xff\xfe,,\n", b"\0,,\n", b"\n\n"):
        (about / "RECORD").write_bytes(damaged)
        assert find_ninja() == "ninja"
    monkeypatch.setattr(sys, "path", [])
    assert find_ninja() == "ninja"


def test_as_many_jobs_as_there_are_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "9" * 5000)
    assert answer(build(Job(KEY, "toy", Cache(tmp_path), find_toolchain()), product)) == 42


@pytest.mark.parametrize(
    "said",
    [
        "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status",
        "{standard input}: Assembler messages:\nFatal error: can't write 24 bytes to a.o: 'No space left on device'",
        "cc1plus: error: Disk quota exceeded",
    ],
)
def test_a_full_disk_is_named(said: str, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(said)
    found = failure(write_compiler(tmp_path / "cxx", f'cat "{tmp_path}/said" >&2; exit 1'), tmp_path / "cache")
    assert found.code == "RNN605" and found.message.startswith("no space is left on the disk to compile toy: ")
    assert "RNNCC_CACHE_DIR" in found.help and "TMPDIR" in found.help


def test_a_full_disk_that_only_the_file_system_knows_of_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(1 << 30, 1 << 30, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    compiler = write_compiler(tmp_path / "cxx", "echo 'collect2: fatal error: ld terminated with signal 7'; exit 1")
    assert failure(compiler, tmp_path / "cache").code == "RNN605"


def test_a_full_folder_to_build_into_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, _ = toy(tmp_path)

    def copy(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", copy)
    with pytest.raises(RnnccError) as caught:
        install(package, tmp_path / "out")
    message = caught.value.diagnostics[0].message
    assert message == f"'{tmp_path / 'out' / 'toy'}' cannot be written: no space left on device"
    assert list((tmp_path / "out").iterdir()) == []


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("hangs", "number"), [("version", signal.SIGINT), ("compiling", signal.SIGINT), ("compiling", signal.SIGTERM)]
)
def test_an_interrupted_build_leaves_nothing_running(hangs: str, number: signal.Signals, tmp_path: Path) -> None:
    """A signal to rnncc alone, as `kill` sends it; a terminal sends it to more."""
    hang = f'sleep 600 & echo "$$ $!" >> "{tmp_path}/pids"; wait'
    compiler = write_compiler(
        tmp_path / "cxx", hang if hangs == "compiling" else "", hang if hangs == "version" else "echo 1"
    )
    cache = tmp_path / "cache"
    process = subprocess.Popen(
        [sys.executable, "-m", "rnncc", "build", "elman", "--target", "cpu", "-o", str(tmp_path / "out")],
        env={**os.environ, "CXX": str(compiler), "RNNCC_CACHE_DIR": str(cache)}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell without job control starts what is behind `&`, such as the tests, with SIGINT ignored.
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),
    )  # fmt: skip
    pids, deadline = tmp_path / "pids", time.monotonic() + 60
    while not (pids.exists() and pids.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number and "Traceback" not in said and "interrupted" in said
    started = [int(pid) for pid in pids.read_text().split()]
    assert started and not any(map(alive, started))
    assert list(cache.glob("packages/*")) + list(cache.glob("tmp/*")) + list(cache.glob("locks/*")) == []
