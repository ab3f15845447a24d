"""From what a person asks for to one config."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from archlab.atlas.models import PublishedModel, entries
from archlab.config.core.merge import Raw, expand
from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.problems import Problem, is_under, raise_problems
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import read_config
from archlab.pricing.budget import FLOPS_PER_PARAMETER, TOKENS_PER_PARAMETER
from archlab.pricing.memory import BYTES, kv_cache_bytes
from archlab.pricing.params import parameters
from archlab.pricing.units import binary, count
from archlab.review.note_rules import UNTIED_HEAD, usual_vocabulary
from archlab.review.shape_rule import Case, Reading
from archlab.sizing.family import CAN_BE_SCALED, Family, FamilyMember, can_be_scaled, family_of, nearest_published
from archlab.sizing.scale import PROPOSED, ScalableModel
from archlab.sizing.search import NARROWEST, Search, TargetSize

_VOCABULARIES = ((10, 151_936), (2, 100_352), (1, 49_152))
"""For that many languages and more: as Qwen 3, OLMo 2 and SmolLM2 have them."""


@dataclass(frozen=True)
class SizeRequest:
    """What a person asks for; the first of params (or active), flops and memory that is said decides the size."""

    like: str
    params: int | None = None
    active: int | None = None
    flops: float | None = None
    memory: int | None = None
    """Bytes, for the weights and the cache of one text of `context` tokens, in bfloat16."""
    context: int | None = None
    languages: int | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Proposal:
    """A config, and what it came from."""

    model: FamilyMember
    base: str
    """The preset that it builds on."""
    change: Raw
    """Fields that differ from the preset."""
    family: Sequence[FamilyMember]
    """Those of the family between which it lies."""
    nearest: PublishedModel
    untied: Reading | None
    """Share of the parameters that a head of its own would have, if that is why the proposal ties the head."""


def propose(asked: SizeRequest) -> Proposal:
    """UserError where nothing was asked for, or nothing fits."""
    atlas = entries()
    if asked.params or asked.active:
        wanted = TargetSize(asked.params or asked.active or 0, asked.active if asked.params else None)
        family = family_of(asked.like, "total" if asked.params else "active", atlas, mixtures=asked.active is not None)
        found = _of_size(asked, family, wanted)
    elif asked.flops:
        # Of a mixture, what a token makes use of costs FLOPs.
        family = family_of(asked.like, "active", atlas, mixtures=False)
        wanted = TargetSize(math.sqrt(asked.flops / (FLOPS_PER_PARAMETER * TOKENS_PER_PARAMETER)))
        found = _of_size(asked, family, wanted)
    elif asked.memory:
        family = family_of(asked.like, "total", atlas, mixtures=False)
        wanted, found = _within(asked, family, asked.memory)
    else:
        raise UserError("nothing says how large: give --params, --active, --flops or --memory, as in --params 1B")
    model = FamilyMember("proposed", found.config)
    nearest = nearest_published(model, atlas)
    return Proposal(model, found.base, found.change, family.beside(wanted.size), nearest, found.untied)


@dataclass(frozen=True)
class _Sized:
    """A config of the wanted size."""

    base: str
    """The preset that it builds on."""
    config: Config
    change: Raw
    """Fields that differ from the preset."""
    untied: Reading | None = None
    """The head that would be too large, as in `Proposal.untied`."""


def _of_size(asked: SizeRequest, family: Family, wanted: TargetSize) -> _Sized:
    """The head is tied if it would be larger than in published models of about this size, unless the person decides."""
    template, change = _template(asked, family.nearest(wanted.size, wanted.active))
    found = Search(family, template, wanted).best()
    if found is None:
        raise UserError(refusal(family, template, wanted))
    shape, config = found
    too_large = next((reading for reading, _ in UNTIED_HEAD.broken(Case(config))), None)
    if too_large and not is_under(["model.head.tied"], [*change]):
        tied = replace(asked, overrides=(*asked.overrides, "model.head.tied=true"))
        return replace(_of_size(tied, family, wanted), untied=too_large)
    return _Sized(template.member.name, config, expand({**change, **template.change(shape)}))


def _template(asked: SizeRequest, nearest: FamilyMember) -> tuple[ScalableModel, Raw]:
    """The member that is scaled, with what the person wants otherwise; and that, dotted."""
    raw = read_config(nearest.name)
    change, problems = parse_overrides(asked.overrides)
    taken = [key for key in change if is_under([key], [f"model.{field}" for field in PROPOSED])]
    problems += [Problem(key, "is what a size is proposed by; leave it out") for key in taken]
    raise_problems(problems, "the overrides")
    if asked.languages and usual_vocabulary(asked.languages).side(nearest.config.model.vocab_size):
        change.setdefault("model.vocab_size", next(n for from_, n in _VOCABULARIES if asked.languages >= from_))
    if asked.context and asked.context > nearest.config.model.max_seq_len:
        change.setdefault("model.max_seq_len", asked.context)
    raw = overlay(raw, change, Config)
    changed = FamilyMember(nearest.name, build_config(raw, (), nearest.name))
    if not can_be_scaled(changed):
        raise UserError(f"{' '.join(asked.overrides)}: {CAN_BE_SCALED}")
    return ScalableModel(changed, raw), change


def served_bytes(config: Config, context: int | None) -> tuple[int, int]:
    """Of the weights, and of the cache of one text, in bfloat16."""
    model = config.model
    return parameters(model).total * BYTES["bfloat16"], kv_cache_bytes(model, context or model.max_seq_len)


def _within(asked: SizeRequest, family: Family, memory: int) -> tuple[TargetSize, _Sized]:
    """Nearly the largest that fits. Weights grow with the size, a cache about with its root, by whole heads."""
    size, fits, least = memory / BYTES["bfloat16"], None, math.inf
    for _ in range(7):
        found = _of_size(asked, family, TargetSize(size))
        weights, cache = served_bytes(found.config, asked.context)
        used = weights + cache
        if used <= memory:
            fits = TargetSize(size), found
            if used >= 0.95 * memory:
                break
        else:
            least = size
        if fits and least < math.inf:
            size = math.sqrt(fits[0].size * least)
        else:
            size *= (0.98 * memory / used) ** (used / (weights + cache / 2))
    if fits is None:
        raise UserError(f"--memory: {binary(memory)} hold no model like {asked.like} and its cache")
    return fits


def refusal(family: Family, template: ScalableModel, wanted: TargetSize) -> str:
    """Why there is no such shape, and what may help."""
    name, model = template.member.name, template.model
    tables = (1 if model.head.tied else 2) * model.vocab_size * NARROWEST
    nothing = f"no shape with the proportions of {name} has {count(wanted.size)} parameters"
    if tables > wanted.size / 10:
        what = "embedding" if model.head.tied else "embedding and head"
        cost = f"{what} of its vocabulary ({model.vocab_size:,}) have {count(tables)} even at d_model = {NARROWEST}"
        return f"{nothing}: {cost}; ask for more, or for a smaller vocabulary, as in model.vocab_size=8192"
    if wanted.active is None:
        return nothing
    nothing = f"{nothing}, {count(wanted.active)} of them active"
    if as_it_comes := Search(family, template, TargetSize(wanted.size)).best():
        counted = parameters(as_it_comes[1].model)
        return f"{nothing}; with its experts {count(counted.active)} of {count(counted.total)} would be usual"
    return nothing
