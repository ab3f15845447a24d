"""Proposal of a config for a requested size."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archlab.atlas.models import PublishedModel, entries
from archlab.config.core.base import memory_size, whole_number
from archlab.config.core.merge import Raw, expand
from archlab.config.core.yaml_text import parse_integer
from archlab.config.io import build_config, overlay, override_texts, parse_overrides
from archlab.config.problems import Problem, is_under, raise_problems
from archlab.config.schema import Config
from archlab.displayed import Displayed
from archlab.errors import UserError, check_at_least
from archlab.exchange.configs import read_config
from archlab.pricing.budget import FLOPS_PER_PARAMETER, TOKENS_PER_PARAMETER
from archlab.pricing.hardware import Hardware, load_hardware
from archlab.pricing.memory import BYTES, kv_cache_bytes
from archlab.pricing.params import parameters
from archlab.pricing.units import binary, count
from archlab.review.note_rules import UNTIED_HEAD, usual_vocabulary
from archlab.review.shape_rule import Case, Reading
from archlab.sizing.family import CAN_BE_SCALED, Family, FamilyMember, can_be_scaled, family_of, nearest_published
from archlab.sizing.scale import PROPOSED, ScalableModel
from archlab.sizing.search import NARROWEST, Search, TargetSize

_VOCABULARIES = ((10, 151_936), (2, 100_352), (1, 49_152))
"""Pairs of a minimum number of languages and a vocabulary size. The sizes are those of Qwen 3, OLMo 2 and SmolLM2."""


@dataclass(frozen=True)
class SizeRequest:
    """Request for a proposal. The first of params (or active), flops and memory that is set determines the size."""

    like: str
    params: int | None = None
    active: int | None = None
    flops: float | None = None
    memory: int | None = None
    """Number of bytes available for the weights and the cache of one sequence of `context` tokens, in bfloat16."""
    context: int | None = None
    languages: int | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True, repr=False)
class Proposal(Displayed):
    """Proposed config and its origin."""

    request: SizeRequest
    model: FamilyMember
    base: str
    """Name of the preset that the config extends."""
    change: Raw
    """Fields that differ from the preset."""
    family: Sequence[FamilyMember]
    """Next smaller and next larger member of the family, if they exist."""
    nearest: PublishedModel
    untied: Reading | None
    """Fraction of the parameters that an untied head would have.

    None unless the proposal ties the head because this fraction is too large.
    """

    @property
    def config(self) -> Config:
        return self.model.config


def propose(
    like: str = "llama-3",
    *overrides: str | Mapping[str, Any],
    params: int | str | None = None,
    active: int | str | None = None,
    flops: float | str | None = None,
    memory: int | str | None = None,
    hardware: str | Hardware | None = None,
    context: int | None = None,
    languages: int | None = None,
) -> Proposal:
    """Propose a model shape with the proportions of a published family. The size is met within 1%.

    The first of `params` (or `active`), `flops` and `memory` that is set determines the size. These numbers may be
    texts as on the command line: `1B`, `4e21`, `16GiB`.

    - `like`: a family or a preset. Families have names such as llama-3, qwen3 or deepseek-v2.
    - `overrides`: fields that differ from the family. They have the form of those of `archlab.load_config`.
    - `params`: number of parameters.
    - `active`: number of active parameters per token, alone or with `params`.
    - `flops`: FLOPs of the training run. The size follows the Chinchilla rule (Hoffmann 2022).
    - `memory`: bytes for the weights and the KV cache of one sequence, in bfloat16.
    - `hardware`: devices to serve on, as for `archlab.load_hardware`. Their memory replaces `memory`, unless that is
      smaller.
    - `context`: sequence length for serving. None means that of the family.
    - `languages`: number of languages in the text, which determines the vocabulary size. None means that of the family.

    Raise UserError if no size is set, if no shape fits, or if the family is unknown.

    >>> proposal = archlab.propose("llama-3", params="1B")
    >>> proposal.base, archlab.cost(proposal.config).parameters.total
    ('llama-3-8b', 1000400896)
    """
    check_at_least(1, context=context, languages=languages)
    if hardware is not None:
        devices = load_hardware(hardware) if isinstance(hardware, str) else hardware
        total = devices.memory * devices.count
        memory = total if memory is None else min(total, int(_size("memory", memory, memory_size) or 0))
    request = SizeRequest(
        like=like,
        params=_size("params", params),
        active=_size("active", active),
        flops=_size("flops", flops),
        memory=_size("memory", memory, memory_size),
        context=context,
        languages=languages,
        overrides=override_texts(*overrides),
    )
    atlas = entries()
    if request.params or request.active:
        target = TargetSize(request.params or request.active or 0, request.active if request.params else None)
        family = family_of(
            request.like, "total" if request.params else "active", atlas, mixtures=request.active is not None
        )
        result = _of_size(request, family, target)
    elif request.flops:
        # In a mixture, only the parameters that a token uses cost FLOPs.
        family = family_of(request.like, "active", atlas, mixtures=False)
        target = TargetSize(math.sqrt(request.flops / (FLOPS_PER_PARAMETER * TOKENS_PER_PARAMETER)))
        result = _of_size(request, family, target)
    elif request.memory:
        family = family_of(request.like, "total", atlas, mixtures=False)
        target, result = _within(request, family, request.memory)
    else:
        raise UserError("no size is set; set params, active, flops or memory, as in `archlab size --params 1B`")
    model = FamilyMember("proposed", result.config)
    nearest = nearest_published(model, atlas)
    return Proposal(request, model, result.base, result.change, family.neighbors(target.size), nearest, result.untied)


def _size(name: str, size: float | str | None, read: Callable[[Any], Any] = whole_number) -> int | None:
    """Return the size as an integer, from a number or from its text. `name` is that of the argument."""
    number = parse_integer(size, read) if isinstance(size, str) else read(size)
    if size is not None and (not isinstance(number, int) or number < 1):
        raise UserError(f"{name}: {size!r}; allowed: a positive integer, or its text, as in {_AS_TEXT[name]}")
    return number


_AS_TEXT = {"params": "1B", "active": "300M", "flops": "4e21", "memory": "16GiB"}
"""Example of a text by argument."""


@dataclass(frozen=True)
class _Sized:
    """A config of the target size, and its origin."""

    base: str
    """Name of the preset that the config extends."""
    config: Config
    change: Raw
    """Fields that differ from the preset."""
    untied: Reading | None = None
    """Fraction of the parameters that an untied head would have, as in `Proposal.untied`."""


def _of_size(request: SizeRequest, family: Family, target: TargetSize) -> _Sized:
    """Return a config of the target size.

    The head is tied if an untied head would have a larger share of the parameters than in published models of about
    this size. If the user sets `model.head.tied`, that value is used.
    """
    template, change = _template(request, family.nearest(target.size, target.active))
    result = Search(family, template, target).best()
    if result is None:
        raise UserError(refusal(family, template, target))
    shape, config = result
    too_large = next((reading for reading, _ in UNTIED_HEAD.broken(Case(config))), None)
    if too_large and not is_under(["model.head.tied"], [*change]):
        tied = replace(request, overrides=(*request.overrides, "model.head.tied=true"))
        return replace(_of_size(tied, family, target), untied=too_large)
    return _Sized(template.member.name, config, expand({**change, **template.change(shape)}))


def _template(request: SizeRequest, nearest: FamilyMember) -> tuple[ScalableModel, Raw]:
    raw = read_config(nearest.name)
    change, problems = parse_overrides(request.overrides)
    taken = [key for key in change if is_under([key], [f"model.{field}" for field in PROPOSED])]
    problems += [Problem(key, "is chosen by the proposal; leave it out") for key in taken]
    raise_problems(problems, "the overrides")
    if request.languages and usual_vocabulary(request.languages).side(nearest.config.model.vocab_size):
        vocab_size = next(n for minimum, n in _VOCABULARIES if request.languages >= minimum)
        change.setdefault("model.vocab_size", vocab_size)
    if request.context and request.context > nearest.config.model.max_seq_len:
        change.setdefault("model.max_seq_len", request.context)
    raw = overlay(raw, change, Config)
    changed = FamilyMember(nearest.name, build_config(raw, (), nearest.name))
    if not can_be_scaled(changed):
        raise UserError(f"{' '.join(request.overrides)}: the model cannot be scaled; {CAN_BE_SCALED}")
    return ScalableModel(changed, raw), change


def served_bytes(config: Config, context: int | None) -> tuple[int, int]:
    """Return the bytes of the weights and of the cache of one sequence, in bfloat16."""
    model = config.model
    return parameters(model).total * BYTES["bfloat16"], kv_cache_bytes(model, context or model.max_seq_len)


def _within(request: SizeRequest, family: Family, memory: int) -> tuple[TargetSize, _Sized]:
    """Return almost the largest config whose weights and cache fit into `memory` bytes, with its size.

    The bytes of the weights are proportional to the number of parameters. The bytes of the cache grow about with its
    square root, in steps of whole heads.
    """
    size, fits, least = memory / BYTES["bfloat16"], None, math.inf
    for _ in range(7):
        result = _of_size(request, family, TargetSize(size))
        weights, cache = served_bytes(result.config, request.context)
        used = weights + cache
        if used <= memory:
            fits = TargetSize(size), result
            if used >= 0.95 * memory:
                break
        else:
            least = size
        if fits and least < math.inf:
            size = math.sqrt(fits[0].size * least)
        else:
            size *= (0.98 * memory / used) ** (used / (weights + cache / 2))
    if fits is None:
        raise UserError(
            f"memory is {binary(memory)}, which is too little for a model like {request.like} and its cache"
        )
    return fits


def refusal(family: Family, template: ScalableModel, target: TargetSize) -> str:
    """Return an error message that says why no shape has the target size, with advice."""
    name, model = template.member.name, template.model
    tables = (1 if model.head.tied else 2) * model.vocab_size * NARROWEST
    nothing = f"no shape with the proportions of {name} has {count(target.size)} parameters"
    if tables > target.size / 10:
        what = "embedding" if model.head.tied else "embedding and head"
        cost = (
            f"its {what} ({model.vocab_size:,} tokens) alone need {count(tables)} parameters at d_model = {NARROWEST}"
        )
        return f"{nothing}: {cost}; use a larger size or a smaller vocabulary, as in model.vocab_size=8192"
    if target.active is None:
        return nothing
    nothing = f"{nothing}, {count(target.active)} of them active"
    if any_active := Search(family, template, TargetSize(target.size)).best():
        counted = parameters(any_active[1].model)
        usual = f"{count(counted.active)} active parameters of {count(counted.total)}"
        return f"{nothing}; with the proportions of its experts, the model has {usual}"
    return nothing
