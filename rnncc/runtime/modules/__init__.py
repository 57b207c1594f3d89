"""Layers and single steps: their constructors, parameters, options and calls, and the functional op."""
