"""RNN1xx: what can be wrong with the text before any name has a meaning."""

from __future__ import annotations

from rnncc.language.codes.entry import Code

PARSE = (
    Code(
        "RNN101",
        "the file cannot be read",
        "The file is missing, is a folder, may not be read, or is not UTF-8 text. A `.rnn` file is UTF-8.\n\n"
        "Check the path. If the message names a byte, an editor wrote another encoding: save the file as UTF-8.",
    ),
    Code(
        "RNN102",
        "the text is too large",
        "A text of more than 1 MiB is refused unread: the largest cell in the literature needs about 2 KiB, so "
        "this is not a cell but some other file, or a generator that ran away.\n\n"
        "Where many equations differ only by a number, a `for` loop states them in one line.",
    ),
    Code(
        "RNN103",
        "the text holds no cell",
        "A file states at least one cell, and each begins with a line `cell NAME`. An empty file, or one of "
        "comments only, has nothing to build.",
        "# only a comment\n",
        "# the simplest recurrent cell\ncell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN104",
        "a statement stands before the first cell",
        "Every declaration and equation belongs to a cell, so the first line that is not a comment is `cell "
        "NAME`. The name becomes the class of the generated module; nothing sensible could be made up for it.",
        "state h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN105",
        "a cell's header is `cell NAME`",
        "The line that begins a cell holds the word `cell`, one name, and nothing else: no colon, no parentheses, "
        "no parameters. Sizes are given to the module (`input_size`, `hidden_size`), constants are declared with "
        "`const`.",
        "cell Leaky(dt):\nconst dt = 0.1\nstate h\nh[t] = h[t-1] + dt*tanh(W@x + R@h[t-1] + b)\n",
        "cell Leaky\nconst dt = 0.1\nstate h\nh[t] = h[t-1] + dt*tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN106",
        "a cell's name has an upper-case letter",
        "The generated package holds a class under the cell's exact name and a function under the name in lower "
        "case (`LSTM` and `lstm`). A name without an upper-case letter would give both the same name.",
        "cell elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN107",
        "two cells have the same name",
        "The cells of one file are built into one package, each under its name; its function is the name in lower "
        "case, so two names that differ only in case meet as well. Rename one of them.",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n\n"
        "cell ELMAN\nstate h\nh[t] = relu(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN108",
        "a character has no meaning here",
        "Names are made of Latin and Greek letters, digits and `_`. In what is generated, a Greek letter is called by "
        "its English name: `α` becomes `alpha`. Three characters are operators: `σ` alone means sigmoid, `⊙` means "
        "`*`, and `·` means `@`. Anything else stands only in comments.\n\n"
        "Texts pasted from a paper often hold `×` (write `*`), `−` (a minus sign that is not `-`) or `²` (write "
        "`**2`). The message says what to write where that is known.",
        "cell Elman\nstate h\nα = sigmoid(W@x + b)\nh[t] = α*tanh(W@x − R@h[t-1] + b)\n",
        "cell Elman\nstate h\nα = sigmoid(W@x + b)\nh[t] = α*tanh(W@x - R@h[t-1] + b)\n",
    ),
    Code(
        "RNN109",
        "a bracket is not closed, or was never opened",
        "Each `(` needs its `)` and each `[` its `]`, in the right order. A statement goes on over the ends of "
        "lines while a bracket is open, so a missing one is reported where it was opened, not at the end of the "
        "file.",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN110",
        "something else is expected here",
        "The text does not follow the grammar (docs/language.md). The message names what stands there and what "
        "could stand there instead.",
        "cell Elman\nstate h\nh[t] = tanh(W@x + + * b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + b)\n",
    ),
    Code(
        "RNN111",
        "an operator is missing between two values",
        "Two values side by side are not multiplied. Products are written out because there are two of them: "
        "`W@x` is a matrix times a vector, `i*g` multiplies element by element.",
        "cell Elman\nstate h\nh[t] = tanh(W x + R@h[t-1] + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN112",
        "`=` and `==` are confused",
        "`=` says what a name is and stands once in an equation; `==` compares two numbers inside an expression, "
        "as in `W@x if l == 1 else 0`.",
        "cell Elman\nstate h\nh[t] == tanh(W@x + R@h[t-1] + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN113",
        "a time or an index is written in square brackets",
        "`h[t-1]` is the state h at the step before; `h(t-1)` would call a function named h. Papers write both, "
        "and subscripts; here only square brackets index.",
        "cell Elman\nstate h\nh(t) = tanh(W@x + R@h(t-1) + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN114",
        "the indentation is wrong",
        "Only the body of a `for` is indented, by any number of spaces, the same for all its lines. Statements of "
        "the cell itself begin in the first column, those below `cell NAME` too. Tabs and spaces must not be "
        "mixed, because how wide a tab is depends on the editor.",
        "cell Elman\nstate h\n  i = sigmoid(W@x + b)\nh[t] = i*tanh(W@x + R@h[t-1] + b)\n",
        "cell Elman\nstate h\ni = sigmoid(W@x + b)\nh[t] = i*tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN115",
        "a loop is `for NAME in A..B:` with an indented block",
        "The loop is unrolled when the cell is compiled: its bounds are whole numbers or constants, both ends "
        "belong to it, and its body stands on the following lines, indented.",
        "cell RHN\nconst L = 2\nstate h\ns[0] = h[t-1]\n"
        "for l in range(1, L):\n    s[l] = tanh(R@s[l-1] + b)\nh[t] = s[L] + W@x\n",
        "cell RHN\nconst L = 2\nstate h\ns[0] = h[t-1]\n"
        "for l in 1..L:\n    s[l] = tanh(R@s[l-1] + b)\nh[t] = s[L] + W@x\n",
    ),
    Code(
        "RNN116",
        "the text is nested too deeply",
        "Brackets, chains of operators and loops may be nested 100 deep; no equation in the literature comes "
        "near. The limit keeps every later stage within the depth that Python and C++ compilers handle.\n\n"
        "Give a part of the expression a name: an equation of its own.",
        f"cell Elman\nstate h\nh[t] = {'-' * 120}(W@x + R@h[t-1])\n",
    ),
    Code(
        "RNN117",
        "the number is malformed",
        "Numbers are written in decimal: `2`, `0.5`, `1e-5`. There are no other bases, no suffixes, no digits "
        "grouped by `_`; infinity is `inf`.",
        "cell Leaky\nconst dt = 0.1.2\nstate h\nh[t] = h[t-1] + dt*tanh(W@x + R@h[t-1] + b)\n",
        "cell Leaky\nconst dt = 0.1\nstate h\nh[t] = h[t-1] + dt*tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN118",
        "the left side of `=` is not a target",
        "An equation gives a value to a gate (`i = …`), to the next state (`h[t] = …`) or to one instance of a loop "
        "(`n[l] = …`). Several of these may stand there, separated by commas. It is not solved for anything: what "
        "is left of `=` is a name, not an expression.",
        "cell Leaky\nstate h\nh[t] - h[t-1] = tanh(W@x + R@h[t-1] + b)\n",
        "cell Leaky\nstate h\nh[t] = h[t-1] + tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN119",
        "an expression alone says nothing",
        "Each statement declares something or gives a name its value with `=`. There is no `return`: what the "
        "cell gives out is its first state, or the value named by `output`.",
        "cell Elman\nstate h\ntanh(W@x + R@h[t-1] + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN120",
        "unknown kind of statement",
        "The statements are `input`, `state`, `output`, `dim`, `const`, `local`, `param`, `weights`, `init`, "
        "`def`, `for`, and equations.",
        "cell Elman\nstates h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n",
    ),
    Code(
        "RNN121",
        "an operator of another language",
        "Arithmetic is `+ - * / // **`, the product of a matrix with a vector is `@`, comparisons are `< <= > >= "
        "== !=`. There are no assignments that add (`+=`), no `^` (a power is `**`), no `%` (`mod(a, b)`) and no "
        "`and`, `or`, `not`: a choice between values is `where(condition, a, b)`.",
        "cell Elman\nstate h\nh[t] = tanh(W@x + (R@h[t-1])^2 + b)\n",
        "cell Elman\nstate h\nh[t] = tanh(W@x + (R@h[t-1])**2 + b)\n",
    ),
    Code(
        "RNN122",
        "a name is too long",
        "A name has at most 64 characters. It becomes a name in Python and C++ and part of file names, where "
        "systems have limits of their own.",
        f"cell Elman\nstate h\n{'gate' * 17} = sigmoid(W@x + b)\nh[t] = {'gate' * 17}*tanh(R@h[t-1] + b)\n",
        "cell Elman\nstate h\ngate = sigmoid(W@x + b)\nh[t] = gate*tanh(R@h[t-1] + b)\n",
    ),
)
