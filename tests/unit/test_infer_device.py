"""Generation on another device, tested without one: no tensor stays on the CPU."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import archlab
import tiny
from accelerator import Accelerator, FakeCuda, find_gpu
from archlab.cli.app import main
from archlab.data.tokenizer import train as train_tokenizer
from archlab.errors import UserError
from archlab.infer import sampling
from archlab.infer.answers import Answers
from archlab.infer.generate import generate
from archlab.infer.session import Session
from archlab.model.decoder import Decoder
from archlab.training.device import Device
from archlab.training.saving import save_checkpoint

TOKENS = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(0))
ONE_OF_EACH = [
    "model.position={kind: rope}",
    "model.position={kind: rope, scaling: {kind: dynamic, factor: 2, original_max_seq_len: 4}}",
    "model.position={kind: rope, scaling: {kind: longrope, factor: 2, original_max_seq_len: 11, "
    "short_factor: [1, 1.5, 2, 3], long_factor: [2, 3, 4, 5]}}",
    "model.position={kind: learned}",
    "model.position={kind: sinusoidal}",
    "model.position={kind: shaw}",
    "model.position={kind: transformer_xl}",
    "model.position={kind: t5}",
    "model.position={kind: alibi}",
    "model.position={kind: alibi, form: falcon}",
    "model.attention={n_heads: 4, window: 3, softcap: 2.0}",
    "model.attention={n_heads: 4, blocks: {size: 4, summary: 1}}",
    "model.embedding={scale: sqrt_d_model, round_scale: true, norm: true}",
]


def written(model: Decoder) -> Tensor:
    return generate(
        model, TOKENS, 3, 0.8, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=1, padding=[0, 3],
        end_of_text=7, prefill_chunk=4,
    )  # fmt: skip


@pytest.mark.parametrize("override", ONE_OF_EACH)
@pytest.mark.slow
def test_nothing_stays_behind(override: str) -> None:
    model = Decoder(tiny.config(override).model).eval()
    documents = TOKENS // 150
    with torch.no_grad():
        wanted, logits = written(model), model(TOKENS, documents=documents)
        with Accelerator():
            model = model.to("cuda")
            found, there = written(model), model(TOKENS.to("cuda"), documents=documents.to("cuda"))
    assert isinstance(found, FakeCuda)
    assert torch.equal(found.content, wanted)
    torch.testing.assert_close(there.content, logits)


@pytest.mark.slow
def test_a_tensor_that_stays_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = sampling.uniform
    model = Decoder(tiny.config().model).eval()
    monkeypatch.setattr(sampling, "uniform", lambda *given: Stubborn(uniform(*given)))
    with Accelerator():
        model = model.to("cuda")
        with pytest.raises(RuntimeError, match="tensors on cuda and on the cpu"):
            written(model)


@pytest.mark.parametrize("padding", [None, [0, 3]])
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.2}]
)
def test_writing_waits_for_a_gpu_once_per_look(settings: dict[str, float], padding: list[int] | None) -> None:
    """The first token is left out, because the prompt is checked before it."""
    model = Decoder(tiny.config().model).eval()
    setup = sampling.Sampling(**settings, seed=1)  # pyright: ignore[reportArgumentType]
    wanted = [token.tolist() for token in Session(model, TOKENS, 24, padding=padding).write(16, setup, 7)]
    with Accelerator() as gpu:
        session = Session(model.to("cuda"), TOKENS, 24, padding=padding)
        found, waits = list[list[int]](), list[int]()
        for token_B in session.write(16, setup, 7, checked_every=8):
            waits.append(len(gpu.waits))
            found.append(token_B.tolist())
            gpu.waits.clear()
    assert found == wanted
    assert waits[1:] == [0] * 6 + [1] + [0] * 7 + [1]


def test_on_a_gpu_answers_are_computed_in_batches_of_few_sizes() -> None:
    model, lengths = Decoder(tiny.config().model).eval(), [*range(10, 200)] * 3
    with Accelerator():
        there = Answers(model.to("cuda"), train_tokenizer(["a b"], 300), ())
        batches = list(there._batches(range(len(lengths)), lengths))
    assert sorted(i for batch in batches for i in batch) == [*range(len(lengths))]
    assert all(len(batch) * lengths[batch[0]] <= there.batch_tokens for batch in batches)
    assert {len(batch) for batch in batches[:-1]} <= {2**n for n in range(14)}


def test_answers_wait_for_a_gpu_twice_per_look() -> None:
    """One wait looks whether all texts have ended, and one reads the new tokens."""
    model = Decoder(tiny.config().model).eval()
    tokenizer = train_tokenizer(["the cat sat on the mat. " * 9], 300)
    prompts, setup = [(1, 2, 3), (4,)], sampling.Sampling(0.8, seed=1)
    for stop in ([], ["a"]):
        texts = dict(Answers(model, tokenizer, (7,)).generated(prompts, 33, setup, stop))
        counts = list[int]()
        for n in (17, 33):
            with Accelerator() as gpu:
                there = Answers(copy.deepcopy(model).to("cuda"), tokenizer, (7,))
                gpu.waits.clear()
                found = dict(there.generated(prompts, n, setup, stop))
                counts.append(len(gpu.waits))
        assert found == texts
        assert stop or counts[1] - counts[0] == 2, counts


@pytest.mark.parametrize(
    ("override", "padding", "masked"),
    [
        ("model.attention={n_heads: 4}", None, [False] * 7),
        ("model.attention={n_heads: 4, n_kv_heads: 2}", None, [False] * 7),
        ("model.attention={n_heads: 4}", [0, 3], [True] * 7),
        ("model.attention={n_heads: 4, window: 12}", None, [False] * 7),  # its cache keeps no other keys
        ("model.attention={n_heads: 4, window: 12, global_tokens: 1}", None, [False] * 3 + [True] * 4),
        ("model.attention={n_heads: 4, blocks: {size: 12, summary: 0}}", None, [False] * 3 + [True] * 4),
    ],
)
def test_on_a_gpu_a_step_has_a_mask_only_if_it_hides_keys(
    override: str, padding: list[int] | None, masked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Decoder(tiny.config(override, "model.n_layers=1").model).eval()
    wanted = generate(model, TOKENS, len(masked) + 1, padding=padding)
    found = list[bool]()
    fused = torch.nn.functional.scaled_dot_product_attention

    def seen(*tensors: Tensor, attn_mask: Tensor | None, is_causal: bool, **more: Any) -> Tensor:
        found.append(attn_mask is not None)
        return fused(*tensors, attn_mask=attn_mask, is_causal=is_causal, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
    with Accelerator():
        there = generate(model.to("cuda"), TOKENS, len(masked) + 1, padding=padding)
    assert isinstance(there, FakeCuda)
    assert torch.equal(there.content, wanted)
    assert found[1:] == masked


class Stubborn:
    """A tensor that is not moved to the device."""

    def __init__(self, content: Tensor) -> None:
        self.content = content

    def pin_memory(self) -> "Stubborn":
        return self

    def to(self, _: object, *, non_blocking: bool) -> Tensor:
        return self.content


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    config = tiny.config()
    (tmp_path / "config.yaml").write_text(f"model: {config.model.model_dump_json()}")
    train_tokenizer(["the cat sat on the mat. " * 9], 300).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "checkpoints").mkdir()
    save_checkpoint(tmp_path / "checkpoints", 1, Decoder(config.model), optimizer=None)
    return tmp_path


def test_from_pretrained_takes_a_device_and_a_format(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "archlab.infer.load.torch_device", lambda name: torch.device("meta" if name == "cuda" else name)
    )
    for stored in (archlab.from_pretrained(run_folder), archlab.from_pretrained(run_folder, "auto")):
        assert (stored.embedding.weight.device.type, stored.embedding.weight.dtype) == ("cpu", torch.float32)
    found = archlab.from_pretrained(run_folder, torch.bfloat16, "cuda")
    assert {(x.device.type, x.dtype) for x in found.parameters()} == {("meta", torch.bfloat16)}
    archlab.save_pretrained(archlab.from_pretrained(run_folder), run_folder / "hf")
    found = archlab.from_pretrained(run_folder / "hf", "auto", device="cuda")
    assert {(x.device.type, x.dtype) for x in found.parameters()} == {("meta", torch.float32)}


@pytest.mark.slow
def test_generate_uses_the_gpu_if_there_is_one(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = list[tuple[str, torch.dtype]]()
    forward = Decoder.hidden
    monkeypatch.setattr(
        Decoder, "hidden",
        lambda self, tokens, *more: used.append((tokens.device.type, self.embedding.weight.dtype))
        or forward(self, tokens, *more),
    )  # fmt: skip
    command = ["generate", str(run_folder), "--prompt", "the cat", "--max-new-tokens", "5", "--seed", "1"]
    assert main([*command, "--device", "cuda"]) == 2
    assert capsys.readouterr() == ("", "--device: cuda, but torch finds no CUDA device here; allowed: auto, cpu\n")
    assert main([*command, "--dtype", "bfloat16"]) == 0
    assert set(used) == {("cpu", torch.bfloat16)}
    assert main(command) == 0
    *_, here = capsys.readouterr().out.split("the cat")
    find_gpu(monkeypatch)
    for more, device in (([], "cuda"), (["--device", "cuda"], "cuda"), (["--device", "cpu"], "cpu")):
        used.clear()
        with Accelerator():
            assert main([*command, *more]) == 0
        assert set(used) == {(device, torch.float32)}
        assert capsys.readouterr().out == f"the cat{here}"


class Products(TorchDispatchMode):
    """Records the matrices that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = list[Tensor]()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is torch.ops.aten.mm.default:
            self.factors += args
        return op(*args, **(kwargs or {}))


