"""Every choice on another device, tested without one: all tensors are there in forward pass, decoding and training.

The device is a fake one whose operations refuse tensors on the CPU. Its numbers must equal those of the CPU.
"""

from collections.abc import Callable

import grid
import pytest
import torch
from torch import Tensor

from accelerator import Accelerator, FakeCuda
from archlab.config.io import build_config
from archlab.config.layers import sees_as
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.infer.generate import generate
from archlab.model.decoder import Decoder
from archlab.model.layer import Layer
from archlab.training import loss
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.step import update

CHOICES = [grid.grid()[index] for index in grid.rows_with_each_override(1)]
TRAINING = ("train.seq_len=16", "train.batch_tokens=32", "train.micro_batch_tokens=16", "train.z_loss=1e-4")
CPU, THERE = (Device(name, torch.float32) for name in ("cpu", "cuda"))


def forward(model: Decoder, config: Config, device: Device) -> Tensor:
    prefix = grid.prefix(config, 2)
    with torch.no_grad():
        return model.eval()(grid.tokens(2).to(device.type), prefix=None if prefix is None else prefix.to(device.type))


def packed(model: Decoder, config: Config, device: Device) -> Tensor:
    """Return the logits of packed documents or, if tokens see both sides, of texts with padding after them."""
    if sees_as(config.model, "two_sided"):
        return model.eval()(grid.tokens(2).to(device.type), lengths=torch.tensor([26, 9]).to(device.type)).detach()
    documents = (torch.arange(26) > 10).long().expand(2, -1)
    return model.eval()(grid.tokens(2).to(device.type), documents=documents.to(device.type)).detach()


def decoded(model: Decoder, config: Config, device: Device) -> Tensor:
    return generate(
        model.eval(), grid.tokens(2, 9), 3, 0.8, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=1,
        end_of_text=7, prefill_chunk=4,
    )  # fmt: skip


def trained(model: Decoder, config: Config, device: Device) -> Tensor:
    """Return loss, gradient norm and all parameters after an update."""
    train = resolve_train(config)
    windows = Windows(grid.tokens(2, 17).numpy())
    batch = random_batch(config, windows, 0 if train.document_mask else None)
    result = update(model.train(), make_optimizer(model, train), batch, train, 0, device)
    numbers = torch.tensor([result.loss, result.grad_norm], device=device.type)
    return torch.cat([numbers, *(p.detach().flatten() for p in model.parameters())])


def assert_equal_there(use: Callable[[Decoder, Config, Device], Tensor], config: Config) -> None:
    model = Decoder(config.model, seed=0)
    wanted = use(Decoder(config.model, seed=0), config, CPU)
    with Accelerator():
        found = use(model.to("cuda"), config, THERE)
    assert isinstance(found, FakeCuda)
    torch.testing.assert_close(found.content, wanted, rtol=1e-4, atol=1e-4)


def config_of(overrides: tuple[str, ...]) -> Config:
    return build_config(grid.BASE, (*overrides, *TRAINING))


@pytest.mark.parametrize("use", [forward, packed, decoded, trained])
@pytest.mark.parametrize("overrides", CHOICES, ids=range(len(CHOICES)))
@pytest.mark.slow
def test_every_choice_is_on_the_device(overrides: tuple[str, ...], use: Callable[..., Tensor]) -> None:
    config = config_of(overrides)
    if use is decoded and sees_as(config.model, "two_sided"):
        return  # such a model has no cache
    assert_equal_there(use, config)


@pytest.mark.parametrize(
    "overrides",
    [
        ("train.optimizer=muon",),
        ("train.lora={rank: 2}",),
        ("train.document_mask=true",),
        ("train.recompute=true",),
        ("model.dropout=0.0", "train.objective=masked", "model.attention.visibility=two_sided"),
    ],
)
@pytest.mark.slow
def test_every_kind_of_training_is_on_the_device(overrides: tuple[str, ...]) -> None:
    assert_equal_there(trained, config_of(overrides))


@pytest.mark.slow
def test_an_encoder_is_on_the_device() -> None:
    config = config_of(("model.encoder.n_layers=1", "model.position=t5"))

    def read(model: Decoder, _: Config, device: Device) -> Tensor:
        source, lengths = (x.to(device.type) for x in (grid.tokens(2, 11), torch.tensor([11, 4])))
        written = generate(model.eval(), grid.tokens(2, 1), 3, source=source, source_lengths=lengths)
        return model(written, source=source, source_lengths=lengths).detach()

    assert_equal_there(read, config)


@pytest.mark.parametrize("use", [forward, decoded])
@pytest.mark.slow
def test_a_tensor_of_a_layer_that_stays_behind_is_noticed(
    use: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Layer.forward
    monkeypatch.setattr(Layer, "forward", lambda self, x, *more: run(self, x, *more) + torch.zeros(x.shape[-1]))
    with pytest.raises(RuntimeError, match="tensors on cuda and on the cpu"):
        assert_equal_there(use, config_of(()))


@pytest.mark.slow
def test_a_tensor_of_the_loss_that_stays_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = loss.objective
    monkeypatch.setattr(loss, "objective", lambda *args: [(x + torch.zeros(1)).sum() for x in compute(*args)])
    with pytest.raises(RuntimeError, match="tensors on cuda and on the cpu"):
        assert_equal_there(trained, config_of(()))
