"""`rnncc bench`: a cell's time beside that of its eager loop, its compiled loop and torch.nn, and beside what is
expected of it.

parties.py makes the calls, timing.py times them in turn, measure.py puts both together. predict.py says what a schedule
and a roofline expect, machine.py what the machine is. report.py has the words and the rows, plot.py draws. benchmarks/
times with the same functions.
"""
