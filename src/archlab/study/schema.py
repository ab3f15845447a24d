"""A study: one question, its arms, and what is held equal between them."""

from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from archlab.config.core.base import Count, Flops, Overrides, Positive, Seed, Settings, Share, Tokens
from archlab.config.core.plugins import PlugIns
from archlab.config.core.text import FileName, Line, Text
from archlab.study.outcome_schema import Outcomes

MOST_RUNS = 10_000
"""Of a study, to compare or to tune."""

FIRST_TUNING_SEED = 1000
"""Seeds of the tuning runs begin here. The comparison uses others, so that a lucky seed cannot choose its own judge."""


class Budget(Settings):
    """What each run may spend; exactly one of the four."""

    tokens: Tokens | None = None
    """Training tokens per run."""
    flops: Flops | None = None
    """Training FLOPs per run, as computed: with those hidden pairs that the kernel multiplies all the same.
    An arm that costs less per token sees more tokens."""

    tokens_per_parameter: Positive | None = None
    """Training tokens per run, as a multiple of the parameters of the base at the run's size."""
    bytes: Tokens | None = None
    """Bytes of text that each run trains on, in as many tokens as an arm's tokenizer makes of them."""

    @model_validator(mode="after")
    def _one(self) -> "Budget":
        if [self.tokens, self.flops, self.tokens_per_parameter, self.bytes].count(None) != 3:
            raise ValueError("give either tokens or flops or tokens_per_parameter or bytes")
        return self


class Equal(Settings):
    """What every arm has in common with the base, and the knob that makes it so; exactly one quantity."""

    parameters: Share | None = None
    """Largest relative difference in parameters."""
    flops: Share | None = None
    """Largest relative difference in training FLOPs per token, as computed."""
    by: Literal["model.mlp.d_ff", "model.d_model", "model.n_layers"] = "model.mlp.d_ff"
    """The field that is adjusted in an arm that is further away."""

    @model_validator(mode="after")
    def _one(self) -> "Equal":
        if (self.parameters is None) == (self.flops is None):
            raise ValueError("give either parameters or flops")
        return self


class AddedSeeds(Settings):
    """A number of seeds that the scatter over the first ones decides (Stein 1945)."""

    until: Positive
    """The true difference that every comparison is to find with 80% probability, in bits per byte."""
    at_most: Annotated[int, Field(ge=3, le=FIRST_TUNING_SEED)]
    """Seeds per arm, whatever the scatter asks for."""
    first: Annotated[int, Field(ge=3, le=FIRST_TUNING_SEED)] = 5
    """Seeds per arm that are run before the others are counted. Fewer know their scatter badly, and ask for more."""

    @model_validator(mode="after")
    def _room(self) -> "AddedSeeds":
        if self.at_most < self.first:
            raise ValueError(f"at_most {self.at_most}; allowed: at least {self.first}, the first seeds")
        return self


Seeds = Annotated[int, Field(ge=2)] | Annotated[list[Seed], Field(min_length=2)] | AddedSeeds
"""How many (0, 1, ...), or which, or the rule by which seeds are added."""


def first_seeds(seeds: Seeds) -> list[int]:
    """Those that are run whatever comes of them."""
    match seeds:
        case int(n):
            return list(range(n))
        case AddedSeeds(first=first):
            return list(range(first))
        case named:
            return list(named)


def most_seeds(seeds: Seeds) -> int:
    """How many there may be of each arm."""
    match seeds:
        case int(n):
            return n
        case AddedSeeds(at_most=at_most):
            return at_most
        case named:
            return len(named)


def _required_unless_extending(schema: dict[str, Any]) -> None:
    """For editors: a file that extends another study may leave everything else to it; no file has arms and factors."""
    needed = schema.pop("required")
    wholes = [{"required": [*needed, design]} for design in ("arms", "cross")]
    schema["anyOf"] = [{"required": ["extends"]}, *wholes]
    schema["not"] = {"required": ["arms", "cross"]}


def _number_of_arms(known: dict[str, Any]) -> int:
    """Of a study with these fields; 1 where nothing right says how many."""
    return len(known.get("arms") or ()) or prod(map(len, known.get("cross", {}).values()))


