"""Loads files that somebody may have written to run something: `python -m tests.hostile_pickles SEED COUNT`.

Every field of everything that `rnncc.safe_globals()` lets in takes values that no layer was pickled with, and bytes of
the files change. Each file goes through torch.load(weights_only=True). Where rnncc would build a package, this program
looks at the request instead, by rules of its own. Python's audit hooks tell what the process does: it ends at once,
with exit code 3, where a file makes it start a program, open a file for writing, or change a folder.

Prints how many files were refused and loaded, and how many requests there were, as JSON.
"""

from __future__ import annotations

import copyreg
import io
import json
import os
import random
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import rnncc
from rnncc import driver
from rnncc.compat.instances import KINDS, pickled_class
from rnncc.compat.nn import replace
from rnncc.compat.two_states import TwoStates
from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError

TEXT = "cell Mine\nconst act = tanh\nstate h\nh[t] = act(W@x + R@h[t-1] + b)\n"
# What these events are about would reach beyond the process.
FORBIDDEN = re.compile(
    r"(subprocess|shutil|socket|tempfile|webbrowser|pty|ftplib|urllib)\..*|ctypes\.dlopen"
    r"|os\.(system|exec|posix_spawn|spawn|fork|forkpty|mkdir|rename|remove|rmdir|link|symlink|chmod|chown|truncate|utime"
    r"|putenv|chdir|kill|mkfifo)"
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_armed = False


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    """The hook. It ends the process, since what is tested could catch an exception."""
    if _armed and (FORBIDDEN.fullmatch(event) or (event == "open" and (arguments[2] or 0) & WRITES)):
        sys.stderr.write(f"{event} {arguments!r}\n")
        sys.stderr.flush()
        os._exit(3)


class Call:
    """What is pickled as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made: Any = (function, arguments)

    def __reduce__(self) -> Any:
        return self.made


class New(Call):
    """What is pickled as an instance of a class with a state."""

    def __init__(self, made: Any, state: Any) -> None:
        self.made = (copyreg.__newobj__, (made,), state)  # type: ignore[attr-defined]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Pickle compares it with the class."""
        return self.made[1][0]


TEXTS = (
    "", "a b", "foo\n  arguments = touch x #", "a\nbuild x: run", "/tmp/planted", "../../planted", "a/b", "a\\b", "a.b",
    "foo)", "foo, bar", 'a"; system("touch x"); "', "$(touch x)", "`touch x`", "; touch x", "| touch x", "%s%n",
    "{{7*7}}", "{0.__class__}", "*/ #include <x> /*", "a\0b", "\x1b[2J", "\u2028", "\ud800", "ａ", "é", '"""', "'''",
    "a" * 300, "class", "__loader__", "__builtins__", "__class__", "__reduce__", "_runtime", "Mine", "MineCell", "mine",
    "h", "tanh", "os", "posix system", "eval", "__import__", "<img src=x>", "-o", "--help", "cell", "nan", "1",
)  # fmt: skip
NUMBERS = (-1, 0, 1, 2, 7, 1.5, float("nan"), float("inf"), True, False, None)
FIELDS = ("constants", "zoneout", "recurrent_dropout", "newton", "architectures", "gpus", "problems", "instructions",
          "name", "source")  # fmt: skip
ATTRIBUTES = ("_origin", "__class__", "__dict__", "forward", "spec", "_forward_hooks", "_modules", "layer")


def is_legal(request: Request) -> bool:
    """Whether nothing in the request can be more than a name where it is used: in a path, a command line, a macro."""
    return (
        type(request.source.text) is type(request.source.name) is type(request.name) is str
        and re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,248}", request.name) is not None
        and all(
            type(name) is str and type(value) in (int, float, str, bool) for name, value in request.constants.items()
        )
        and type(request.zoneout) is tuple
        and all(type(state) is str for state in request.zoneout)
        and type(request.recurrent_dropout) is type(request.newton) is bool
        and (request.architectures, request.gpus, request.problems, request.instructions) == ((), (), (), "all")
    )


