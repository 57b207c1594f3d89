"""RNN4xx to RNN7xx: what the stages after `check`, the machine, or the sizes given to a module refuse."""

from __future__ import annotations

from rnncc.codes.entry import Code

LATER = (
    Code(
        "RNN401",
        "no schedule fits",
        "No kernel family can run the cell at this size on this device within its registers and shared memory. "
        "The message names the limit that binds, with its numbers, and the nearest size that fits.",
    ),
    Code(
        "RNN402",
        "the cell is too large for the kernels",
        "A kernel reads its loop from tables whose entries are 16-bit numbers, so a cell may have some 32,000 values, "
        "widths, products, repetitions and so on in a step. The message says which of them are too many. Long `for` "
        "loops with many products in each round come near; a cell that is divided into layers does not. The reference "
        "path has no such limit: `rnncc check` and `show --stage check` accept the cell.",
    ),
    Code(
        "RNN601",
        "no C++ compiler",
        "Building needs Linux on x86-64 and a C++ compiler (g++ or clang++). `check`, `show` and `explain` work "
        "without them, and `rnncc.load` falls back to the slow reference path and says so.\n\n"
        "Install a compiler, or name it in the environment variable `CXX`; `rnncc env` shows what is found.",
    ),
    Code(
        "RNN602",
        "the generated code did not compile",
        "The C++ compiler refused what rnncc generated, ran out of memory or disk, was stopped or could not be "
        "started. The message shows its first error and names the log with the rest. If it reports an error in a "
        "generated file, that is a bug in rnncc: please report it with the `.rnn` file.",
    ),
    Code(
        "RNN603",
        "refusing to overwrite a folder",
        "The folder to build into exists and was not made by rnncc (it holds no `_rnncc.json`). It is left as it "
        "is: give another folder, or remove it yourself.",
    ),
    Code(
        "RNN604",
        "the file's name cannot be a package's name",
        "The built package is named after the file, and Python imports it by that name, so the stem must be an "
        "identifier in ASCII: letters, digits and `_`, a letter first, no keyword. Rename the file or give a "
        "name with `--name`. `rnncc.load` takes files of every name.",
    ),
    Code(
        "RNN605",
        "a folder cannot be written",
        "The folder to build into, or the cache, cannot be created or written: no permission, no space, or a file "
        "of that name is in the way. `RNNCC_CACHE_DIR` sets another place for the cache.",
    ),
    Code(
        "RNN606",
        "unknown target",
        "The device to build for is not one that rnncc knows: the message lists the known names. `auto`, the default, "
        "takes what the machine has. A plan (`rnncc explain`, `rnncc show --stage schedule`) is for one GPU, not for "
        "several.",
    ),
    Code(
        "RNN607",
        "a setting cannot be read",
        "An environment variable that rnncc reads has a value that means nothing: `RNNCC_CACHE_LIMIT` is a size "
        "(`500000000`, `500MB`, `2GiB`), `MAX_JOBS` a whole number above 0.",
    ),
    Code(
        "RNN608",
        "no CUDA compiler",
        "Kernels for a GPU need nvcc, which comes with NVIDIA's CUDA toolkit. Without it a package holds the CPU op "
        "alone: `--target auto` and `rnncc.load` then build that, `--target h200` (or another GPU) refuses.\n\n"
        "Install the toolkit, or put its `bin` folder on PATH; `rnncc env` shows what is found.",
    ),
    Code(
        "RNN609",
        "another rnncc built the package",
        "A package that is in use asks rnncc for GPU kernels of a size that it was not built with. They must take what "
        "its library gives, and the rnncc that is installed now may lay that out otherwise. Build the package again.",
    ),
    Code(
        "RNN701",
        "the sizes contradict a constraint of the cell",
        "Some equations only make sense for sizes that agree: `x*h[t-1]` needs `input_size == hidden_size`. The "
        "compiler infers these constraints, and each layer of the module checks them when it is made. (The second "
        "layer's input is the first one's output, twice as wide where the layer is bidirectional.) Change the "
        "size, or apply a matrix: `W@x`.",
    ),
    Code(
        "RNN702",
        "num_heads does not divide a width",
        "With N heads every width that measures a state or a gate is cut into N equal parts, and recurrent "
        "matrices are block-diagonal with N blocks.",
    ),
    Code(
        "RNN703",
        "the cell has one head only",
        "Heads are independent: each has its share of the units of every state and gate, and a matrix on a "
        "state-dependent value is block-diagonal. What cannot be divided so keeps a cell to `num_heads=1`; the message "
        "says which equation it is. `W` is always dense, so `W` on a state would couple the heads: use `R` or a "
        "declared family there. A state or a product of width 1 (LMU's `local u: 1`) has nothing to divide.",
    ),
    Code(
        "RNN711",
        "the package needs another PyTorch",
        "The package's kernels use an interface that the installed PyTorch does not have yet, so the slow "
        'reference path runs instead. Install a later PyTorch, or set `backend="reference"` to say that this is '
        "meant.",
    ),
    Code(
        "RNN712",
        "the package is incomplete or damaged",
        "A file of the built package is missing or is not what was written. Remove the folder and build again.",
    ),
    Code(
        "RNN713",
        "the library cannot be loaded",
        "The operating system or PyTorch refused the package's shared library, and the slow reference path runs "
        "instead; the message says why. Often the package was built on another kind of machine, or it lies on a "
        "file system that does not allow execution. Build it again where it is used.",
    ),
)
