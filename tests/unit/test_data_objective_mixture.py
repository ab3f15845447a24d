"""Mixtures of objectives: each window has one of several objectives, perhaps a mode token, and padding."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archlab.config.io import build_config
from archlab.config.objective import Mixture, Objective, Prefix, SpanCorruption, ever_hides_tokens, score_meaning
from archlab.config.schema import Config
from archlab.config.training import check_objective, resolve_train, tokens_read
from archlab.data import tokenizer as bpe
from archlab.data.batch import Batch, HeldOut
from archlab.data.objective_mixture import windows_of_parts
from archlab.data.objectives import Batches, batch_of, random_batch
from archlab.data.open import open_training_data
from archlab.data.prepare import prepare
from archlab.data.reserved import SpecialIds, special_ids
from archlab.data.tasks.dice import Dice
from archlab.data.text_data import distribute_samples
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.infer.load import load_codec
from archlab.model.decoder import Decoder
from archlab.pricing.work import training_flops, visible_training_flops
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.run_folder import RunFolder
from archlab.training.step import hidden_and_targets, update
from archlab.training.train import train
from plugin_files import write
from plugin_state import as_a_new_process
from scores import evaluate, score
from tiny import MODEL, TRAIN, Killed, losses

pytestmark = pytest.mark.usefixtures("shared_cache")

CPU = Device("cpu", torch.float32)
END, N_TOKENS = 0, 300
PARTS: dict[str, Any] = {
    "r": {"objective": {"kind": "span_corruption"}, "share": 0.4, "mode": "R"},
    "s": {"objective": {"kind": "prefix", "rate": 0.25}, "share": 0.2, "mode": "S"},
    "x": {"objective": {"kind": "span_corruption", "rate": 0.5, "mean_span": 2.0}, "share": 0.4},
}
"""Two kinds of denoising and a prefix. Two parts have a mode token."""
OF_TEXT: dict[str, Any] = {
    "causal": {"objective": {"kind": "next_token"}, "mode": "C"},
    "prefix": {"objective": {"kind": "prefix"}, "share": 2.0},
}
"""All predicted tokens are tokens of the text."""
RESERVED = "data.reserve=[sentinels:4,mode:R,mode:S,mode:C]"
PREFIX_STACK, ENCODER = "model.attention.visibility=prefix", "model.encoder.n_layers=1"
STACKS = pytest.mark.parametrize("has_encoder", [False, True], ids=["one stack", "encoder"])


def mixture(parts: dict[str, Any] = PARTS) -> Mixture:
    return Mixture.model_validate({"parts": parts})


def config(*overrides: str, parts: dict[str, Any] = PARTS, data: Path | str = "python-stdlib") -> Config:
    raw = {"model": MODEL, "train": TRAIN | {"objective": {"kind": "mixture", "parts": parts}}}
    return build_config(raw | {"data": {"path": str(data)}}, overrides, "tiny")


def random_windows(rows: int = 60, length: int = 24, seed: int = 0) -> Windows:
    return Windows(np.random.default_rng(seed).integers(1, 200, (rows, length + 1)))


def special(objective: Objective, n_tokens: int = 24) -> SpecialIds:
    return SpecialIds.at_the_end(N_TOKENS, objective.reserved(n_tokens))


def batch(objective: Objective, windows: Windows, *, has_encoder: bool = False, first: int = 0) -> Batch:
    ids, dice = special(objective, windows.tokens.shape[1] - 1), Dice(0, "train", first, len(windows.tokens))
    return batch_of(objective, windows, ids, dice, has_encoder=has_encoder)


def part_of_each(objective: Mixture, dice: Dice) -> list[str]:
    rows = windows_of_parts(objective, dice)
    return [next(name for name, own in rows.items() if i in own) for i in range(dice.count)]


# --- shares -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_any_run_of_windows_is_divided_by_the_shares(seed: int) -> None:
    """This also holds for every second or third window, which a mixture of texts may take from one source."""
    objective, n = mixture(), 20_000
    for name, rows in windows_of_parts(objective, Dice(seed, "train", 0, n)).items():
        has_part = np.isin(np.arange(n), rows)
        for step in (1, 2, 3, 7):
            some = has_part[::step]
            deviation = some.cumsum() - objective.parts[name].share * np.arange(1, len(some) + 1)
            assert np.abs(deviation).max() < 6, (name, step)


def test_a_source_of_text_has_all_parts() -> None:
    """Webster's method would give each of two equal sources always the same one of two equal parts."""
    source, _ = distribute_samples([1, 1], range(1000))
    half = mixture({name: {"objective": {"kind": "prefix"}} for name in "ab"})
    rows = windows_of_parts(half, Dice(0, "train", 0, 1000))
    for own in rows.values():
        assert np.bincount(source[own]).tolist() == pytest.approx([250, 250], abs=5)


