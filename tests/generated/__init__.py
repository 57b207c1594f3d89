"""Cells drawn from the whole language, and an interpreter of their text that shares nothing with rnncc."""
