"""The records of a loop's call are its ops' arguments."""

from __future__ import annotations

import torch

from rnncc.runtime.ops.call import BackwardCall, LoopCall
from tests.runtime.test_ops import arguments, kernels_of, make


def test_records_of_a_call_are_the_arguments_of_the_ops() -> None:
    layer = make("lstm", "LSTM")
    space = getattr(torch.ops, kernels_of(layer).namespace)
    for op, record in ((space.lstm_0_forward, LoopCall), (space.lstm_0_backward, BackwardCall)):
        assert [argument.name for argument in op.default._schema.arguments] == list(record._fields)


def test_calls_that_are_made_of_a_call() -> None:
    _, given = arguments(make("lstm", "LSTM"))
    call = LoopCall(*given)
    assert call._replace(training=False).for_training() == given
    assert call.directions() == [call._replace(reverse=call.reverse)]
