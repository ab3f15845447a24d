"""Checks of a model's encoder and of the cross-attention through which the decoder reads its output."""

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from archlab.config.components.multi_head import MultiHead
from archlab.config.components.visibility import Visibility
from archlab.config.core.merge import Raw, expand
from archlab.config.layers import PER_LAYER, cross_attention, encoder_of
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, choose, explain
from archlab.config.rules.rule import Rule
from archlab.config.schema import Config
from archlab.errors import UserError

_NOT_OF_CROSS = ("kind", "temperature", *Visibility.model_fields)
"""Fields of attention that cross-attention does not have, because every query sees the whole source."""


def encoder_problems(model: ModelConfig, rules: Sequence[Rule[ModelConfig]]) -> Iterator[Problem]:
    """Yield a problem for each override of the encoder or of cross-attention that is wrong, and for each rule of a
    layer that the encoder breaks."""
    if model.encoder is None or not isinstance(model.attention, MultiHead):
        return  # a rule of the layer reports other attention
    try:
        overrides, cross = expand(model.encoder.overrides), expand(model.encoder.cross)
    except UserError as error:
        yield Problem("model.encoder", str(error))
        return
    yield from _cross_problems(model, cross, rules)
    if unknown := [name for name in overrides if name not in PER_LAYER]:
        message = f"cannot differ between encoder and decoder{choose(unknown[0], ('n_layers', 'cross', *PER_LAYER))}"
        yield Problem(f"model.encoder.{unknown[0]}", message)
        return
    try:
        encoder = encoder_of(model)
    except ValidationError as error:
        yield from _under("model.encoder", explain(error, ModelConfig, overrides))
        return
    except UserError as error:  # a section in place of a single value
        yield Problem("model.encoder", str(error))
        return
    assert encoder is not None
    if not isinstance(encoder.attention, MultiHead):
        yield Problem("model.encoder.attention.kind", f"{encoder.attention.kind}; allowed in an encoder: multihead")
    elif encoder.attention.visibility != "two_sided":
        found = encoder.attention.visibility
        yield Problem("model.encoder.attention.visibility", f"{found}; allowed in an encoder: two_sided")
    if encoder.dropout.embedding != model.dropout.embedding:
        yield Problem("model.encoder.dropout.embedding", "cannot differ from model.dropout.embedding; leave it out")
    for rule in rules:
        message = rule.broken(encoder)
        if message and message != rule.broken(model):
            yield Problem(f"model.encoder.{rule.field}", message)


def _cross_problems(model: ModelConfig, cross: Raw, rules: Sequence[Rule[ModelConfig]]) -> Iterator[Problem]:
    fields = [name for name in MultiHead.model_fields if name not in _NOT_OF_CROSS]
    if unknown := [name for name in cross if name not in fields]:
        message = f"not a field of cross-attention{choose(unknown[0], fields)}"
        yield Problem(f"model.encoder.cross.{unknown[0]}", message)
        return
    try:
        changed = model.model_copy(update={"attention": cross_attention(model)})
    except ValidationError as error:
        yield from _under("model.encoder.cross", explain(error, MultiHead, cross))
        return
    for rule in rules:
        section, _, name = rule.field.partition(".")
        message = rule.broken(changed) if section == "attention" and name not in _NOT_OF_CROSS else None
        if message and message != rule.broken(model):
            yield Problem(f"model.encoder.cross.{name}", message)


def _under(prefix: str, problems: Sequence[Problem]) -> Iterator[Problem]:
    return (Problem(f"{prefix}.{problem.path}".rstrip("."), problem.message) for problem in problems)


def _decoder_has_attention(m: ModelConfig) -> str | None:
    if m.encoder is None or isinstance(m.attention, MultiHead):
        return None
    return f"{m.attention.kind}; layers that read an encoder have attention of the kind multihead"


def _decoder_is_causal(m: ModelConfig) -> str | None:
    if m.encoder is None or not isinstance(m.attention, Visibility) or m.attention.visibility == "causal":
        return None
    return f"{m.attention.visibility}; allowed in a model with an encoder: causal"


def _decoder_is_serial(m: ModelConfig) -> str | None:
    if m.encoder is None or m.block.parallel == "none":
        return None
    allowed = "`none`, because cross-attention stands between attention and the MLP"
    return f"{m.block.parallel}; allowed in a model with an encoder: {allowed}"


ENCODER_LAYER_RULES: tuple[Rule[ModelConfig], ...] = (
    Rule("attention.kind", ("attention", "encoder"), _decoder_has_attention),
    Rule("attention.visibility", ("attention", "encoder"), _decoder_is_causal),
    Rule("block.parallel", ("block", "encoder"), _decoder_is_serial),
)
"""Rules of a decoder layer that reads an encoder."""


def _no_mup(m: ModelConfig) -> str | None:
    return "is not defined for a model with an encoder; allowed: null" if m.encoder and m.mup else None


def _no_segments(m: ModelConfig) -> str | None:
    if m.encoder is None or not m.embedding.segments:
        return None
    return f"{m.embedding.segments}; allowed in a model with an encoder: 0"


ENCODER_RULES: tuple[Rule[ModelConfig], ...] = (
    Rule("mup", ("mup", "encoder"), _no_mup),
    Rule("embedding.segments", ("embedding", "encoder"), _no_segments),
)
"""Rules of a whole model with an encoder."""


def _in_one_process(axis: str) -> Rule[Config]:
    def broken(c: Config) -> str | None:
        n = getattr(c.parallel, axis)
        return f"{n}; allowed in a model with an encoder: 1" if c.model.encoder and n > 1 else None

    return Rule(f"parallel.{axis}", (f"parallel.{axis}", "model.encoder"), broken)


def _no_document_mask(c: Config) -> str | None:
    if c.model.encoder is None or not c.train.document_mask:
        return None
    return "true; allowed in a model with an encoder: false, because source and target are parts of one window"


ENCODER_CONFIG_RULES = (
    *map(_in_one_process, ("tensor", "expert", "context")),  # they would need the source in every process
    Rule("train.document_mask", ("train.document_mask", "model.encoder"), _no_document_mask),
)
"""Rules of a run whose model has an encoder."""
