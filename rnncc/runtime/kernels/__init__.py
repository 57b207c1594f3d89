"""Which kernels run a call, what compiles them when one first needs them, and what says so."""
