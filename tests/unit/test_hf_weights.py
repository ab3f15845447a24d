"""Which weights of a published folder are read; reading a pickle never runs code."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import archlab
from archlab.cli import app
from archlab.errors import UserError
from archlab.exchange.load import check_hf
from archlab.hf.folder import download, is_hub_id
from archlab.hf.imported import imported
from archlab.hf.tensors import Tensors

torch.set_num_threads(1)
WEIGHTS, PICKLED = "model.safetensors", "pytorch_model.bin"
IDS = torch.arange(12)[None]


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    model.save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def logits(folder: Path) -> Tensor:
    with torch.no_grad():
        return archlab.from_pretrained(folder)(IDS)


def theirs(folder: Path) -> Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(IDS).logits


def pickled(folder: Path, **how: Any) -> dict[str, Tensor]:
    """Replace the safetensors file with a torch.save file. Return the tensors."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / PICKLED, **how)
    return tensors


def sharded(folder: Path, tensors: dict[str, Tensor], stem: str, save: Any) -> None:
    names = list(tensors)
    where: dict[str, str] = {}
    ending = stem.rpartition(".")[2]
    for i, part in enumerate((names[:9], names[9:]), 1):
        file = f"{stem.rpartition('.')[0]}-{i:05d}-of-00002.{ending}"
        save({name: tensors[name] for name in part}, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / f"{stem}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


@pytest.mark.parametrize("others", ["an older index", "an older pickle"])
def test_if_there_are_several_weights_archlab_reads_the_same_as_transformers(hf: Path, others: str) -> None:
    older = {name: tensor * 0.5 for name, tensor in load_file(hf / WEIGHTS).items()}
    if others == "an older index":
        sharded(hf, older, WEIGHTS, save_file)
    else:
        torch.save(older, hf / PICKLED)
    torch.testing.assert_close(logits(hf), theirs(hf))
    (hf / WEIGHTS).unlink()
    changed = logits(hf)
    torch.testing.assert_close(changed, theirs(hf))


@pytest.mark.parametrize("form", ["whole", "before torch 1.6", "sharded"])
def test_files_of_torch_save(hf: Path, form: str) -> None:
    expected = logits(hf)
    tensors = pickled(hf, _use_new_zipfile_serialization=form != "before torch 1.6")
    if form == "sharded":
        (hf / PICKLED).unlink()
        sharded(hf, tensors, PICKLED, torch.save)
    assert check_hf(hf) == []
    assert torch.equal(logits(hf), expected)
    torch.testing.assert_close(expected, theirs(hf))


def test_a_pickle_is_mapped_and_not_read_as_a_whole(hf: Path) -> None:
    tensors = pickled(hf)
    read = Tensors(hf)
    file = (hf / PICKLED).read_bytes()
    for name, tensor in tensors.items():
        assert torch.equal(read.content(name), tensor)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(hf / PICKLED) in line]
    assert mapped
    assert (hf / PICKLED).read_bytes() == file


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.ran}",)


@pytest.mark.parametrize("form", ["whole", "before torch 1.6", "plain", "shard"])
def test_a_pickle_runs_nothing(hf: Path, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    evil, tensors = Evil(tmp_path / "RAN"), load_file(hf / WEIGHTS)
    (hf / WEIGHTS).unlink()
    if form == "plain":
        (hf / PICKLED).write_bytes(pickle.dumps({**tensors, "evil": evil}, protocol=2))
    elif form == "shard":
        sharded(hf, {**tensors, "evil": evil}, PICKLED, torch.save)  # pyright: ignore[reportArgumentType]
    else:
        torch.save({**tensors, "evil": evil}, hf / PICKLED, _use_new_zipfile_serialization=form == "whole")
    with pytest.raises(UserError, match=r"pytorch_model\S*\.bin: (not read, because its pickle|damaged)"):
        archlab.from_pretrained(hf)
    for command in (["inspect", hf], ["generate", hf], ["import", hf, "--out", tmp_path / "run"]):
        assert app.main([str(word) for word in command]) == 2
    assert not (tmp_path / "RAN").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [{"model": {"a": torch.ones(2)}}, {}, torch.ones(2), {"a": 3}, {1: torch.ones(2)}])