def test_the_part_depends_on_the_seed_and_the_window_alone() -> None:
    whole = part_of_each(mixture(), Dice(3, "train", 0, 40))
    assert [
        *part_of_each(mixture(), Dice(3, "train", 0, 15)),
        *part_of_each(mixture(), Dice(3, "train", 15, 25)),
    ] == whole
    assert part_of_each(mixture(), Dice(4, "train", 0, 40)) != whole
    in_other_order = mixture(dict(reversed(PARTS.items())))
    assert part_of_each(in_other_order, Dice(3, "train", 0, 40)) == whole


# --- batches ------------------------------------------------------------------------------------------------------


def without_padding(made: Batch, row: int) -> dict[str, list[int]]:
    """Return what the model reads of a window, and its targets by position."""
    n = made.tokens.shape[1] if made.lengths is None else int(made.lengths[row])
    counted = np.ones(n, bool) if made.counted is None else made.counted[row, :n]
    assert made.counted is None or not made.counted[row, n:].any()
    read = {"tokens": made.tokens[row, :n].tolist(), "counted": np.flatnonzero(counted).tolist()}
    read["targets"] = made.targets[row, :n][counted].tolist()
    if made.source is not None:
        n_source = made.source.shape[1] if made.source_lengths is None else int(made.source_lengths[row])
        return read | {"source": made.source[row, :n_source].tolist()}
    return read | {"prefix": [1 if made.prefix is None else int(made.prefix[row])]}


def with_mode(read: dict[str, list[int]], token: int) -> dict[str, list[int]]:
    """Return the same window after a mode token."""
    if "source" in read:
        return read | {"source": [token, *read["source"]]}
    moved = {name: [position + 1 for position in read[name]] for name in ("counted", "prefix")}
    return read | moved | {"tokens": [token, *read["tokens"]]}


@pytest.mark.parametrize(("parts", "has_encoder"), [(PARTS, False), (PARTS, True), (OF_TEXT, False)])
def test_each_window_is_that_of_its_objective_after_its_mode_token(parts: dict[str, Any], has_encoder: bool) -> None:
    objective, windows = mixture(parts), random_windows()
    made, ids, dice = batch(objective, windows, has_encoder=has_encoder), special(objective), Dice(0, "train", 0, 60)
    alone = {
        name: batch_of(part.objective, windows, ids, dice, has_encoder=has_encoder)
        for name, part in objective.parts.items()
    }
    for row, name in enumerate(part_of_each(objective, dice)):
        expected, mode = without_padding(alone[name], row), objective.parts[name].mode
        assert without_padding(made, row) == (with_mode(expected, ids.modes[mode]) if mode else expected)
    read = made.tokens.shape[1], 0 if made.source is None else made.source.shape[1]
    assert read == objective.tokens_read(24, has_encoder=has_encoder)


@STACKS
def test_a_batch_is_the_same_in_parts_and_has_the_same_shape(has_encoder: bool) -> None:
    objective, windows = mixture(), random_windows(12)
    whole = batch(objective, windows, has_encoder=has_encoder)
    for row in range(12):
        one = batch(objective, Windows(windows.tokens[row : row + 1]), has_encoder=has_encoder, first=row)
        for name, array in vars(whole).items():
            own = getattr(one, name)
            assert (own is None) == (array is None)
            assert array is None or np.array_equal(own[0], array[row]), name


