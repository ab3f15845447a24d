"""Checks of a model's layer kinds. They find rules that a kind breaks, and settings of the model that every kind
replaces."""

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from archlab.config.components.any_attention import AnyAttention
from archlab.config.core.merge import Raw, derived_fields, expand, merge
from archlab.config.layers import COMPONENTS, PER_LAYER, parts_of_layers, with_overrides
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, choose, explain
from archlab.config.rules.rule import Rule
from archlab.config.vocabulary import elsewhere, meant
from archlab.errors import UserError


def layer_problems(model: ModelConfig, rules: Sequence[Rule[ModelConfig]]) -> Iterator[Problem]:
    """Yield a problem for each rule that the model or a layer kind breaks. Yield a problem, too, for each field that a
    layer kind must not set."""
    broken = {rule.field: message for rule in rules if (message := rule.broken(model))}
    yield from (Problem(f"model.{field}", message) for field, message in broken.items())
    for name, change in (model.layers.kinds if model.layers else {}).items():
        prefix = f"model.layers.{name}"
        try:
            wrong, changed = _overridden(model, change)
        except UserError as error:
            yield Problem(prefix, str(error))
            continue
        yield from (Problem(f"{prefix}.{problem.path}".rstrip("."), problem.message) for problem in wrong)
        if changed is None:
            continue
        if clash := _moved_common_position(model, changed):
            yield Problem(f"{prefix}.position", clash)
        if changed.dropout.embedding != model.dropout.embedding:
            message = "applies once, before all layers; allowed per layer: dropout.attention, dropout.branch"
            yield Problem(f"{prefix}.dropout.embedding", message)
        for rule in rules:
            message = rule.broken(changed)
            if message and message != broken.get(rule.field):
                yield Problem(f"{prefix}.{rule.field}", message)


def replaced_in_every_layer(model: ModelConfig) -> Iterator[Problem]:
    """Yield a problem for each setting of the model that has no effect because every layer kind replaces it."""
    if model.layers is None:
        return
    # If a kind does not change a section, it uses that section of the model.
    changed = set(PER_LAYER).intersection(*map(expand, model.layers.kinds.values()))
    used = parts_of_layers(model) if changed else ()
    for path in (path for path in _common_settings(model) if path.partition(".")[0] in changed):
        without_it = _at_default(model, path)
        if without_it == model:
            continue
        try:
            does_nothing = parts_of_layers(without_it) == used
        except ValidationError:  # a layer kind depends on it
            continue
        if does_nothing:
            yield Problem(f"model.{path}", "every layer kind replaces it, so it has no effect; leave it out")


def _common_settings(model: ModelConfig) -> Iterator[str]:
    yield from ("norm", "norm.placement", "position")
    for section in ("block", *COMPONENTS, "dropout"):
        schema = type(getattr(model, section))
        for name, field in schema.model_fields.items():
            if not field.is_required() and name not in derived_fields(schema):
                yield f"{section}.{name}"


def _at_default(model: ModelConfig, path: str) -> ModelConfig:
    section, _, name = path.partition(".")
    if not name:
        return model.model_copy(update={section: ModelConfig.model_fields[section].default})
    inner = getattr(model, section)
    if name not in type(inner).model_fields:  # the norm `none` has no placement
        return model
    if name == "kind":
        kind = getattr(ModelConfig.model_fields[section].default, "kind", inner.kind)
        raw = merge(model.model_dump(), {section: {"kind": kind}}, ModelConfig)
        return model if kind == inner.kind else ModelConfig.model_validate(raw)
    return model.model_copy(update={section: inner.model_copy(update={name: type(inner).model_fields[name].default})})


def _overridden(model: ModelConfig, change: Raw) -> tuple[list[Problem], ModelConfig | None]:
    change = expand(change)
    unknown = [key for key in change if key not in PER_LAYER]
    if unknown:
        hint = (meant(unknown[0]) or elsewhere(unknown[0], "model.layers")).replace("model.", "")
        if hint.removeprefix("write ").partition(".")[0] in PER_LAYER:
            return [Problem(unknown[0], f"unknown; {hint}")], None
        return [Problem("", f"{', '.join(unknown)} cannot differ per layer{choose(unknown[0], PER_LAYER)}")], None
    try:
        return [], with_overrides(model, change)
    except ValidationError as error:
        raw = merge(model.model_dump(exclude={"layers"}), change, ModelConfig)
        return explain(error, ModelConfig, raw), None


def _moved_common_position(model: ModelConfig, changed: ModelConfig) -> str | None:
    """Return a message if a layer kind changes a position encoding that all layers share: one on the embedding, or one
    with a common table."""
    if changed.position.is_shared:
        model_heads, kind_heads = (m.attention.score_heads for m in (model, changed))
        same = changed.position == model.position and kind_heads in (model_heads, 0)
        sees = {m.attention.sees_later_keys for m in (model, changed) if isinstance(m.attention, AnyAttention)}
        if same and len(sees) < 2:
            return None
        shared = "the heads and directions (attention.visibility) of `model`"
        return f"{changed.position.kind} has one table for all layers, for {shared}; set position.shared = false"
    embedded = [p.kind for p in (changed.position, model.position) if p.acts_on == "embedding"]
    if changed.position == model.position or not embedded:
        return None
    return f"{embedded[0]} is added once, to the embedding; allowed: the same position in every layer"
