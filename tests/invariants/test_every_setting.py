"""Every setting works or is refused: the tests walk through the schema, for every field, every kind and several values.

Each value is merged into configs of the grid until one changes what the model computes. Two things are failures: a
value that never changes anything and is not refused, and a refusal that does not name the field. Values are made from
types and constraints; no field is listed here.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import grid
import numpy as np
import pytest
import torch
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from torch import Tensor

from archlab.config.components.dropout import Dropout
from archlab.config.components.moe import Balance
from archlab.config.components.mup import MuP
from archlab.config.core.merge import Raw
from archlab.config.core.registry import KindName
from archlab.config.identity import resolved
from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.layers import PER_LAYER, layer_configs, resolve, with_overrides
from archlab.config.model_schema import Encoder, HeadTransform, Init, ModelConfig
from archlab.config.schema import Config, TrainConfig
from archlab.config.training import resolve_train
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.hf.rope import without_idle_scalings
from archlab.model.decoder import Decoder
from archlab.training import loop as training
from archlab.training import train as loop
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.loss import Routers, objective
from archlab.training.optim import make_optimizer
from archlab.training.run_folder import RunFolder
from archlab.training.saving import Saver
from archlab.training.shard import sharded
from archlab.training.step import update
from archlab.training.world import ALONE
from schema_classes import classes_in, kind_names

# --- from types to values -------------------------------------------------------------------------------------

NUMBERS: tuple[Any, ...] = (1, 3, 2, 6, 0, 0.4, 0.5, 1.7)
LENGTHS = (4, 1)
"""Lengths of lists. A list of longrope needs one number per pair of the grid's heads, which is 4."""
VERSIONS = 3
"""Number of versions of a section with required values."""


def values(hint: Any) -> Iterator[Any]:
    """Yield some values of a type: None if it is allowed, and dicts for config sections."""
    if get_origin(hint) is Annotated and any(isinstance(mark, KindName) for mark in get_args(hint)):
        yield from kind_names(FieldInfo.from_annotation(hint))
    elif get_origin(hint) is Annotated:
        yield from (v for v in values(get_args(hint)[0]) if is_valid(hint, v))
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from values(part)
    elif get_origin(hint) is Literal:
        yield from get_args(hint)
    elif get_origin(hint) is tuple:
        kinds = get_args(hint)
        lengths = LENGTHS if kinds[-1] is ... else (len(kinds),)
        items = list(values(kinds[0]))
        for n in lengths:
            yield from ([items[(i + shift) % len(items)] for i in range(n)] for shift in (0, 1))
    elif get_origin(hint) is dict:  # of two sections, because the weight of a single one has no effect
        items = list(values(get_args(hint)[1]))
        yield from ({"a": item, "b": items[(i + 1) % len(items)]} for i, item in enumerate(items))
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        for schema in classes_in(hint):
            yield from sections(schema)
    elif hint is type(None):
        yield None
    elif hint is bool:
        yield from (False, True)
    elif hint in (int, float):
        yield from (v for v in NUMBERS if is_valid(hint, v))
    elif hint is str:
        yield from ("a", "b")
    else:
        raise TypeError(f"no values for {hint}")


adapter = cache(TypeAdapter)


def is_valid(hint: Any, value: Any) -> bool:
    try:
        adapter(hint).validate_python(value)
    except ValidationError:
        return False
    return True


def hint_of(field: FieldInfo) -> Any:
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def sections(schema: type[BaseModel]) -> Iterator[Raw]:
    """Yield several versions of the section with only its required values. A tagged section has its `kind`."""
    required = {name: f for name, f in schema.model_fields.items() if f.is_required()}
    kind = {"kind": schema.model_fields["kind"].default} if "kind" in schema.model_fields else {}
    if schema.model_config.get("extra") == "allow":
        # Sections with names chosen by the user: the names from which lists of text are made.
        kind = {"a": {"mlp.d_ff": 12}, "b": {"position.kind": "none"}}
    options = [list(values(hint_of(f))) for f in required.values()]
    if not options:
        yield kind
        return
    for i in range(VERSIONS):
        # Shift earlier fields by one, so that not all values are equal.
        chosen = (some[(i + len(options) - 1 - j) % len(some)] for j, some in enumerate(options))
        yield kind | dict(zip(required, chosen, strict=True))


def section_classes(hint: Any) -> list[type[BaseModel]]:
    return classes_in(hint)


Change = tuple[tuple[str, Any], ...]
"""(dotted path, value), applied in order."""


