"""Functions that the generated eager fallback calls."""
