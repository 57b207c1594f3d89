"""sb3-contrib's RecurrentPPO: resets within a rollout, two LSTMs, saved agents."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rnncc
from rnncc.compat.nn import replace
from rnncc.compat.two_states import TwoStates
from tests.clients.page import close, example, is_rnncc

pytestmark = pytest.mark.clients
sb3 = pytest.importorskip("sb3_contrib")


def agent(**options: Any) -> Any:
    options = {"lstm_hidden_size": 8, "n_lstm_layers": 1, **options}
    return sb3.RecurrentPPO(
        "MlpLstmPolicy", "CartPole-v1", n_steps=32, batch_size=16, policy_kwargs=options, seed=3, device="cpu"
    )


def batch(policy: Any) -> tuple[Any, ...]:
    """Observations of 3 sequences of 5 steps, two of which begin anew within, actions, states and starts."""
    generator = torch.Generator().manual_seed(1)
    width = policy.lstm_hidden_state_shape[2]
    shape = (policy.lstm_hidden_state_shape[0], 3, width)
    states = [torch.randn(*shape, generator=generator) for _ in range(4)]
    starts = torch.zeros(3, 5)
    starts[0, 2] = starts[1, 4] = 1
    pair = type("States", (), {"pi": tuple(states[:2]), "vf": tuple(states[2:])})()
    return torch.randn(15, 4, generator=generator), torch.arange(15) % 2, pair, starts.flatten()


@pytest.mark.parametrize(
    "options",
    [{}, {"n_lstm_layers": 2}, {"shared_lstm": True, "enable_critic_lstm": False}],
    ids=["two", "deep", "shared"],
)
def test_a_policy_evaluates_actions_as_before(options: dict[str, Any]) -> None:
    theirs: Any = agent(**options).policy
    ours: Any = copy.deepcopy(theirs)
    replace(ours, as_nn=True)
    assert is_rnncc(ours.lstm_actor) and isinstance(ours.lstm_actor, nn.LSTM)
    for policy in (theirs, ours):
        values, log_probabilities, entropy = policy.evaluate_actions(*batch(policy))
        (values.sum() + log_probabilities.sum() + entropy.sum()).backward()
    for found, expected in zip(
        ours.evaluate_actions(*batch(ours)), theirs.evaluate_actions(*batch(theirs)), strict=True
    ):
        close(found, expected)
    for (name, own), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None), name
        if own.grad is not None:
            close(own.grad, other.grad, 1e-4)


def test_an_agent_learns_is_saved_and_loaded(tmp_path: Path) -> None:
    ours = agent()
    replace(ours.policy, as_nn=True)
    before = copy.deepcopy(ours.policy.state_dict())
    ours.learn(64)
    after = ours.policy.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in after if "lstm" in name)
    ours.save(tmp_path / "agent.zip")
    again = sb3.RecurrentPPO.load(tmp_path / "agent.zip", device="cpu")
    assert type(again.policy.lstm_actor) is nn.LSTM
    close(again.policy.evaluate_actions(*batch(again.policy)), ours.policy.evaluate_actions(*batch(ours.policy)))
    observation = ours.get_env().reset()
    _, states = ours.predict(observation, deterministic=True)
    for _ in range(3):
        _, states = ours.predict(observation, state=states, deterministic=True)
    assert states[0].shape == (1, 1, 8)


def test_a_layer_of_one_state_learns() -> None:
    ours = agent(enable_critic_lstm=False)
    layer = TwoStates(rnncc.load("mingru").minGRU(4, 8))
    ours.policy.lstm_actor = layer
    ours.policy.optimizer = torch.optim.Adam(ours.policy.parameters(), 1e-2)
    before = [value.clone() for value in layer.parameters()]
    ours.learn(32)
    assert all(not torch.equal(old, new) for old, new in zip(before, layer.parameters(), strict=True))


def test_the_page() -> None:
    agent = example("sb3-contrib").agent
    assert is_rnncc(agent.policy.lstm_actor) and is_rnncc(agent.policy.lstm_critic) and agent.num_timesteps >= 64