class StudyConfig(Settings):
    """A comparison of architectures under one budget."""

    model_config = ConfigDict(json_schema_extra=_required_unless_extending)

    extends: FileName | None = None
    """Another study, by name or file. Its values hold where this one says nothing; `set` is merged key by key."""
    scales: dict[Line, dict[str, Any]] = Field(default_factory=dict)
    """Name -> fields of this file with their values at another scale (`--scale NAME`): smaller and quicker, or larger,
    for another machine. They replace the fields above; `set` is merged key by key."""
    question: Text
    """What is asked, as a sentence."""
    claim: Text | None = None
    """What is commonly said, with its source."""
    base: FileName
    """The config that every arm starts from: a preset's name or a YAML file."""
    plugins: PlugIns = ()
    """Modules of your own, or files that end in .py, that bring components, optimisers or outcomes, for all arms."""
    set: Overrides = Field(default_factory=dict)
    """Changes of the base, for all arms. A `data.path` is looked for beside the study's file first.
    Over a `set` of `extends`, or at a scale, null takes a key away."""
    against: Literal["base", "previous"] | dict[str, str] = "base"
    """base: every arm is the base plus its overrides, and is compared with the first arm. previous: a ladder, where
    an arm adds its overrides to the arm above it and is compared with that one. arm -> arm: as base, but these arms are
    compared with those."""
    cross: dict[str, Annotated[list[Any], Field(min_length=2)]] = Field(default_factory=dict)
    """Field -> values, its levels. Every combination is an arm, and the first one is what the others are compared
    with. Given in place of arms."""
    arms: dict[Line, Overrides] = Field(default_factory=dict)
    """Name -> overrides. The first arm is the one the others are compared with; it may be empty. No two arms may be
    equal. Given in place of cross."""
    labels: dict[str, Line] = Field(default_factory=dict)
    """Arm -> what to call it in tables and pictures."""
    sizes: Annotated[list[Count], Field(max_length=6)] = Field(default_factory=list)
    """Parameters, ascending: all arms are compared at each of these sizes, to which the base is scaled in its own
    proportions. Empty: at the size that the base has."""
    rate_over_sizes: Literal["inverse_width", "same"] = "inverse_width"
    """What becomes of the base's learning rate where its width changes with the size: inverse_width divides it as the
    width is multiplied, and is refused with model.mup, which does so itself: say same."""
    budget: Budget
    """Per run."""
    equal: Equal | None = None
    """null: arms may differ in size; the report shows by how much."""
    tune: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Field -> values tried for every arm, on seeds of their own; the best is used."""
    tune_seeds: Count = 1
    """Seeds per value of the grid; none of them is used in the comparison."""
    tuned: dict[str, Overrides] = Field(default_factory=dict)
    """Arm -> values of `train` fields that an earlier tuning study found for it."""
    measure: Outcomes = Field(default_factory=dict)
    """What else the arms are compared by, beside the loss on held-out text (a task: beside its right answers): a list
    of kinds, or name -> settings."""
    primary: Line | None = None
    """The outcome that the answer is about, by name. null: the loss on held-out text, or a task's right answers."""
    sweep: dict[str, Annotated[list[float], Field(min_length=2)]] = Field(default_factory=dict)
    """A field of train -> values at which every arm is trained with every seed, for the outcomes of a sweep."""
    folds: Count | None = None
    """Parts of the text on which seeds are judged, in turn: each seed trains on all but its own. null: half of those
    that the text has, at most ten; no tokenizer was learned from these."""
    seeds: Seeds = 3
    """How many seeds per arm (0, 1, ...), or which, or the rule by which seeds are added."""
    margin: Positive | None = None
    """The largest difference that does not matter, in bits per byte. Arms whose difference is shown to be smaller are
    equivalent; null: that is not asked."""

    @field_validator("scales")
    @classmethod
    def _of_other_fields(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        allowed = [name for name in cls.model_fields if name not in ("extends", "scales", "question", "claim")]
        for scale, values in value.items():
            for field in values:
                if field not in allowed:
                    raise ValueError(f"{scale}: {field!r}; allowed: {', '.join(allowed)}")
        return value

    @field_validator("arms")
    @classmethod
    def _arms_or_factors(cls, value: Any, info: ValidationInfo) -> Any:
        if "cross" in info.data and bool(value) == bool(info.data["cross"]):
            raise ValueError("give either arms, name -> what it changes, or cross, field -> its values")
        return value

    @field_validator("sizes")
    @classmethod
    def _ascending(cls, value: list[int]) -> list[int]:
        if len(value) == 1 or any(after < 1.1 * before for before, after in pairwise(value)):
            raise ValueError(f"{value}; allowed: 2 to 6 numbers of parameters, each at least 10% above the one before")
        return value

    @field_validator("tune", "tune_seeds", "seeds")
    @classmethod
    def _not_too_many(cls, value: Any, info: ValidationInfo) -> Any:
        """Counted before any list of runs is made; of fields that are wrong themselves nothing is known."""
        known = {"tune": {}, **info.data, str(info.field_name): value}
        factors = {"arms": _number_of_arms(known)}
        if sizes := known.get("sizes"):
            factors |= {"sizes": len(sizes)}
        if info.field_name == "seeds":
            factors |= {"seeds": most_seeds(value)}
        else:
            points = prod(map(len, known["tune"].values())) if known["tune"] else 0
            factors |= {"points of the grid": points, "seeds": known.get("tune_seeds", 1)}
        if (runs := prod(factors.values())) > MOST_RUNS:
            product = " x ".join(f"{number:,} {what}" for what, number in factors.items())
            raise ValueError(
                f"{runs:,} runs ({product}); allowed: up to {MOST_RUNS:,}, for each is a training and a folder"
            )
        return value

    @property
    def seed_list(self) -> list[int]:
        """The seeds of the comparison; where a rule adds some, the first ones."""
        return first_seeds(self.seeds)
