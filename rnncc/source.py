"""Where pickles of rnncc 0.1 find a text. New code imports `rnncc.language.source`."""

from rnncc.language.source import Source

__all__ = ["Source"]
