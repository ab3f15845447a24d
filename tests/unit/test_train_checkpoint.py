"""Checkpoints: exact round trip, retention of the two newest, and a message for each kind of damage."""

import errno
import os
import resource
import shutil
from concurrent.futures import Future
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from accelerator import Accelerator, find_gpu
from archlab import digests, files
from archlab.config.schema import Keep
from archlab.errors import UserError
from archlab.files import TEMPORARY
from archlab.infer.load import from_pretrained
from archlab.model.decoder import Decoder
from archlab.training import checkpoint, saving
from archlab.training.checkpoint import (
    Retention,
    has_optimizer,
    load_metrics,
    load_optimizer,
    load_weights,
    newest_checkpoint,
)
from archlab.training.optim import make_optimizer
from archlab.training.saving import Saver, save_checkpoint
from archlab.training.world import ALONE
from tiny import config


def trained():
    """Return a model and an optimizer with state."""
    model = Decoder(config().model)
    optimizer = make_optimizer(model, config().train)
    for _ in range(2):
        model(torch.arange(8)[None]).square().mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def saved(tmp_path):
    model, optimizer = trained()
    save_checkpoint(tmp_path, 2, model, optimizer, b"{}\n")
    return tmp_path / "step-00000002"


def test_weights_and_optimizer_come_back_bit_by_bit(tmp_path):
    model, optimizer = trained()
    save_checkpoint(tmp_path, 2, model, optimizer, b"the metrics")
    (step, path), damaged = newest_checkpoint(tmp_path)
    other = Decoder(config().model, seed=9)
    restored = make_optimizer(other, config().train)
    load_weights(path, other)
    load_optimizer(path, other, restored)
    assert (step, damaged, load_metrics(path)) == (2, [], b"the metrics")
    for (name, parameter), copy in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, copy), name
        state, copied = optimizer.state[parameter], restored.state[copy]
        assert state.keys() == copied.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(state[key], copied[key]) for key in state)


def test_persistent_buffers_are_saved_and_others_are_not(tmp_path):
    class Counting(torch.nn.Module):
        def __init__(self, seen):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("seen", torch.tensor(seen))
            self.register_buffer("table", torch.tensor(seen), persistent=False)

    save_checkpoint(tmp_path, 1, Counting(7), None)
    other = Counting(0)
    load_weights(tmp_path / "step-00000001", other)
    assert (other.seen.item(), other.table.item()) == (7, 0)