@STACKS
@pytest.mark.parametrize("parts", [PARTS, {name: PARTS[name] for name in "sx"}])
def test_padding_does_not_leak(parts: dict[str, Any], has_encoder: bool) -> None:
    settings = config(ENCODER if has_encoder else PREFIX_STACK, parts=parts)
    model = Decoder(settings.model, seed=1).eval()
    made = batch(mixture(parts), random_windows(8), has_encoder=has_encoder)
    other: dict[str, Any] = {}
    for name, lengths in (("tokens", made.lengths), ("targets", made.lengths), ("source", made.source_lengths)):
        if (array := getattr(made, name)) is not None:
            is_padding = np.arange(array.shape[1]) >= lengths[:, None]
            assert is_padding.any()
            other[name] = np.where(is_padding, 77, array)
    with torch.no_grad():
        (hidden, targets), (same, same_targets) = (
            hidden_and_targets(model, some, CPU) for some in (made, replace(made, **other))
        )
    assert torch.equal(targets, same_targets)
    torch.testing.assert_close(same, hidden)


def test_next_token_in_a_prefix_stack_is_causal() -> None:
    """A part of next tokens has the loss that the same weights have in a causal stack."""
    causal = build_config({"model": MODEL, "train": TRAIN}, (), "tiny")
    settings = config(PREFIX_STACK, parts={"c": {"objective": {"kind": "next_token"}}})
    models = Decoder(causal.model, seed=1).eval(), Decoder(settings.model, seed=1).eval()
    windows = random_windows(5)
    batches = batch(causal.train.objective, windows), batch(settings.train.objective, windows)
    with torch.no_grad():
        hidden = [hidden_and_targets(*pair, CPU) for pair in zip(models, batches, strict=True)]
    torch.testing.assert_close(hidden[1], hidden[0])


@STACKS
def test_random_batches_and_flops_have_the_shape_of_the_mixture(has_encoder: bool) -> None:
    settings = config(ENCODER if has_encoder else PREFIX_STACK)
    stack, source = tokens_read(settings)
    made = random_batch(settings, random_windows(3, 16))
    assert (made.tokens.shape, made.source is not None) == ((3, stack), has_encoder)
    predicted = random_batch(settings, random_windows(3000, 16)).counted.sum(1).mean()
    whole = training_flops(settings.model, stack, source=source, predicted=predicted) * stack
    assert visible_training_flops(settings) * 16 == pytest.approx(whole, rel=0.01)  # the parts of 3,000 windows


@STACKS
def test_micro_batches_make_the_same_update_as_the_whole_batch(has_encoder: bool) -> None:
    stack = ENCODER if has_encoder else PREFIX_STACK
    results = []
    for micro in (16, 64):
        settings = config(stack, f"train.micro_batch_tokens={micro}")
        model, trained = Decoder(settings.model).train(), resolve_train(settings)
        made = batch(settings.train.objective, random_windows(4, 16), has_encoder=has_encoder)
        results.append(update(model, make_optimizer(model, trained), made, trained, 0, CPU))
    assert results[1].loss == pytest.approx(results[0].loss, rel=1e-6)
    assert results[1].grad_norm == pytest.approx(results[0].grad_norm, rel=1e-5)


# --- scores -------------------------------------------------------------------------------------------------------


