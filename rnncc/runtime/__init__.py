"""The code that every built package contains. It imports torch and nothing else.

    modules/    layers, single steps and the functional op: what users construct and call
    arguments/  what callers give, checked and brought into one form
    ops/        the torch ops of a package, and the records that they take
    kernels/    which kernels run a call, and what compiles them when one first needs them
    eager/      functions that the generated eager fallback calls

spec.py has what a generated module says about its cell; package.py, manifest.py, settings.py and pickling.py are about
the package as a whole. modules/ knows all other folders; kernels/ and ops/ do not know it.

A call of a layer goes through these files:

    layer.py       `RecurrentLayer.forward`. A single step begins in cell.py, and in_place.py lets it write into its hx.
                   base.py is what the two share.
    whole.py       makes a plain call by one op, and ends there; frozen.py keeps packed weights for it on the CPU. Other
                   calls go the long way:
    inputs.py      checks what was given, and brings it into the form [T, B, width];
    packed.py      does so for sequences without padding.
    choice.py      chooses the kernels, or the eager fallback.
    directions.py  runs each layer of the stack. The package's _reference.py makes the streams of a loop over all steps,
                   the loop runs, and _reference.py makes the output.
    loop.py        runs a loop, given as a `LoopCall` (call.py): by its op, or in eager torch, which is the eager
                   fallback.
    segment_ops.py makes the two ops of a loop from functions of the package's library: with autograd (autograd.py), a
                   fake kernel and autocast. Where the backward is to be differentiated, it is loop.py again.

The functional op (function.py) takes the streams from its caller (function_inputs.py), and goes on with loop.py.
package.py opens the library when the package is imported. fused.py and first_use.py are about kernels that are compiled
when a call needs them.
"""
