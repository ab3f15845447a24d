"""Training with LoRA in an imported folder, from the first step to the exported model."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from archlab.cli import app
from archlab.errors import UserError
from archlab.infer.import_export import import_model
from archlab.infer.load import from_pretrained
from archlab.model.decoder import Decoder
from archlab.model.lora import LoraProjection, is_added
from archlab.training.callback import Callback
from archlab.training.checkpoint import load_weights, newest_checkpoint
from archlab.training.run_folder import RunFolder
from archlab.training.shard import sharded
from archlab.training.train import train
from archlab.training.trained_weights import open_weights
from archlab.training.world import ALONE
from tests.shared import tiny
from tests.shared.tiny import Killed, losses

pytestmark = pytest.mark.usefixtures("shared_cache")
LORA = ("train.lora={rank: 4, alpha: 12, dropout: 0.1}", "train.lr=0.01", "train.checkpoint_every=2")
TOKENS = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(0))


def config(*overrides, **options):
    """Return the tiny model in the form in which it is imported, with the overrides."""
    return tiny.config("model.norm.cast=before_weight", *overrides, **options)


@pytest.fixture(scope="module")
def published(text, tmp_path_factory):
    """Hugging Face folder of a trained model."""
    home = tmp_path_factory.mktemp("published")
    train(config(data=text), home / "run", Callback())
    assert app.main(["export", str(home / "run"), "--out", str(home / "hf")]) == 0
    return home / "hf"


@pytest.fixture
def start(published, tmp_path):
    import_model(str(published), tmp_path / "imported")
    return tmp_path / "imported"


@pytest.fixture(scope="module")
def tuned(published, text, tmp_path_factory):
    """Run folder that was trained with LoRA to the end."""
    run = tmp_path_factory.mktemp("tuned") / "run"
    import_model(str(published), run)
    train(config(*LORA, data=text), run, Callback())
    return run


class Notes(Callback):
    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


def unmerged(run, *overrides) -> Decoder:
    """Return the run's model with its added matrices."""
    settings = config(*LORA, *overrides)
    model = sharded(settings.model, settings.train, "cpu", ALONE)
    newest, _ = newest_checkpoint(run / "checkpoints")
    assert newest is not None
    load_weights(newest[1], model)
    return model.eval()


def test_training_begins_at_the_published_weights_and_improves_them(published, tuned, start, text):
    train(config("train.tokens=64", "train.lr=1e-9", data=text), start, Callback())
    without, *_ = evaluations(start)
    first, *_, last = evaluations(tuned)
    assert first == without
    assert last < first


def evaluations(run):
    return [line["held_out_loss"] for line in RunFolder(run).metrics() if "held_out_loss" in line]


def test_merged_and_unmerged_logits_are_equal(tuned):
    merged, model = from_pretrained(tuned), unmerged(tuned)
    assert not any(isinstance(module, LoraProjection) for module in merged.modules())
    assert all(projection.lora_b.any() for projection in model.modules() if isinstance(projection, LoraProjection))
    torch.testing.assert_close(merged(TOKENS), model(TOKENS))
    up = unmerged(tuned).double().get_submodule("layers.1.mlp.up")
    change = 12 / 4 * up.get_parameter("lora_b") @ up.get_parameter("lora_a")
    expected, found = up.get_parameter("weight") + change, merged.get_parameter("layers.1.mlp.up.weight")
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
    assert change.abs().max() > 1e-4


def test_in_float64_merging_changes_nothing(tuned):
    model = unmerged(tuned).double()
    before = model(TOKENS)
    for projection in [m for m in model.modules() if isinstance(m, LoraProjection)]:
        projection.weight += projection.scale * projection.lora_b.detach() @ projection.lora_a.detach()
        projection.lora_b.data.zero_()
    torch.testing.assert_close(model(TOKENS), before, rtol=1e-12, atol=1e-12)


def test_frozen_weights_are_those_of_the_start(published, tuned):
    start, model = from_pretrained(published).state_dict(), unmerged(tuned).state_dict()
    assert {name for name in model if not is_added(name)} == start.keys()
    assert all(torch.equal(model[name], value) for name, value in start.items())