def test_the_two_newest_are_kept_and_at_the_end_only_the_last(tmp_path):
    model, optimizer = trained()
    for step in (1, 5, 12):
        save_checkpoint(tmp_path, step, model, optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000012"]
    save_checkpoint(tmp_path, 100_000_000, model, None)
    assert [path.name for path in tmp_path.iterdir()] == ["step-100000000"]
    assert sorted(path.name for path in next(tmp_path.iterdir()).iterdir()) == [
        "digests.json", "metrics.jsonl", "model.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("keep", "going_on", "at_the_end"),
    [
        (Keep(), [4, 5], [6]),
        (Keep(last=1), [5], [6]),
        (Keep(last=4), [2, 3, 4, 5], [6]),
        (Keep(every=2), [2, 4, 5], [2, 4, 6]),
        (Keep(last=3, every=3), [3, 4, 5], [3, 6]),
    ],
)
def test_which_ones_stay(tmp_path, keep, going_on, at_the_end):
    saver, (model, optimizer) = Saver(tmp_path, Retention(keep, last_step=6), ALONE), trained()

    def steps():
        saver.wait()
        return sorted(int(path.name.removeprefix("step-")) for path in tmp_path.iterdir())

    for step in range(1, 6):
        saver.save(step, model, optimizer, b"")
    assert steps() == going_on
    saver.save(6, model, optimizer, b"")
    assert steps() == at_the_end
    assert has_optimizer(tmp_path / "step-00000006") is False, "no training goes on from it"


def test_what_is_trained_meanwhile_is_not_in_it(tmp_path, monkeypatch):
    """`save` copies the state before it returns, and the thread writes the copy later."""
    may_write, write = Event(), saving.write_whole
    monkeypatch.setattr(saving, "write_whole", lambda *args: (may_write.wait(), write(*args)))
    saver, (model, optimizer) = Saver(tmp_path, Retention(Keep(), last_step=6), ALONE), trained()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    saver.save(1, model, optimizer, b"")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not (tmp_path / "step-00000001").exists()
    may_write.set()
    saver.wait()
    written = load_file(tmp_path / "step-00000001" / "model.safetensors")
    assert all(torch.equal(written[name], before[name]) for name in before)


def test_a_gpu_copies_while_training_continues(tmp_path, monkeypatch):
    """Only the thread waits for the copy, before it writes it."""
    order, waited, write = [], Event(), saving.write_whole
    event = SimpleNamespace(record=lambda: order.append("queued"), synchronize=lambda: order.append(waited.wait(30)))
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(saving, "write_whole", lambda *args: order.append("written") or write(*args))
    saver, (model, _) = Saver(tmp_path, Retention(Keep(), last_step=1), ALONE), trained()
    expected = {name: x.clone() for name, x in model.state_dict().items()}
    with Accelerator() as gpu:
        model.to("cuda")
        gpu.waits.clear()
        saver.save(1, model, None, b"")
        assert (gpu.waits, order) == ([], ["queued"])
    waited.set()
    saver.wait()
    assert order == ["queued", True, "written"]
    found = load_file(tmp_path / "step-00000001" / checkpoint.WEIGHTS)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_several_processes_copy_from_a_gpu_into_pinned_memory(device, tmp_path, monkeypatch):
    """torch's own writer would copy each part twice, through memory that is not pinned."""
    done, arguments, closed = Future(), {}, []
    done.set_result(None)
    find_gpu(monkeypatch)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(DefaultStager, "close", lambda stager: closed.append(stager))
    monkeypatch.setattr(state_dict_saver, "async_save", lambda tensors, **how: arguments.update(how) or done)
    monkeypatch.setattr(saving, "_group_of_all", lambda: None)
    monkeypatch.setattr(saving, "complete", lambda *_: None)
    saver, (model, _) = Saver(tmp_path, Retention(Keep(), last_step=1), ALONE), trained()
    monkeypatch.setattr(saver, "_group", object())
    with Accelerator():
        saver.save(1, model.to(device), None, b"")
        saver.wait()
    stager = arguments["async_stager"]
    if device == "cpu":
        assert stager is None
    else:
        assert stager._config == StagingOptions(True, False, False, True)
        assert closed == [stager]


def test_a_failure_of_the_thread_is_raised_in_the_training_loop(tmp_path, monkeypatch):
    def full(*_):
        raise UserError("no space left")

    monkeypatch.setattr(saving, "write_whole", full)
    saver = Saver(tmp_path, Retention(Keep(), last_step=6), ALONE)
    saver.save(1, *trained(), b"")
    with pytest.raises(UserError, match="no space left"):
        saver.save(2, *trained(), b"")
    assert not any(tmp_path.iterdir())


def test_files_are_for_whom_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        save_checkpoint(tmp_path, 1, *trained())
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes.pop("step-00000001") == 0o750
    assert len(modes) == 4
    assert set(modes.values()) == {0o640}


def test_half_of_one_that_a_kill_left_is_not_taken_for_one(saved):
    shutil.copytree(saved, saved.parent / f"{TEMPORARY}1-step-00000003")
    (saved.parent / "notes").mkdir()
    assert newest_checkpoint(saved.parent) == ((2, saved), [])
    assert newest_checkpoint(saved.parent / "nowhere") == (None, [])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


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
    """Make a file whose reads fail, as on a broken disk."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


DAMAGES = (flipped, truncated, emptied, scrambled, removed, piped, a_device, not_to_be_read)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "metrics.jsonl", "digests.json"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(saved, file, damage):
    newer = saved.parent / "step-00000003"
    save_checkpoint(saved.parent, 3, *trained(), b"{}\n{}\n")
    damage(newer / file)
    before, (named,) = newest_checkpoint(saved.parent)
    assert before == (2, saved)
    assert str(newer) in named
    assert file in named
    for_inference = newest_checkpoint(saved.parent, weights_only=True)[0]
    assert for_inference == ((3, newer) if file in ("optimizer.safetensors", "metrics.jsonl") else (2, saved))
    damage(saved / file)
    assert newest_checkpoint(saved.parent)[0] is None
    save_checkpoint(saved.parent, 3, *trained(), b"{}\n{}\n")
    assert newest_checkpoint(saved.parent) == ((3, newer), [])


def test_a_disk_that_cannot_read_is_damage(saved, monkeypatch):
    def unreadable(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(digests.hashlib, "file_digest", unreadable)
    assert "damaged" in newest_checkpoint(saved.parent)[1][0]


def test_one_that_the_training_removes_meanwhile_is_passed_over(saved, monkeypatch):
    """All its files are removed at once, so a half-removed checkpoint is never reported as damaged."""
    save_checkpoint(saved.parent, 3, *trained())
    verify, seen = checkpoint.verify, []

    def late(file, **remedy):
        if not seen:
            save_checkpoint(saved.parent, 4, *trained())
            save_checkpoint(saved.parent, 5, *trained())
        seen.append(file)
        verify(file, **remedy)

    monkeypatch.setattr(checkpoint, "verify", late)
    assert newest_checkpoint(saved.parent) == ((5, saved.parent / "step-00000005"), [])
    assert seen[0].parent.name == "step-00000003"


def test_a_file_that_vanishes_while_it_is_opened_is_an_error_of_the_user(saved, monkeypatch):
    """safetensors opens a file, and torch opens it again to map it. Training may remove the checkpoint in between."""

    def vanishing(path):
        path.unlink()
        return torch.UntypedStorage.from_file(str(path), False, 8)

    monkeypatch.setattr(checkpoint, "load_file", vanishing)
    with pytest.raises(UserError, match="No such file"):
        load_weights(saved, Decoder(config().model))


@pytest.mark.parametrize("drop", ["norm.weight", "layers.1.mlp.up.weight"])
def test_an_optimizer_without_one_of_the_parameters_is_refused(saved, drop):
    """AdamW would silently start from zero for it."""
    tensors = load_file(saved / "optimizer.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.startswith(drop)}, saved / "optimizer.safetensors")
    with pytest.raises(UserError, match=f"missing or unknown: {drop}"):
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
    with pytest.raises(UserError, match=f"does not match the config.*{name}"):
        load_weights(saved, Decoder(config(*overrides).model))


def test_weights_of_another_dtype_are_refused(saved):
    halved = {k: v.bfloat16() for k, v in load_file(saved / "model.safetensors").items()}
    save_file(halved, saved / "model.safetensors")
    with pytest.raises(UserError, match="does not match the config"):
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

    save_checkpoint(saved.parent, 3, *trained())
    monkeypatch.setattr(files.shutil, "rmtree", lambda path, ignore_errors=False: ignore_errors or killed(path))
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved.parent, 4, *trained())
    monkeypatch.undo()
    (step, path), _ = newest_checkpoint(saved.parent)
    assert (step, path.name) == (4, "step-00000004")
    load_weights(path, trained()[0])
    save_checkpoint(saved.parent, 5, *trained())
    files.remove_leftovers(saved.parent)
    assert sorted(path.name for path in saved.parent.iterdir()) == ["step-00000004", "step-00000005"]


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder \(no config.yaml\)"):
        from_pretrained(tmp_path)
    with pytest.raises(UserError, match="no such file or folder"):
        from_pretrained(tmp_path / "nowhere")


def test_a_folder_name_may_be_invalid_utf8(tmp_path):
    """safetensors cannot open files with such names."""
    model, optimizer = trained()
    save_checkpoint(tmp_path / "run\udce9", 2, model, optimizer)
    other, other_optimizer = trained()
    with torch.no_grad():
        next(other.parameters()).zero_()
    load_weights(tmp_path / "run\udce9" / "step-00000002", other)
    load_optimizer(tmp_path / "run\udce9" / "step-00000002", other, other_optimizer)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
