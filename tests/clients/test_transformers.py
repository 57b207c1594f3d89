"""transformers: EnCodec's LSTMs, and RecurrentGemma's RG-LRU with resets and a cache. Random weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rnncc
from rnncc.compat.nn import survey
from tests.clients.page import close, example, is_rnncc

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def page() -> Any:
    torch.manual_seed(0)
    return example("transformers")


def test_encodec_codes_and_decodes_as_before(page: Any, tmp_path: Path) -> None:
    ours = page.codec.eval()
    assert not survey(ours) and sum(is_rnncc(module) for module in ours.modules()) == 2
    ours.save_pretrained(tmp_path)
    theirs = page.EncodecModel.from_pretrained(tmp_path).eval()
    assert sum(type(module) is nn.LSTM for module in theirs.modules()) == 2
    audio = torch.randn(2, 1, 203)
    close(ours.encoder(audio), theirs.encoder(audio))
    with torch.no_grad():
        codes = theirs.encode(audio)
        assert torch.equal(ours.encode(audio).audio_codes, codes.audio_codes)
        decoded = [model.decode(codes.audio_codes, codes.audio_scales)[0] for model in (ours, theirs)]
    close(decoded[0], decoded[1])


def test_encodec_trains_as_before(page: Any) -> None:
    ours = copy.deepcopy(page.codec).train()
    theirs = page.EncodecModel(ours.config).train()
    theirs.load_state_dict(ours.state_dict())
    audio = torch.randn(2, 1, 96)
    for model in (ours, theirs):
        optimiser = torch.optim.SGD(model.parameters(), 0.01)
        model.losses = []
        for _ in range(3):
            loss = (model.decoder(model.encoder(audio)) - audio).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            model.losses.append(loss.item())
    close(torch.tensor(ours.losses), torch.tensor(theirs.losses), 1e-4)
    assert ours.losses[-1] < ours.losses[0]


def test_torch_compile_takes_encodec_s_lstm_whole(page: Any) -> None:
    """Their block is one graph with our layer; with nn.LSTM Dynamo breaks it."""
    (block, _) = [module for module in page.codec.modules() if type(module).__name__ == "EncodecLSTM"]
    x = torch.randn(2, block.lstm.input_size, 7)
    compiled: Any = torch.compile(block, backend="aot_eager", fullgraph=True)
    close(compiled(x), block(x))


@pytest.fixture(scope="module")
def gemmas(page: Any) -> tuple[Any, Any]:
    """A small RecurrentGemma with our recurrence, and as it was."""
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=23, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, lru_width=16,
        attention_window_size=32, pad_token_id=0, eos_token_id=None, bos_token_id=1,
    )  # fmt: skip
    theirs = transformers.RecurrentGemmaForCausalLM(config).eval()
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            if "recurrent_param" in name:
                value.uniform_(-6, -2)  # a unit keeps a tenth of its state in 2 to 100 steps
            elif "rg_lru" in name:
                value.normal_(0, 0.5)
    ours = copy.deepcopy(theirs)
    page.accelerate(ours)
    theirs.load_state_dict(ours.state_dict())
    assert sum(isinstance(module, page.Recurrence) for module in ours.modules()) == 2
    return ours, theirs


def test_gemma_with_documents_in_a_row_and_its_gradients(gemmas: Any) -> None:
    tokens = torch.randint(1, 23, (2, 9))
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2]])
    found = []
    for model in gemmas:
        model.zero_grad()
        result = model(tokens, position_ids=places, labels=tokens, use_cache=False)
        result.loss.backward()
        found.append((result.loss, result.logits, *(value.grad for value in model.parameters())))
    close(found[0], found[1], 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_recurrence_and_all_its_gradients(gemmas: Any, dtype: torch.dtype) -> None:
    recurrences = [model.model.layers[0].temporal_block.rg_lru for model in gemmas]
    x, places = torch.randn(2, 9, 16, dtype=dtype), torch.arange(9).remainder(5).expand(2, 9)
    state = torch.randn(2, 16)
    found = []
    for original in recurrences:
        original.recurrent_states = None  # what a text left
        module = copy.deepcopy(original).to(dtype)
        module.zero_grad()
        module.recurrent_states = state
        first = module(x, places + 1)  # no document begins: the given state goes on
        y = first + module(x, places)
        y.float().square().sum().backward()
        found.append((y, module.recurrent_states, *(value.grad for value in module.parameters())))
        assert y.dtype == dtype and module.recurrent_states.dtype == torch.float32
    close(found[0], found[1], 1e-4 if dtype == torch.float32 else 2e-2)


def test_gemma_writes_the_same_text(gemmas: Any) -> None:
    """The prompt at once, then token by token from the state that the block keeps; twice, so that it begins anew."""
    prompt = torch.randint(1, 23, (1, 5))
    for _ in range(2):
        texts = [model.generate(prompt, max_new_tokens=8, do_sample=False) for model in gemmas]
        assert torch.equal(*texts) and texts[0].shape == (1, 13)


def test_gemma_trains(gemmas: Any) -> None:
    ours = copy.deepcopy(gemmas[0]).train()
    tokens = (torch.arange(4)[:, None] + 3 * torch.arange(12)) % 22 + 1
    optimiser, losses = torch.optim.Adam(ours.parameters(), 1e-2), []
    for _ in range(6):
        loss = ours(tokens, labels=tokens, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.fixture
def filled() -> Iterator[None]:
    """Memory that torch does not initialise is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_weights_that_a_checkpoint_lacks_are_initialised(page: Any, filled: None, tmp_path: Path) -> None:
    config = page.TaggerConfig()

    class Backbone(page.PreTrainedModel):  # type: ignore[misc]
        config_class, base_model_prefix = page.TaggerConfig, "embedding"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.embedding = nn.Embedding(50, config.hidden)
            self.post_init()

    Backbone(config).save_pretrained(tmp_path / "backbone")
    tagger = page.Tagger.from_pretrained(tmp_path / "backbone")
    assert all(value.isfinite().all() and value.any() for value in tagger.encoder.parameters())
    tagger.save_pretrained(tmp_path / "whole")
    again = page.Tagger.from_pretrained(tmp_path / "whole")
    assert all(map(torch.equal, again.encoder.parameters(), tagger.encoder.parameters()))


@pytest.mark.parametrize("folder", ["cpu", "disk"])
def test_accelerate_loads_a_layer_whose_gates_are_in_another_order(folder: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    text = (
        "cell Mine\nstate h, c\ni, f, o = sigmoid(W@x + R@h[t-1] + b)\ng = tanh(W@x + R@h[t-1] + b)\n"
        "c[t] = f*c[t-1] + i*g\nh[t] = o*tanh(c[t])\n"
    )
    mine = rnncc.compile(text, "mine").Mine
    model, x = nn.ModuleDict({"encoder": mine(4, 6), "out": nn.Linear(6, 2)}), torch.randn(5, 3, 4)
    expected = model["out"](model["encoder"](x)[0])
    accelerate.Accelerator().save_model(model, tmp_path)
    with accelerate.init_empty_weights():
        empty = nn.ModuleDict({"encoder": mine(4, 6), "out": nn.Linear(6, 2)})
    accelerate.load_checkpoint_and_dispatch(
        empty, tmp_path, device_map={"encoder": folder, "out": "cpu"}, offload_folder=tmp_path / "offload"
    )
    assert torch.equal(empty["out"](empty["encoder"](x)[0]), expected)
