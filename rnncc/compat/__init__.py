"""Ways in from other libraries: their arguments, shapes and parameter names, on rnncc's cells.

rnncc.compat.nn.replace(model)      every nn.LSTM, nn.GRU and nn.RNN of a model
"""
