"""The machine: where files lie, the cache of packages, processors and GPUs."""