@dataclass(frozen=True)
class Setting:
    """A field, a change of `model` that sets it, and changes without it, of which the first valid one is used."""

    path: str
    before: tuple[Change, ...]
    after: Change


def walk(schema: type[BaseModel], at: str = "", company: Change = ()) -> Iterator[Setting]:
    """Yield every value of every field of the section, then of its inner sections."""
    for name, field in schema.model_fields.items():
        path = f"{at}{name}"
        if path == "encoder":  # a model with an encoder needs a source text: test_encoder_grid.py
            continue
        classes = section_classes(field.annotation)
        below = f"{path}.a." if get_origin(field.annotation) is dict else f"{path}."
        if name != "kind":
            for value in values(hint_of(field)):
                yield Setting(path, ((*company, *default(path, field)), company), (*company, (path, value)))
        for inner in classes:
            # Company: add a section that is absent by default, with its required values. Also try without adding it,
            # because a config of the grid may have it.
            there = len(classes) == 1 and field.default is not None
            for least in [()] if there else [(), *(((path, section),) for section in sections(inner))]:
                yield from walk(inner, below, company + least)


def default(path: str, field: FieldInfo) -> Change:
    """Return the change that sets a field to its default, or nothing for a required field."""
    if field.is_required():
        return ()
    value = field.get_default(call_default_factory=True)
    return ((path, value.model_dump() if isinstance(value, BaseModel) else value),)


def by_path() -> dict[str, dict[str, list[Setting]]]:
    """Return field of `model` -> value -> the settings with that value, in different company."""
    found: dict[str, dict[str, list[Setting]]] = {}
    for path, settings in of_section(ModelConfig).items():
        for setting in settings:
            found.setdefault(path, {}).setdefault(repr(setting.after[-1][1]), []).append(setting)
    return found


def of_section(schema: type[BaseModel]) -> dict[str, list[Setting]]:
    """Return field -> its settings."""
    found: dict[str, list[Setting]] = {}
    for setting in walk(schema):
        found.setdefault(setting.path, []).append(setting)
    return found


def classes(schema: type[BaseModel]) -> set[type[BaseModel]]:
    """Return the classes of the section and of all its inner sections."""
    inner = (c for field in schema.model_fields.values() for c in section_classes(field.annotation))
    return {schema}.union(*map(classes, inner))


def options(field: FieldInfo) -> set[str]:
    """Return the values of a field that behave differently, as text: each named value, null, and True and False."""
    parts = {field.annotation, *get_args(field.annotation)}
    named = {repr(v) for kind in parts if get_origin(kind) is Literal for v in get_args(kind)}
    named |= set(map(repr, kind_names(field)))
    return named | ({"False", "True"} if bool in parts else {"None"} if type(None) in parts else set())


