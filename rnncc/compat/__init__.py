"""Ways in from other libraries: their arguments, shapes and parameter names, on rnncc's cells.

rnncc.compat.flashrnn(Wx, R, b, states)     FlashRNN's function; rnncc.compat.FlashRNNConfig, its options

These modules are imported by their names:

rnncc.compat.nn             nn.replace(model) replaces every nn.LSTM, nn.GRU and nn.RNN of a model, and their cells
rnncc.compat.two_states     TwoStates(layer) lets a layer of one state stand where code expects an nn.LSTM
rnncc.compat.haste          Haste's layers
"""

from rnncc.compat.flash import FlashRNNConfig, flashrnn

__all__ = ["FlashRNNConfig", "flashrnn"]