def test_a_pickle_of_something_else(hf: Path, content: Any) -> None:
    pickled(hf)
    torch.save(content, hf / PICKLED)
    with pytest.raises(
        UserError, match=r"pytorch_model\.bin: contains something other than tensors; allowed: a dictionary of tensors"
    ):
        archlab.from_pretrained(hf)


@pytest.mark.parametrize("kept", [0, 3, 50, 3000, -1])
def test_a_truncated_pickle(hf: Path, kept: int) -> None:
    pickled(hf)
    (hf / PICKLED).write_bytes((hf / PICKLED).read_bytes()[:kept])
    with pytest.raises(UserError, match=r"pytorch_model\.bin: (damaged|not read)"):
        archlab.from_pretrained(hf)


class Hub:
    """A fake hub with one model of two commits. Requested files appear in its cache."""

    def __init__(self, cache: Path, commits: dict[str | None, Path]) -> None:
        self.cache, self.commits, self.requested = cache, commits, list[tuple[str, str | None]]()

    def snapshot_download(self, repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        self.requested.append((repo_id, revision))
        commit = revision if revision in (known := {f.name: f for f in self.commits.values()}) else None
        published = known[commit] if commit else self.commits[revision]
        snapshot = self.cache / "models--some--model" / "snapshots" / published.name
        for pattern in allow_patterns:
            for file in published.glob(pattern):
                snapshot.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, snapshot)
        return str(snapshot)


@pytest.fixture
def published(hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    import huggingface_hub

    first, second = (Path(shutil.copytree(hf, tmp_path / commit)) for commit in ("c0ffee", "decade"))
    save_file({name: t * 0.5 for name, t in load_file(first / WEIGHTS).items()}, first / WEIGHTS, {"format": "pt"})
    (first / "modeling.py").write_text("raise ValueError")
    made = Hub(tmp_path / "hub", {"v1": first, None: second})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    return made


def test_a_revision_is_read_and_recorded(published: Hub, hf: Path, tmp_path: Path) -> None:
    assert torch.equal(archlab.from_pretrained("some/model")(IDS), logits(hf))
    old = archlab.from_pretrained("some/model@v1")(IDS)
    torch.testing.assert_close(old, theirs(published.commits["v1"]))
    assert not torch.equal(old, logits(hf))
    assert archlab.load_config("some/model@v1").model.d_model == 16
    for source in ("some/model@v1", "some/model@c0ffee"):
        out = tmp_path / f"run of {source[-2:]}"
        assert app.main(["import", source, "--out", str(out)]) == 0
        begun = imported(out)
        assert begun
        assert begun.source == "some/model@c0ffee", "a tag may move, a commit does not"
    assert {name for name, _ in published.requested} == {"some/model"}


def test_an_import_of_a_folder_records_it(hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["import", str(hf), "--out", str(tmp_path / "run")]) == 0
    begun = imported(tmp_path / "run")
    assert begun
    assert begun.source == str(hf)
    capsys.readouterr()
    assert app.main(["inspect", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained"] == f"not yet; as published in {hf}"


@pytest.mark.parametrize("both", [False, True])
def test_pickles_are_downloaded_only_if_there_is_nothing_else(published: Hub, both: bool) -> None:
    newest = published.commits[None]
    tensors = pickled(newest)
    if both:
        save_file(tensors, newest / WEIGHTS, {"format": "pt"})
    found = download("some/model")
    assert (found / PICKLED).exists() is not both
    assert published.requested == [("some/model", None)] + ([] if both else [("some/model", "decade")])


def test_names_that_could_be_hub_ids() -> None:
    good = ("a/b", "a-b/c.d", "a/b@main", "a/b@refs/pr/1", "a/b@step1000-tokens4B", "a/b@v1.0")
    assert all(map(is_hub_id, good))
    bad = ("a", "a@b", "a/b@", "a/b@/x", "a/b/c", "a/b@../x", "@a/b", "a/b@@c", "a/b@c d")
    assert not any(map(is_hub_id, bad))