def test_bits_per_byte_are_those_of_the_predicted_tokens() -> None:
    settings, objective = config(PREFIX_STACK, parts=OF_TEXT), mixture(OF_TEXT)
    model, token_bytes = Decoder(settings.model, seed=2).eval(), np.array([0, *range(1, N_TOKENS)]) % 7
    tokens = random_windows(9, 20).tokens
    tokens[:, 4::9] = END
    windows = Windows.of_text(tokens, token_bytes, (END,), continues=np.zeros(9, bool))
    dice = Dice(0, "train", 0, 9)
    made, ids = batch(objective, windows), special(objective, 20)
    found = evaluate(model, HeldOut(made, windows, parts=windows_of_parts(objective, dice)), CPU, batch_tokens=60)
    nats, n_bytes, of_parts = 0.0, 0, {name: list[float]() for name in OF_TEXT}
    for row, name in enumerate(part_of_each(objective, dice)):
        text, given = tokens[row].tolist(), 1
        if name == "prefix":
            given = int(made.prefix[row])  # the length that its objective drew
        inputs = [ids.modes["C"], *text[:-1]] if name == "causal" else text[:-1]
        offset = len(inputs) - len(text) + 1
        with torch.no_grad():
            logits = model(torch.tensor([inputs]), prefix=torch.tensor([given + offset]))[0].double()
        for position in range(given, len(text)):
            if n := 0 if text[position] == END else int(token_bytes[text[position]]):
                loss = -logits.log_softmax(-1)[position - 1 + offset, text[position]].item()
                nats, n_bytes = nats + loss, n_bytes + n
                of_parts[name].append(loss)
    assert found.measure == "bits_per_byte"
    assert found.bits_per_byte == pytest.approx(nats / np.log(2) / n_bytes, rel=1e-6)
    assert found.loss_of_parts == pytest.approx({name: np.mean(values) for name, values in of_parts.items()})
    assert {"held_out_loss.causal", "held_out_loss.prefix"} <= found.measures().keys()


def test_a_mixture_with_hidden_tokens_is_scored_by_the_loss_per_predicted_token() -> None:
    assert (ever_hides_tokens(mixture()), ever_hides_tokens(mixture(OF_TEXT))) == (True, False)
    settings, windows = config(PREFIX_STACK), random_windows(6)
    model, made = Decoder(settings.model).eval(), batch(mixture(), random_windows(6))
    rows = windows_of_parts(mixture(), Dice(0, "train", 0, 6))
    found = evaluate(model, HeldOut(made, windows, hides_tokens=True, parts=rows), CPU)
    assert made.counted is not None
    n_counted = {name: made.counted[own].sum() for name, own in rows.items()}
    mean = sum(found.loss_of_parts[name] * n for name, n in n_counted.items()) / sum(n_counted.values())
    assert found.denoising_loss == pytest.approx(mean, rel=1e-6)


def test_scores_mean_the_same_if_the_parts_are_the_same() -> None:
    assert score_meaning(mixture()) == score_meaning(mixture(dict(reversed(PARTS.items()))))
    assert score_meaning(mixture()) != score_meaning(mixture(PARTS | {"r": PARTS["r"] | {"share": 0.5}}))
    assert score_meaning(mixture()) != score_meaning(mixture(PARTS | {"r": PARTS["r"] | {"mode": "Q"}}))


# --- runs ---------------------------------------------------------------------------------------------------------

SETTINGS = ("train.checkpoint_every=3", "train.micro_batch_tokens=32", "train.lr=1e-2")


@pytest.mark.parametrize(
    ("parts", "stack"),
    [(PARTS, PREFIX_STACK), (PARTS, ENCODER), (OF_TEXT, PREFIX_STACK)],
    ids=["one stack", "encoder", "text"],
)
def test_a_run_learns_resumes_exactly_and_is_scored_by_eval(
    parts: dict[str, Any], stack: str, text: Path, tmp_path: Path
) -> None:
    settings = config(stack, RESERVED, *SETTINGS, parts=parts, data=text)
    whole = train(settings, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    assert train(settings, tmp_path / "parts", Callback()).score == whole.score
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]
    again = score(str(tmp_path / "whole"), (), 256)
    name = "bits_per_byte" if parts is OF_TEXT else "denoising_loss"
    assert getattr(again, name) == pytest.approx(getattr(whole, name), rel=1e-6)
    *_, last = [line for line in RunFolder(tmp_path / "whole").metrics() if "held_out_loss" in line]
    assert all(last[f"held_out_loss.{part}"] > 0 for part in parts)