def found(section: BaseModel) -> Iterator[tuple[type[BaseModel], str, Any]]:
    """Yield (class, field, value) of every field of the section and of its inner sections."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield type(section), name, value
        if isinstance(value, BaseModel):
            yield from found(value)


def test_the_grid_has_every_choice_that_a_forward_pass_sees() -> None:
    """Fails if a kind, a named value or a field is missing in the grid. Sizes of the model may have their defaults."""
    seen: dict[tuple[type[BaseModel], str], set[str]] = {}
    for index in range(len(grid.grid())):
        model = grid.config(index).model
        kinds = model.layers.kinds.values() if model.layers else ()
        for section in (model, *(with_overrides(model, change) for change in kinds)):
            for schema, name, value in found(section):
                seen.setdefault((schema, name), set()).add(repr(value))
    elsewhere = {Dropout, Init, Balance}  # these act in training, and in the parameters that the grid draws
    derived = {MuP}  # these are factors on scores and logits, which the grid has on their own
    for schema in classes(ModelConfig) - elsewhere - derived - {Encoder}:
        for name, field in schema.model_fields.items():
            values = seen.get((schema, name), set())
            assert values, f"no config of the grid has a {schema.__name__}"
            if schema is HeadTransform and name == "activation":
                continue  # MLPs in the grid have every activation
            missing = options(field) - values
            assert not missing, f"{schema.__name__}.{name} is never {missing}"
            is_varied = field.is_required() or name == "kind" or values - {repr(field.default)}
            assert is_varied or section_classes(field.annotation), f"{schema.__name__}.{name} is always the default"


# --- what a config computes -----------------------------------------------------------------------------------

TEXT = torch.from_numpy(np.random.default_rng(0).integers(0, 23, (2, 200)))


def outputs(config: Config) -> Iterator[Tensor]:
    """Yield all outputs that may change, the fastest first.

    They are logits with drawn parameters, logits with initial values, logits with dropout, the loss, logits after an
    update of the routers, and logits in bfloat16.
    """
    model = grid.randomized(config)
    tokens = TEXT[:, : grid.SEQ_LEN] % config.model.vocab_size
    yield model(tokens, prefix=grid.prefix(config, len(tokens)))
    yield Decoder(config.model).eval()(tokens)
    torch.manual_seed(0)
    yield model.train()(tokens)
    seq_len = config.train.seq_len or config.model.max_seq_len
    window = TEXT[:, : seq_len + 1] % config.model.vocab_size
    routers = Routers(model.eval(), ALONE)
    collected = routers.collector()
    minimized, _ = objective(model(window[:, :-1], collected=collected), window[:, 1:], config.train.z_loss)
    yield sum(routers.minimized(collected), minimized)
    routers.correct()
    yield model(tokens)
    yield model.bfloat16()(tokens)


OF_ITS_OWN = {
    -1: (),  # for settings that few choices allow
    -2: ("model.norm=none", "model.embedding.scale=100.0"),  # large features, and so large steps of Mamba 2 (dt_max)
}
"""Overrides of base configs that are not in the grid, by index."""


@cache
def base(index: int) -> Raw:
    overrides = OF_ITS_OWN[index] if index in OF_ITS_OWN else grid.grid()[index]
    return overlay(grid.BASE, parse_overrides(overrides)[0], Config)


def built(index: int, change: Change) -> Config | str:
    """Return a config of the grid with a change, or the reason why it is refused."""
    raw = base(index)
    try:
        for path, value in change:
            raw = overlay(raw, {f"model.{path}": value}, Config)
        return build_config(raw)
    except UserError as error:
        return str(error)


def meaning(config: Config) -> Any:
    """Return a value that is equal for configs with the same meaning. A scaling by 1 means no scaling."""
    model = without_idle_scalings(config.model)
    outside = resolve(model).model_copy(update={"layers": None})
    return outside, layer_configs(model), config.train


@torch.no_grad()
def differ(a: Config, b: Config) -> bool:
    for x, y in zip(outputs(a), outputs(b), strict=True):
        if x.shape != y.shape or (x.double() - y.double()).abs().max() > 1e-9 * x.double().abs().max():
            return True
    return False


def without(index: int, setting: Setting, seen: dict[str, Config | None]) -> Config | None:
    """Return the first valid config without the value; all values of a field share it."""
    key = f"{index} {setting.before}"
    if key not in seen:
        valid = (c for c in (built(index, before) for before in setting.before) if isinstance(c, Config))
        seen[key] = next(valid, None)
    return seen[key]


def outcomes(path: str, wrap: Callable[[Change], Change] = lambda change: change) -> dict[str, str]:
    """Return the outcome of each value."""
    seen: dict[str, Config | None] = {}
    return {
        value: outcome([Setting(path, tuple(map(wrap, s.before)), wrap(s.after)) for s in settings], seen)
        for value, settings in PATHS[path].items()
    }


def outcome(
    settings: list[Setting], befores: dict[str, Config | None]
) -> Literal["works", "refused", "silent", "same"]:
    """Return "works" as soon as a config changes its output, otherwise the worst outcome over all configs."""
    seen: Any = "same"
    # A setting equal to the default gives the same config twice, so there is nothing to build.
    differing = (setting for setting in settings if setting.after not in setting.before)
    for setting, index in itertools.product(differing, BASES):
        was = without(index, setting, befores)
        if was is None:
            continue
        is_now = built(index, setting.after)
        if isinstance(is_now, str):
            _, *named = f"model.{setting.path}".split(".")
            value = setting.after[-1][1]
            inside = list(value) if isinstance(value, dict) else []  # of a whole section one field may be refused
            # n_layers: "a is never used in 1 layers"
            words = [part.removeprefix("n_").rstrip("s") for part in (*named[-3:], *inside)]
            assert any(word in is_now.lower() for word in words), is_now
            seen = "refused" if seen == "same" else seen
        elif meaning(was) != meaning(is_now):
            if differ(was, is_now):
                return "works"
            seen = "silent"
    return seen


BASES = [*OF_ITS_OWN, *grid.rows_with_each_override(2)]
PATHS = by_path()


def test_the_walk_reaches_everything() -> None:
    assert {"norm.cast", "attention.qk_norm.scope", "attention.blocks.summary", "init.head"} <= set(PATHS)
    assert {"layers.pattern", "position.scaling.beta_fast", "dropout.branch", "embedding.scale"} <= set(PATHS)
    assert len(PATHS) > 80


@pytest.mark.parametrize("path", PATHS)
def test_every_setting_works_or_is_refused(path: str) -> None:
    results = outcomes(path)
    assert "silent" not in results.values(), results
    assert "works" in results.values() or set(results) == {"{}"}, results


@pytest.mark.parametrize("path", [p for p in PATHS if p.split(".")[0] in PER_LAYER])
def test_every_setting_of_one_layer_works_or_is_refused(path: str) -> None:
    def in_one_layer(change: Change) -> Change:
        return (("layers", None), ("layers", {"a": dict(change), "b": {}, "pattern": ["b", "a"]}))

    results = outcomes(path, in_one_layer)
    assert "silent" not in results.values(), results
    assert {"works", "refused"} & set(results.values()) or set(results) == {"{}"}, results


# --- training -------------------------------------------------------------------------------------------------

HOW = ("device", "compile", "micro_batch_tokens", "eval_every", "eval_tokens", "eval_seq_len", "checkpoint_every",
       "probe_every", "recompute", "deterministic", "keep", "spikes", "log")  # fmt: skip
"""Settings of how a run works and how often, not of what it computes. The losses stay equal up to rounding."""

SMALL = {"tokens": 6 * 64, "batch_tokens": 64, "seq_len": 16, "warmup": 1, "dtype": "float32", "device": "cpu"}
TRAINED: list[Raw] = [
    {"train": SMALL},
    {"train": SMALL | {"schedule": "wsd", "tokens": 16 * 64}},
    {"train": SMALL | {"tokens": 12, "batch_tokens": 2, "seq_len": 1}},
    {"train": SMALL | {"tokens": 6 * 1024, "batch_tokens": 1024, "seq_len": 64}},  # several hidden spans in each window
    {"train": SMALL | {"weight_decay": 0.5}, "model": {"head": {"scale": 9.0}}},
    {
        "train": SMALL,
        "model": {"mlp": {"kind": "moe", "experts": 4}, "mixer": {"kind": "short_conv"}},
    },  # has parameters of every role
]


def trajectory(config: Config) -> list[float]:
    """Return the loss of every step, at most forty, and the loss after them."""
    train, losses = resolve_train(config), []
    device = Device("cpu", torch.bfloat16 if train.dtype == "bfloat16" else torch.float32)
    model = sharded(config.model, train, "cpu", ALONE)
    optimizer = make_optimizer(model, train)
    for step in range(min(train.steps, 40) + 1):
        drawn = np.random.default_rng((train.seed, step))
        seq_len = train.seq_len or config.model.max_seq_len
        tokens = drawn.integers(0, 9, (train.batch_tokens // seq_len, seq_len + 1))
        batch = random_batch(config, Windows(tokens), 0 if train.document_mask else None)
        losses.append(update(model, optimizer, batch, train, step, device).loss)
    return losses


def of_training(change: Change) -> Raw:
    """Return training settings as fields of a whole config; later ones override earlier ones."""
    raw: Raw = {}
    for path, value in change:
        raw = overlay(raw, {f"train.{path}": value}, Config)
    return raw


def trained(base: Raw, change: Raw) -> Config | str:
    try:
        config = build_config(overlay(overlay(grid.BASE, base, Config), change, Config))
        visibility = config.train.objective.visibility  # an objective needs a model that sees what it reads
        seen = {} if visibility == "causal" else {"model.attention.visibility": visibility}
        return build_config(overlay(config.model_dump(mode="json"), seen, Config)) if seen else config
    except UserError as error:
        return str(error)


WHAT = {path: list(settings) for path, settings in of_section(TrainConfig).items() if path.split(".")[0] not in HOW}
"""Field -> its settings, in different company. Plug-ins are missing here; test_plugins.py trains with one."""


ALIKE = {
    "lr_multipliers",
    "objective",
    "lora.modules",
    *(path for path in WHAT if path.startswith(("start", "teacher"))),
}
"""Fields that no test here can change.

