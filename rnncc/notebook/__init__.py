"""rnncc in notebooks: `%load_ext rnncc` and the cell magic `%%rnn`, and what a notebook shows of a cell.

    from rnncc.notebook import draw, equations, explain
    draw("lstm")                         # a shipped cell's name, the path of a .rnn file, or a layer or its class

Values of these functions show themselves in a notebook, and print as text elsewhere. They need no IPython.
"""

from __future__ import annotations

from rnncc.notebook.show import draw, equations, explain
from rnncc.notebook.values import Equations, Explanation, Findings, Picture

__all__ = ["Equations", "Explanation", "Findings", "Picture", "draw", "equations", "explain"]