def test_held_out_windows_are_the_same_for_all_seeds(text: Path) -> None:
    first, second = (
        Batches.of(settings, open_training_data(settings.data, settings.model.vocab_size)).held_out(16, 256)
        for settings in (config(PREFIX_STACK, RESERVED, f"train.seed={seed}", data=text) for seed in (0, 1))
    )
    assert first.batch.tokens.tolist() == second.batch.tokens.tolist()
    assert {name: rows.tolist() for name, rows in first.parts.items()} == {
        name: rows.tolist() for name, rows in second.parts.items()
    }
    assert sorted(np.concatenate(list(first.parts.values()))) == list(range(len(first.batch.tokens)))


def test_a_prompt_begins_with_the_name_of_its_mode(text: Path, tmp_path: Path) -> None:
    train(config(PREFIX_STACK, RESERVED, data=text), tmp_path / "run", Callback())
    codec = load_codec(tmp_path / "run")
    plain, with_a_mode, other = (codec.encode(prompt) for prompt in ("the cat", "[S]the cat", "[T]the cat"))
    assert with_a_mode == [codec.tokenizer.token_to_id("[S]"), *plain]
    assert codec.source("[S]the cat") == with_a_mode
    assert with_a_mode[0] not in codec.target("[S]the cat")  # in a target, the name is text
    assert set(other).isdisjoint(with_a_mode[:1])


# --- reserved tokens ----------------------------------------------------------------------------------------------


def test_mode_tokens_are_reserved_and_found_by_name(text: Path, tmp_path: Path) -> None:
    made = prepare(
        [str(text)], tmp_path / "data", vocab_size=300, held_out=0.1, reserve=["sentinels:2", "mode:R", "mode:S"]
    )
    found = special_ids(made.tokenizer, made.manifest.vocab_size, made.document_tokens)
    assert (found.sentinels, found.modes) == ((296, 297), {"R": 298, "S": 299})
    assert made.train.read(0, len(made.train)).max() < 296
    assert bpe.encode(made.tokenizer, ["a [R] b"])[0].max() < 296  # in a text, the name is text


def test_a_given_tokenizer_keeps_its_own_mode_tokens(text: Path, tmp_path: Path) -> None:
    tokenizer = bpe.train([text.read_text()], 290)
    tokenizer.add_special_tokens(["[NLU]", "[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]"])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    reserve = ["mode:NLU", "mode:NLG"]
    made = prepare([str(text)], tmp_path / "data", tokenizer=tmp_path / "tokenizer.json", held_out=0.1, reserve=reserve)
    found = special_ids(made.tokenizer, made.manifest.vocab_size, ())
    assert (found.modes, found.mask) == ({"NLU": 290, "NLG": 296}, 291)


# --- errors -------------------------------------------------------------------------------------------------------


