"""Checkpoints: exact round trip, the newest kept, and a message for whatever can be wrong with one."""

import os
import resource
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import config

from archlab.errors import UserError
from archlab.files import TEMPORARY
from archlab.infer.load import from_pretrained
from archlab.model.decoder import Decoder
from archlab.train import checkpoint
from archlab.train.checkpoint import latest_checkpoint, load_optimizer, load_weights, save_checkpoint
from archlab.train.optim import make_optimizer


def trained():
    """A model and an optimiser with a state."""
    model = Decoder(config().model)
    optimizer = make_optimizer(model, config().train)
    for _ in range(2):
        model(torch.arange(8)[None]).square().mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def saved(tmp_path):
    model, optimizer = trained()
    save_checkpoint(tmp_path, 2, model, optimizer)
    return tmp_path / "step-00000002"


def test_weights_and_optimiser_come_back_bit_by_bit(tmp_path):
    model, optimizer = trained()
    save_checkpoint(tmp_path, 2, model, optimizer)
    step, path = latest_checkpoint(tmp_path)
    other = Decoder(config().model, seed=9)
    restored = make_optimizer(other, config().train)
    load_weights(path, other)
    load_optimizer(path, other, restored)
    assert step == 2
    for (name, parameter), copy in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, copy), name
        state, copied = optimizer.state[parameter], restored.state[copy]
        assert state.keys() == copied.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(state[key], copied[key]) for key in state)


def test_only_the_newest_is_kept(tmp_path):
    model, optimizer = trained()
    for step in (1, 5, 12):
        save_checkpoint(tmp_path, step, model, optimizer)
    save_checkpoint(tmp_path, 100_000_000, model, None)
    assert [path.name for path in tmp_path.iterdir()] == ["step-100000000"]
    assert [path.name for path in next(tmp_path.iterdir()).iterdir()] == ["model.safetensors"]


def test_half_of_one_that_a_kill_left_is_not_taken_for_one(saved):
    shutil.copytree(saved, saved.parent / f"{TEMPORARY}1-step-00000003")
    (saved.parent / "notes").mkdir()
    assert latest_checkpoint(saved.parent) == (2, saved)
    assert latest_checkpoint(saved.parent / "nowhere") is None


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path):
    path.write_bytes(b"")


def scrambled(path):
    path.write_bytes(b"\xff" * 64)


def removed(path):
    path.unlink()


def piped(path):
    path.unlink()
    os.mkfifo(path)


def a_device(path):
    path.unlink()
    path.symlink_to("/dev/null")


def not_to_be_read(path):
    """As a disk does it that fails."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("damage", [truncated, emptied, scrambled, removed, piped, a_device, not_to_be_read])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_damage_is_a_message_that_names_the_file(saved, file, damage):
    damage(saved / file)
    model, optimizer = trained()
    load = (
        (lambda: load_weights(saved, model)) if "model" in file else (lambda: load_optimizer(saved, model, optimizer))
    )
    with pytest.raises(
        UserError, match=rf"{file}: (damaged|missing|not a regular file|No such device|Input/output error)"
    ):
        load()


@pytest.mark.parametrize("drop", ["norm.weight", "layers.1.mlp.up.weight"])
def test_an_optimiser_without_one_of_the_parameters_is_refused(saved, drop):
    """AdamW would silently begin anew for it."""
    tensors = load_file(saved / "optimizer.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.startswith(drop)}, saved / "optimizer.safetensors")
    with pytest.raises(UserError, match=f"missing or surplus: {drop}"):
        load_optimizer(saved, *trained())


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("model.mlp.d_ff=72",), "layers.0.mlp.down.weight"),
        (("model.n_layers=3",), "layers.2.attention.k.weight"),
        (("model.n_layers=1",), "layers.1.attention.k.weight"),
        (("model.head.tied=true",), "head.weight"),
    ],
)
def test_weights_of_another_architecture_are_refused_by_name(saved, overrides, name):
    with pytest.raises(UserError, match=f"does not fit the config.*{name}"):
        load_weights(saved, Decoder(config(*overrides).model))


def test_weights_of_another_dtype_are_refused(saved):
    halved = {k: v.bfloat16() for k, v in load_file(saved / "model.safetensors").items()}
    save_file(halved, saved / "model.safetensors")
    with pytest.raises(UserError, match="does not fit the config"):
        load_weights(saved, Decoder(config().model))


def test_a_full_disk_is_a_message_and_the_older_checkpoint_stays(saved):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write the checkpoint of step 3.*File too large"):
            save_checkpoint(saved.parent, 3, *trained())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    load_optimizer(saved, *trained())


def test_a_kill_between_writing_and_removing_leaves_the_newest_in_use(saved, monkeypatch):
    def killed(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, ignore_errors=False: ignore_errors or killed(path))
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved.parent, 3, *trained())
    monkeypatch.undo()
    step, path = latest_checkpoint(saved.parent)
    assert (step, path.name) == (3, "step-00000003")
    load_weights(path, trained()[0])
    save_checkpoint(saved.parent, 4, *trained())
    assert [path.name for path in saved.parent.iterdir()] == ["step-00000004"]


def test_a_folder_that_is_no_run_has_no_model(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder \(no config.yaml\)"):
        from_pretrained(tmp_path)
    with pytest.raises(UserError, match="not a run folder"):
        from_pretrained(tmp_path / "nowhere")