class Hostile:
    """Draws what files hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        """A value of any kind that a file can have."""
        draw = self.random
        kinds: list[Callable[[], Any]] = [
            lambda: draw.choice(TEXTS), lambda: draw.choice(TEXTS), lambda: draw.choice(NUMBERS),
            lambda: draw.choice((driver.unpickle, pickled_class, TwoStates, *KINDS)),
            lambda: torch.zeros(2), lambda: torch.float16, lambda: b"bytes", lambda: {"a", "b"},
        ]  # fmt: skip
        if depth < 2:
            kinds += [
                lambda: [self.value(depth + 1) for _ in range(draw.randrange(3))],
                lambda: tuple(self.value(depth + 1) for _ in range(draw.randrange(3))),
                lambda: {draw.choice(TEXTS): self.value(depth + 1) for _ in range(draw.randrange(3))},
                lambda: self.call(),
                lambda: self.instance(depth + 1),
                lambda: New(TwoStates, {"_modules": {"layer": self.value(depth + 1)}}),
            ]
        return draw.choice(kinds)()

    def call(self) -> Call:
        """A call of `unpickle`. Some arguments are what no layer has."""
        draw = self.random
        wanted = draw.sample([*FIELDS, draw.choice(TEXTS)], draw.randrange(3))
        options: Any = {
            each: draw.choice(({"act": self.value(1)}, (self.value(1),), self.value(1), True, ("h",)))
            for each in wanted
        }
        given = [TEXT, "mine.rnn", "mine", options, draw.choice(("Mine", "MineCell", "mine", ""))]
        for place in draw.sample(range(5), draw.randrange(3)):
            given[place] = self.value(1)
        if draw.random() < 0.05:
            del given[draw.randrange(len(given))]
        return Call(driver.unpickle, *given)

    def instance(self, depth: int = 0) -> Call:
        """A call of `pickled_class`."""
        draw = self.random
        layer = self.value(depth) if draw.random() < 0.3 else self.call()
        kind = self.value(depth) if draw.random() < 0.5 else draw.choice(KINDS)
        return Call(pickled_class, layer, kind)

    def changed(self, value: Any) -> Any:
        """The value with something in it replaced, removed or added."""
        draw = self.random
        if isinstance(value, dict) and value and draw.random() < 0.9:
            made = dict(value)
            key = draw.choice(list(made))
            what = draw.randrange(8)
            if what == 0:
                del made[key]
            elif what == 1:
                made[draw.choice((*TEXTS, *ATTRIBUTES))] = self.value()
            else:
                made[key] = self.changed(made[key])
            return made
        if type(value) in (list, tuple) and value and draw.random() < 0.7:
            items = list(value)
            place = draw.randrange(len(items))
            items[place] = self.changed(items[place])
            return type(value)(items)
        return self.value()


def saved(value: Any) -> bytes:
    """The bytes of a file that holds the value."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def with_other_bytes(data: bytes, draw: random.Random) -> bytes:
    """The file with other bytes in its pickle."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            content = bytearray(old.read(entry))
            if entry.filename.endswith("data.pkl"):
                for _ in range(draw.randrange(1, 4)):
                    place = draw.randrange(len(content))
                    match draw.randrange(3):
                        case 0:
                            content[place] = draw.randrange(256)
                        case 1:
                            del content[place : place + draw.randrange(1, 9)]
                        case _:
                            content[place:place] = content[: draw.randrange(20)]
            new.writestr(entry.filename, bytes(content))
    return made.getvalue()


def files(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """The files, each with what is odd in it."""
    cells, hostile = rnncc.compile(TEXT, "mine"), Hostile(seed)
    kinds: Any = KINDS
    modules = [cells.Mine(3, 4, 2, zoneout={"h": 0.1}), cells.MineCell(3, 4), replace(nn.LSTM(3, 4), as_nn=True)]
    modules += [TwoStates(cells.Mine(3, 4)), replace(nn.LSTMCell(3, 4), as_nn=True), *(kind(3, 4) for kind in kinds)]
    whole = [saved(value) for value in (*modules, {"class": cells.Mine, "op": cells.mine, "all": cells})]
    for number in range(count):
        match number % 5:
            case 0 | 1:
                yield "call", saved(hostile.call())
            case 2:
                yield "instance", saved(hostile.instance())
            case 3:
                module = hostile.random.choice(modules)
                yield "state", saved(New(type(module), hostile.changed(module.__getstate__())))
            case _:
                yield "bytes", with_other_bytes(hostile.random.choice(whole), hostile.random)


def main(seed: int, count: int) -> None:
    """See the module's docstring."""
    global _armed
    known: dict[tuple[str, str, str], Any] = {}
    requests: Counter[str] = Counter()
    load_module = driver.load_module

    def key(request: Request) -> tuple[str, str, str]:
        return request.source.text, request.name, repr(request.options())

    def built(request: Request, cpu_files: tuple[str, ...] = ("f32",)) -> Any:
        known[key(request)] = load_module(request, cpu_files)
        return known[key(request)]

    def looked_at(request: Request, cpu_files: tuple[str, ...] = ("f32",)) -> Any:
        if not is_legal(request):
            sys.stderr.write(f"a request that is not legal: {request!r}\n")
            os._exit(4)
        requests["known" if key(request) in known else "another program"] += 1
        if key(request) in known:
            return known[key(request)]
        raise RnnccError  # in place of what would be built now

    outcomes: Counter[str] = Counter()
    driver.load_module = built
    made = list(files(seed, count))
    driver.load_module = looked_at
    sys.addaudithook(audit)
    with torch.serialization.safe_globals(rnncc.safe_globals()):
        for kind, data in made:
            _armed = True
            try:
                torch.load(io.BytesIO(data), weights_only=True)
                outcomes[f"{kind} loaded"] += 1
            except Exception as error:
                outcomes[f"{kind} {type(error).__name__}"] += 1
            finally:
                _armed = False
    print(json.dumps({"outcomes": outcomes, "requests": requests}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
