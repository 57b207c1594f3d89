"""Ways in from other libraries: their arguments, shapes and parameter names, on rnncc's cells.

rnncc.compat.nn.replace(model)              every nn.LSTM, nn.GRU and nn.RNN of a model
rnncc.compat.flashrnn(Wx, R, b, states)     FlashRNN's function; rnncc.compat.FlashRNNConfig, its options
"""

from rnncc.compat.flash import FlashRNNConfig, flashrnn

__all__ = ["FlashRNNConfig", "flashrnn"]
