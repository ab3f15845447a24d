"""Format proposals as YAML files, with explanations in comments at the top."""

import textwrap
from collections.abc import Iterator, Sequence
from statistics import median

from archlab.atlas import words
from archlab.config.core.yaml_text import to_yaml
from archlab.config.training import resolve_train
from archlab.pricing.budget import FLOPS_PER_PARAMETER, TOKENS_PER_PARAMETER, rule_in_words
from archlab.pricing.units import binary, count
from archlab.pricing.work import training_flops
from archlab.review.findings import notes_and_warnings
from archlab.review.note_rules import KV_HEADS, UNTIED_HEAD
from archlab.review.published import near, near_in_words
from archlab.review.shape_rule import Between, Case, shown
from archlab.sizing.family import FamilyMember
from archlab.sizing.propose import Proposal, SizeRequest, served_bytes

_WIDTH = 78


def as_yaml(proposal: Proposal) -> str:
    """Return the proposal as YAML, with comments at the top.

    The config extends the closest preset of the family and contains only the fields that differ from the preset.
    """
    comments = "".join(f"# {line}".rstrip() + "\n" for line in _comments(proposal))
    return comments + to_yaml({"base": proposal.base, **proposal.change})


def _comments(proposal: Proposal) -> Iterator[str]:
    for sentence in (
        _size(proposal.model),
        f"proportions follow {' and '.join(member.name for member in proposal.family)}",
        f"closest published model: {proposal.nearest.about.name}",
        _serving(proposal.request, proposal.model),
        _training(proposal.request, proposal.model),
        *_about_this_size(proposal),
        *(f"check: {text}" for text in notes_and_warnings(proposal.model.config)),
    ):
        yield from textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield ""
    yield from _table([("proposed", proposal.model), *_compared(proposal)])


def _size(model: FamilyMember) -> str:
    counted = model.counted
    active = f", {counted.active:,} of them active per token" if counted.idle else ""
    share = (counted.embedding + counted.head) / counted.total
    return f"{counted.total:,} parameters{active}; {share:.0%} are embedding and head"


def _about_this_size(proposal: Proposal) -> Iterator[str]:
    case = Case(proposal.model.config)
    heads, kv_heads = UNTIED_HEAD.usual(case), KV_HEADS.usual(case)
    if isinstance(heads, Between) and isinstance(kv_heads, Between):
        models = [other for _, other in near(case)]
        tied = sum(model.config.model.head.tied for model in models)
        others = f"; in the others, the head has up to {heads.high:.0%} of the parameters" if heads.high else ""
        median_kv = median(next(iter(readings)).value for model in models if (readings := [*KV_HEADS.measure(model)]))
        yield (
            f"published models {near_in_words(case)}: {tied} of {len(models)} models tie the head{others}; "
            f"KV heads: {kv_heads.low} to {kv_heads.high}, median {median_kv:g}"
        )
    if proposal.untied:
        share = f"{proposal.untied.value:.0%}"
        yield f"the head is tied; an untied head would have {share} of the parameters; model.head.tied=false unties it"


def _serving(request: SizeRequest, model: FamilyMember) -> str:
    weights, cache = served_bytes(model.config, request.context)
    context = request.context or model.config.model.max_seq_len
    fits = ""
    if request.memory:
        share = (weights + cache) / request.memory
        fits = f", {share:.0%} of {binary(request.memory)}" + (" (does not fit)" if share > 1 else "")
    if words.is_encoder(model.layers):
        return f"served in bfloat16: {binary(weights)} of weights{fits}; an encoder needs no KV cache"
    return f"served in bfloat16: {binary(weights)} of weights, {binary(cache)} of cache for {context:,} tokens{fits}"


def _training(request: SizeRequest, model: FamilyMember) -> str:
    """Return a sentence about the training FLOPs, as counted and by the rule C = 6 N D.

    The rule leaves attention out, and counts embeddings although they cost no FLOPs.
    """
    train, n = resolve_train(model.config), model.counted.active
    per_token, by_rule = training_flops(model.config.model, train.seq_len), FLOPS_PER_PARAMETER * n
    counted = f"counted for sequences of {train.seq_len:,} tokens"
    if request.flops:
        tokens = request.flops / per_token
        trained = f"trained with {request.flops:.3g} FLOPs: {count(tokens)} tokens ({shown(tokens / n)} per parameter)"
        return f"{trained} {counted}; {count(request.flops / by_rule)} by the rule C = 6 N D"
    tokens = TOKENS_PER_PARAMETER * n
    return (
        f"trained on {count(tokens)} tokens ({rule_in_words(model.counted)}, Chinchilla's for decoders): "
        f"{per_token * tokens:.3g} FLOPs {counted}; {by_rule * tokens:.3g} by the rule C = 6 N D"
    )


def _compared(proposal: Proposal) -> Iterator[tuple[str, FamilyMember]]:
    models = {member.name: member for member in proposal.family}
    nearest = proposal.nearest
    yield from models.items()
    if nearest.preset not in models:
        yield nearest.preset, FamilyMember(nearest.preset, nearest.config)


def _table(models: Sequence[tuple[str, FamilyMember]]) -> Iterator[str]:
    columns = [(name, *_cells(model)) for name, model in models]
    mixed = any(model.is_mixture for _, model in models)
    rows = [row for row in zip(("", *_ROWS), *columns, strict=True) if mixed or row[0] != _ACTIVE]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        yield "  ".join((first.ljust(widths[0]), *(text.rjust(w) for text, w in zip(others, widths[1:], strict=True))))


_ACTIVE = "active parameters"
_ROWS = (
    "parameters", _ACTIVE, "d_model", "n_layers", "n_heads / n_kv_heads", "head_dim", "d_ff", "vocab_size",
    "d_model / n_layers", "d_ff / d_model",
)  # fmt: skip


def _cells(model: FamilyMember) -> tuple[str, ...]:
    kv = model.multi_head.n_kv_heads if model.multi_head else "latent"
    return (
        count(model.counted.total),
        count(model.counted.active),
        str(model.d_model),
        str(model.n_layers),
        f"{model.n_heads} / {kv}",
        str(model.head_dim),
        str(model.d_ff),
        str(model.config.model.vocab_size),
        shown(model.aspect),
        shown(model.ff_ratio),
    )