def test_only_added_matrices_have_optimizer_state(start, text):
    with pytest.raises(RuntimeError, match="killed"):
        train(config(*LORA, data=text), start, Killed())
    newest, _ = newest_checkpoint(start / "checkpoints")
    assert newest is not None
    owners = {name.rpartition("/")[0] for name in load_file(newest[1] / "optimizer.safetensors")}
    assert owners == {name for name in load_file(newest[1] / "model.safetensors") if is_added(name)}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_resumes_exactly(start, tmp_path, text, optimizer):
    settings = config(*LORA, f"train.optimizer.kind={optimizer}", data=text)
    whole = shutil.copytree(start, tmp_path / "whole")
    train(settings, whole, Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, start, Killed())
    train(settings, start, Callback())
    assert losses(start) == losses(whole)
    one, other = (from_pretrained(run).state_dict() for run in (start, whole))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_going_back_to_the_start_also_takes_back_the_matrices(start, tmp_path, text):
    """The only checkpoint before the spike is that of the imported weights."""
    still = shutil.copytree(start, tmp_path / "still")
    train(config("train.tokens=1024", "train.lr=1e-12", data=text), still, Callback())
    spikes = "train.spikes={action: rewind, window: 2, deviations: 0.001}"
    run = ("train.lora={}", "train.lr=10", "train.warmup=0", "train.checkpoint_every=1000", spikes)
    train(config(*run, data=text), start, Callback())
    lines = RunFolder(start).metrics()
    passed_over = sum(line.get("batches_passed_over", 0) for line in lines)
    (first,) = (line["loss"] for line in lines if line["step"] == 1 and "lr" in line)
    assert 0 < passed_over < 16
    assert first == pytest.approx(losses(still)[passed_over], rel=1e-6)


def test_exported_weights_are_merged_before_they_are_rounded(tuned, tmp_path):
    assert app.main(["export", str(tuned), "--out", str(tmp_path / "hf"), "--dtype", "bfloat16"]) == 0
    merged, exported = from_pretrained(tuned), from_pretrained(tmp_path / "hf")
    for name, value in merged.state_dict().items():
        assert torch.equal(exported.state_dict()[name], value.to(torch.bfloat16)), name


def test_commands_read_the_folder(tuned, capsys):
    assert app.main(["generate", str(tuned), "--prompt", "the cat", "--max-new-tokens", "4"]) == 0
    assert app.main(["eval", str(tuned)]) == 0
    assert "after 10 steps" in capsys.readouterr().out
    summary = RunFolder(tuned).summary()
    assert summary is not None
    assert summary.parameters == sum(p.numel() for p in from_pretrained(tuned).parameters())


def test_a_transplant_reads_merged_weights(tuned):
    start, merged = open_weights(str(tuned)), from_pretrained(tuned).state_dict()
    assert start.weights.tensors.keys() == merged.keys()
    assert all(torch.equal(tensor.read(), merged[name]) for name, tensor in start.weights.tensors.items())


def test_random_weights_are_refused(text, tmp_path):
    with pytest.raises(UserError, match=r"train\.lora: LoRA changes trained weights, but this run begins with random"):
        train(config(*LORA, data=text), tmp_path / "run", Callback())
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_probes_measure_what_is_trained(start, text):
    train(config("train.lora.modules=[down]", "train.probe_every=5", data=text), start, Callback())
    probes = [line["probes"] for line in RunFolder(start).metrics() if "probes" in line]
    assert len(probes) == 3
    assert all(value > 0 for probe in probes for value in probe["gradient"])
    assert all(value > 0 for value in probes[-1]["update_ratio"])


def test_the_user_hears_how_much_is_trained(start, text):
    notes = Notes()
    train(config("train.lora={rank: 2, modules: [q, v]}", data=text), start, notes)
    total = sum(p.numel() for p in from_pretrained(start).parameters())
    added = 2 * 2 * ((32 + 32) + (32 + 16))
    assert f"LoRA trains {added:,} of {total + added:,} weights" in notes.notes