def part(name: str, value: str) -> str:
    return f"train.objective.parts.{name}={value}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            (part("r.objective", "{kind: masked}"),),
            r"parts.r.objective.kind  'masked'; allowed: next_token, prefix, span_corruption$",
        ),
        (
            (part("r.objective", "{kind: seq2seq}"),),
            r"parts.r.objective.kind  'seq2seq'; allowed: next_token, prefix, span_corruption$",
        ),
        (
            (part("r.objective", "{kind: mixture, parts: {a: {objective: {kind: prefix}}}}"),),
            r"parts.r.objective.kind  'mixture'; .*allowed: next_token, prefix, span_corruption$",
        ),
        ((part("r.share", "0"),), r"parts.r.share  0; allowed: at least"),
        ((part("r.mode", "'[R]'"),), r"parts.r.mode  '\[R\]'; allowed: up to 32 letters, digits and _, as in R"),
        (
            (part("r.mode", "MASK"),),
            r"parts.r.mode  'MASK'; allowed: other names, because \[MASK\] is a special token of BERT",
        ),
        ((part("r.shar", "1"),), r"parts.r.shar  unknown; did you mean share\?"),
        (
            (part("x.objective.mean_span", "1"), part("x.objective.rate", "0.9")),
            r"parts  x: mean_span 1.0 and rate 0.9",
        ),
        ((), r"visibility  causal; .* allowed: prefix; or .*next_token"),
        (
            (ENCODER, part("s.objective", "{kind: next_token}")),
            r"parts.s.objective.kind  next_token has no source text .*; allowed: prefix or span_corruption$",
        ),
        ((PREFIX_STACK,), r"mixture needs 4 sentinels for windows of 16 .* has none; .*\[sentinels:4,mode:R,mode:S\]"),
        ((PREFIX_STACK, "data.reserve=[sentinels:4,mode:R]"), r"mixture needs the mode token \[S\]; .* has none"),
        ((PREFIX_STACK, "data.reserve=['mode:']"), r"data.reserve\S*  ''; allowed: up to 32 letters"),
        ((PREFIX_STACK, "data.reserve=['mode:CLS']"), r"data.reserve\S*  'CLS'; allowed: other names, because \[CLS\]"),
        ((PREFIX_STACK, "data.task.kind=recall"), r"objective.kind  mixture chooses tokens of a text"),
        ((PREFIX_STACK, "train.document_mask=true"), r"document_mask  true, but with objective mixture"),
        ((PREFIX_STACK, "model.position.kind=learned"), r"seq_len  16, of which objective mixture makes 25, exceeds"),
    ],
)
def test_a_wrong_mixture_is_refused_with_its_field(
    overrides: tuple[str, ...], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        train(config(*overrides, data=text), tmp_path / "run", Callback())
    assert not (tmp_path / "run").exists()


PLUGIN = """
from typing import Literal

from archlab.config.objective import Mixture, Prefix


class Longer(Prefix):
    "Prefix of another kind."

    kind: Literal["longer"] = "longer"


class Blend(Mixture):
    "Mixture of another kind."

    kind: Literal["blend"] = "blend"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    as_a_new_process()
    yield f"plugins=[{write(PLUGIN, 'longer.py')}]"
    as_a_new_process()


def test_an_objective_of_a_plugin_may_be_a_mixture_but_not_a_part(plugin: str, text: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"parts.s.objective  longer comes from a plug-in .*; allowed: next_token, prefix, s"
    ):
        config(plugin, part("s.objective", "{kind: longer}"))
    summaries = [
        train(config(PREFIX_STACK, RESERVED, *overrides, data=text), tmp_path / str(n), Callback())
        for n, overrides in enumerate([(), (plugin, "train.objective.kind=blend")])
    ]
    assert summaries[0].denoising_loss == summaries[1].denoising_loss


def test_the_example_of_the_docs_is_ul2(tmp_path: Path) -> None:
    """The seven denoisers of table 1: mean spans and rates of R and X, and a prefix for a quarter of the tokens."""
    docs = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()
    (block,) = (block for block in docs.split("```yaml\n")[1:] if "kind: mixture" in block)
    (tmp_path / "ul2.yaml").write_text(block.split("```")[0])
    settings = load_config(tmp_path / "ul2.yaml")
    objective = settings.train.objective
    check_objective(settings.model, objective)
    assert isinstance(objective, Mixture)
    spans = [part for part in objective.parts.values() if isinstance(part.objective, SpanCorruption)]
    assert sorted((part.mode, part.objective.mean_span, part.objective.rate) for part in spans) == [
        ("R", 3, 0.15), ("R", 8, 0.15), ("X", 3, 0.5), ("X", 8, 0.5), ("X", 64, 0.15), ("X", 64, 0.5)
    ]  # fmt: skip
    (prefix,) = (part for part in objective.parts.values() if part not in spans)
    assert (prefix.mode, prefix.objective) == ("S", Prefix(rate=0.25))
    assert objective.reserved(512) == ("sentinels:85", "mode:R", "mode:S", "mode:X")
    assert settings.data.reserve == ("sentinels:100", "mode:R", "mode:S", "mode:X")
