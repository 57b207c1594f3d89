"""The language: its text, what is said about it, and the operators that it has."""
