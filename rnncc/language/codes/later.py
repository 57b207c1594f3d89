"""RNN4xx to RNN7xx: what the stages after `partition`, the machine, or the sizes given to a module refuse."""

from __future__ import annotations

from rnncc.language.codes.entry import Code

LATER = (
    Code(
        "RNN402",
        "the cell is too large for the kernels",
        "A kernel reads its loop from tables whose entries are 16-bit numbers. So a step may have some 32,000 values, "
        "and as many widths, products and repetitions. The message says which of them are too many. Long `for` "
        "loops with many products in each round come near; a cell that is divided into layers does not. The reference "
        "path has no such limit: `rnncc check` and `show --stage check` accept the cell.",
    ),
    Code(
        "RNN601",
        "no C++ compiler",
        "Building needs Linux on x86-64 and a C++ compiler (g++ or clang++). `check`, `show` and `explain` work "
        "without them, and `rnncc.load` makes a package that runs the slow eager fallback, and says so.\n\n"
        "Install a compiler, or name it in the environment variable `CXX`; `rnncc env` shows what is found.",
    ),
    Code(
        "RNN602",
        "the generated code did not compile",
        "The C++ compiler refused what rnncc generated, ran out of memory, was stopped, could not be started, or "
        "reported success without a proper output file; or a file name with a control character, such as the end of a "
        "line, would stand in its command line. The message shows its first error and names the log, which "
        "holds the rest (the beginning and the end of very long output). An error in a generated file is a bug in "
        "rnncc: it should be reported with the `.rnn` file.",
    ),
    Code(
        "RNN603",
        "refusing to overwrite a file or folder",
        "The folder to build into exists and was not made by rnncc: it holds no `_rnncc.json`. Or it is a package with "
        "files of yours beside those that rnncc made, which would be deleted. rnncc leaves it as it is: give another "
        "folder, remove this one, or move your files elsewhere. `rnncc new` overwrites no file either.",
    ),
    Code(
        "RNN604",
        "the file's name cannot be a package's name",
        "The built package is named after the file, and Python imports it by that name, so the stem must be an "
        "identifier in ASCII: letters, digits and `_`, a letter first, no keyword. Rename the file or give a "
        "name with `--name`. `rnncc.load` takes files of every name.\n\n"
        "A pickled layer names its package, too. Where that cannot be a package's name, the file was changed.",
    ),
    Code(
        "RNN605",
        "a file or folder cannot be written",
        "The folder to build into, the cache, a file that a command writes, or standard output cannot be created, "
        "read or written: no permission, no space (also for a compiler's temporary files, in `TMPDIR`), or a file of "
        "that name is in the way. `RNNCC_CACHE_DIR` sets another place for the cache. Where `sudo` wrote to the cache "
        "in your home folder, some folders may belong to root: `sudo chown -R $USER ~/.cache/rnncc` makes them yours "
        "again.",
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
        "(`500000000`, `500MB`, `2GiB`), `MAX_JOBS` a whole number above 0, `RNNCC_LOG` one of `debug`, `info`, "
        "`warning` and `error`, `RNNCC_COMPILE` 0 or 1.",
    ),
    Code(
        "RNN608",
        "no CUDA compiler",
        "Kernels for a GPU need NVRTC, NVIDIA's compiler library. CUDA builds of PyTorch bring it; elsewhere "
        "`pip install nvidia-cuda-nvrtc` does. Without it a package holds the CPU op alone: `--target auto` and "
        "`rnncc.load` then build that, `--target h200` (or another GPU) refuses.\n\n"
        "`rnncc env` shows which one is found, and which architectures it knows.",
    ),
    Code(
        "RNN609",
        "another rnncc built the package",
        "A package asked rnncc for kernels that it was built without. These kernels must fit the "
        "package's library, but another version of rnncc made that library. Build the package again.",
    ),
    Code(
        "RNN610",
        "the folder cannot be the cache",
        "rnncc deletes old packages from its cache, and runs the code in it. So it takes an empty or missing folder, "
        "or a cache that it made (its file `CACHEDIR.TAG` says so), and refuses every other one before it changes "
        "anything. It refuses\n\n"
        "- a folder with something else in it: give the cache a folder of its own, such as a new one inside;\n"
        "- a cache in which a link stands in place of one of its folders; the cache's folder itself may be a link;\n"
        "- a folder that belongs neither to the user who runs rnncc nor to root. This happens under `sudo` with a "
        "`HOME` that is not root's, and in a container that does not know a file's owner and shows `nobody`: set "
        "`RNNCC_CACHE_DIR` to another folder;\n"
        "- a folder that everybody or a group can write. The user's own group, without other members, is allowed. Some "
        "file systems (FAT, some network shares) let everybody write: name a folder on another one. Access control "
        "lists are not checked.\n\n"
        "A cache belongs to one user. Several users can read one cache that root filled and nobody else can write: run "
        "`chmod -R a+rX` on it, and set `RNNCC_CACHE_DIR` to it.",
    ),
    Code(
        "RNN611",
        "a library is missing",
        "Some commands and functions use a library that rnncc does not install by itself, since everything else works "
        "without it. The message names the library, and the extra of rnncc that installs it: `pip install "
        "'rnncc[plot]'`, or `pip install '.[plot]'` in a checkout. Where the library is there but cannot be imported, "
        "the message says why, and the same command brings a version that rnncc works with. Where rnncc was installed "
        "without its dependencies (`pip install --no-deps`), PyTorch may be missing, which `verify`, `bench` and "
        "`rnncc.load` need: `pip install torch`.",
    ),
    Code(
        "RNN612",
        "the command line is wrong",
        "A command, an option or an argument is missing, or is not what rnncc takes. The message ends with the command "
        "whose `--help` shows examples and lists what it takes. The exit code is 2.",
    ),
    Code(
        "RNN613",
        "no kernels run on the device",
        "`rnncc verify` and `rnncc bench` are about kernels. Where none run, a layer runs its eager fallback, and they "
        "would compare that with another eager loop, or time it in place of kernels. The message says why no kernels "
        "run: there is no such device, the package was built without a compiler, or its library is damaged or cannot "
        "be loaded (RNN711 to RNN713). The exit code is 3.\n\n"
        "`--allow-fallback` goes on with the fallback. The output then says so, and `--json` has "
        '`"kernels": "fallback"`. In Python, `layer.explain()` says what runs, and a layer made with '
        '`backend="cpu"` or `backend="cuda"` raises a RuntimeError where its kernels cannot run.',
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
        "declared group there. A state or a product of width 1 (LMU's `local u: 1`) has nothing to divide.",
    ),
    Code(
        "RNN711",
        "the package needs another PyTorch",
        "The package's kernels use an interface that the installed PyTorch does not have yet, so the slow "
        'eager fallback runs instead. Install a later PyTorch, or set `backend="reference"` to say that this is '
        "meant.",
    ),
    Code(
        "RNN712",
        "the package is incomplete or damaged",
        "A file of the built package is missing or has changed: `_rnncc.json` holds the checksums of all files. "
        "`rnncc.load` and `rnncc build` check every file of a package in the cache, and build a damaged package again; "
        "this error comes where the cache cannot be written. A package that `rnncc build` wrote checks its library and "
        "its GPU kernels when it is imported. Where they are damaged, a warning says so and the slow eager fallback "
        "runs; where `_rnncc.json` is damaged, the import fails. You may edit the Python files. Build the package "
        "again, also where a tool changed the library on purpose (`strip`, `patchelf`).",
    ),
    Code(
        "RNN713",
        "the library cannot be loaded",
        "The operating system or PyTorch refused the package's shared library, and the slow eager fallback runs "
        "instead; the message says why. Often the package was built on another kind of machine, or it lies on a "
        "file system that does not allow execution. Build it again where it is used.",
    ),
    Code(
        "RNN721",
        "a trace would hold on to the number of steps",
        "On every device but the CPU, `torch.jit.trace` records how long packed sequences are as a number. The trace "
        "would give wrong results for longer ones. Give padded input and `lengths=`, whose traces take any number of "
        "steps, or use `torch.export`.",
    ),
    Code(
        "RNN722",
        "ONNX does not know rnncc's ops",
        "A program that `torch.export` made contains rnncc's ops, and ONNX has no such operators. Give "
        "`torch.onnx.export` the model itself, with `dynamo=True`: then a layer becomes operators of ONNX, whatever "
        "its backend is.",
    ),
)