def test_the_peak_is_measured_with_random_numbers_from_its_own_generator() -> None:
    before = torch.get_rng_state()
    with Products() as products:
        assert Device("cpu", torch.bfloat16).peak_flops() > 0
    assert torch.equal(torch.get_rng_state(), before)
    for factor in products.factors:
        assert factor.dtype is torch.bfloat16
        assert factor.float().std() == pytest.approx(1, abs=0.01)
        assert factor.float().mean() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"dtype": "int8"}, "dtype: 'int8'; allowed: auto, float32, bfloat16"),
        ({"dtype": "half-precision"}, "dtype: 'half-precision'; allowed"),
        ({"device": "nope"}, "device: 'nope'; allowed: cpu, cuda"),
        ({"device": ""}, "device: ''; allowed: cpu, cuda"),
        ({"device": "meta"}, "device: 'meta'; allowed: cpu, cuda"),
    ],
)
def test_an_invalid_dtype_or_device_is_refused(how: dict[str, str], message: str, run_folder: Path) -> None:
    with pytest.raises(UserError, match=message):
        archlab.from_pretrained(run_folder, **how)  # pyright: ignore[reportArgumentType]
    assert archlab.from_pretrained(run_folder, dtype="bfloat16").embedding.weight.dtype == torch.bfloat16


def test_a_missing_gpu_is_refused(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device: cuda:1, but torch finds no CUDA device here; allowed: cpu"):
        archlab.from_pretrained(run_folder, device="cuda:1")