The value of a section is {}, the kinds of objectives need different models, and names of modules are those of the model
(tests/unit/test_lora.py). A start or a teacher is a folder of trained weights (tests/integration/test_train_weights.py,
tests/unit/test_train_teacher.py).
"""


ON_A_CPU = {"optimizer.dtype": "float32"}
"""Value for which `auto` stands on a CPU, by field. It changes nothing there."""


@pytest.mark.parametrize("path", [path for path in WHAT if path not in ALIKE])
def test_every_training_setting_changes_the_losses_or_is_refused(path: str) -> None:
    results: dict[str, str] = {}
    for setting, base in itertools.product(WHAT[path], TRAINED):
        value = repr(setting.after[-1][1])
        befores = (trained(base, of_training(before)) for before in reversed(setting.before))
        was = next((config for config in befores if isinstance(config, Config)), None)
        if results.get(value) == "works" or was is None:
            continue
        is_now = trained(base, of_training(setting.after))
        if isinstance(is_now, str):
            assert path.partition(".a.")[0].split(".")[-1] in is_now  # of a mapping, its own name
            results.setdefault(value, "refused")
        elif resolved(was) != resolved(is_now) and setting.after[-1][1] not in ("auto", ON_A_CPU.get(path)):
            results[value] = "works" if trajectory(was) != trajectory(is_now) else "silent"
    assert "silent" not in results.values(), results
    assert "works" in results.values(), results


def run(config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[Any]]:
    """Return the losses of a whole run and a log of its actions."""
    done: list[Any] = []
    predict, save, hidden, recompute = training.predict, Saver.save, Decoder.hidden, training.recompute_layers

    def evaluated(model: Any, held_out: Any, device: Device, **more: Any) -> Any:
        done.append(("evaluate", held_out.batch.tokens.shape, torch.are_deterministic_algorithms_enabled()))
        return predict(model, held_out, device, **more)

    def saved(saver: Saver, step: int, *state: Any, **more: Any) -> None:
        done.append(("save", step))
        save(saver, step, *state, **more)

    def recomputed(model: Decoder) -> None:
        done.append("recompute")
        recompute(model)

    def compiled(model: Decoder) -> None:
        done.append("compile")
        for layer in model.layers:
            layer.compile(backend="eager")

    def read(model: Decoder, tokens: Tensor, *more: Any) -> Tensor:
        done.append((tokens.shape, tokens.device.type))
        return hidden(model, tokens, *more)

    with monkeypatch.context() as patch:
        patch.setattr(training, "predict", evaluated)
        patch.setattr(Saver, "save", saved)
        patch.setattr(training, "compile_layers", compiled)
        patch.setattr(training, "recompute_layers", recomputed)
        patch.setattr(Decoder, "hidden", read)
        loop.train(config, folder, Callback())
    done.append(sorted(path.name for path in (folder / "checkpoints").iterdir()))
    done.append(sum("spike" in line for line in RunFolder(folder).metrics()))
    done.append((folder / "tensorboard").exists())
    return [line["loss"] for line in RunFolder(folder).metrics() if "lr" in line], done


@pytest.mark.parametrize("name", HOW)
def test_every_other_training_setting_changes_the_way_but_not_the_losses_or_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(f"line {i}: {i * i}" for i in range(4000)))
    base: Raw = {"model": {"vocab_size": 300}, "data": {"path": str(tmp_path / "text.txt")}}
    small = SMALL | {"tokens": 6 * 12, "batch_tokens": 12, "seq_len": 2}
    was = trained(base, {"train": small})
    assert isinstance(was, Config)
    losses, way = run(was, tmp_path / "was", monkeypatch)
    results = {}
    # The number of kept checkpoints is tested in tests/unit/test_train_checkpoint.py, because the end does not show it.
    # The reaction to spikes is tested in tests/unit/test_train_spikes.py; this test only sees that they are detected.
    by_hand = {"keep": [{"every": 1}], "spikes": [{"window": 2, "deviations": 0.01}], "log": [["tensorboard"]]}
    some = by_hand.get(name) or values(hint_of(TrainConfig.model_fields[name]))
    for n, value in enumerate(some):
        is_now = trained(base, {"train": small | {name: value}})
        if value == "auto" or (isinstance(is_now, Config) and resolved(was) == resolved(is_now)):
            continue
        if name == "compile" and value is False:
            continue  # equals auto for such a short run
        try:
            other = is_now if isinstance(is_now, str) else run(is_now, tmp_path / str(n), monkeypatch)
        except UserError as error:
            other = str(error)
        if isinstance(other, str):
            assert name in other
            results[repr(value)] = "refused"
        else:
            # float32 sums in another order, over six updates
            np.testing.assert_allclose(other[0], losses, rtol=1e-4)
            results[repr(value)] = "works" if other[1] != way else "silent"
    assert "silent" not in results.values(), results
    assert "works" in results.values() or results == {"'cuda'": "refused"}, results
