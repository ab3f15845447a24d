"""Schema of a study file: the study's question, its arms, and what is held equal between them."""

from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from archlab.config.core.base import Count, Flops, Overrides, Positive, Seed, Settings, Share, Tokens
from archlab.config.core.plugins import PlugIns
from archlab.config.core.text import FileName, Line, Text
from archlab.study.outcome_schema import Outcomes

MOST_RUNS = 10_000
"""Largest allowed number of comparison runs, and of tuning runs, in one study."""

FIRST_TUNING_SEED = 1000
"""First seed of the tuning runs. The comparison uses other seeds, so that the same lucky seed cannot affect both."""


class Budget(Settings):
    """Training budget of each run. Give exactly one of the four fields."""

    tokens: Tokens | None = None
    """Number of training tokens of each run."""
    flops: Flops | None = None
    """Training FLOPs of each run. They include the masked query-key pairs that the kernel computes. An arm that costs
    less per token trains on more tokens."""

    tokens_per_parameter: Positive | None = None
    """Number of training tokens per parameter of the base, after the base is scaled to the size of the run."""
    bytes: Tokens | None = None
    """Bytes of text that each run trains on. The number of tokens depends on the arm's tokenizer."""

    @model_validator(mode="after")
    def _check_one_field(self) -> "Budget":
        if [self.tokens, self.flops, self.tokens_per_parameter, self.bytes].count(None) != 3:
            raise ValueError("give exactly one of tokens, flops, tokens_per_parameter and bytes")
        return self


class Equal(Settings):
    """Quantity that every arm shares with the first arm, and the field that is adjusted to match it. Give exactly one
    of parameters and flops."""

    parameters: Share | None = None
    """Largest allowed relative difference in the parameter count."""
    flops: Share | None = None
    """Largest allowed relative difference in training FLOPs per token, as the kernels compute them."""
    by: Literal["model.mlp.d_ff", "model.d_model", "model.n_layers"] = "model.mlp.d_ff"
    """Field that is adjusted in an arm whose relative difference is larger than allowed."""

    @model_validator(mode="after")
    def _check_one_field(self) -> "Equal":
        if (self.parameters is None) == (self.flops is None):
            raise ValueError("give exactly one of parameters and flops")
        return self


class AddedSeeds(Settings):
    """Rule that adds seeds: the scatter over the first seeds decides the total number (Stein 1945)."""

    until: Positive
    """True difference that every comparison is to detect with a probability of 80%, in bits per byte."""
    at_most: Annotated[int, Field(ge=3, le=FIRST_TUNING_SEED)]
    """Largest number of seeds per arm, even if the scatter requires more."""
    first: Annotated[int, Field(ge=3, le=FIRST_TUNING_SEED)] = 5
    """Number of seeds per arm that run before the total is decided. A small number estimates the scatter badly, so more
    seeds are needed in total."""

    @model_validator(mode="after")
    def _check_limit(self) -> "AddedSeeds":
        if self.at_most < self.first:
            raise ValueError(f"at_most is {self.at_most}; it must be at least first, which is {self.first}")
        return self


Seeds = Annotated[int, Field(ge=2)] | Annotated[list[Seed], Field(min_length=2)] | AddedSeeds
"""Seeds of a study: their number n (the seeds 0 to n - 1), a list of seeds, or a rule that adds seeds."""


def first_seeds(seeds: Seeds) -> list[int]:
    """Return the seeds that run in any case, before a rule adds more."""
    match seeds:
        case int(n):
            return list(range(n))
        case AddedSeeds(first=first):
            return list(range(first))
        case named:
            return list(named)


def most_seeds(seeds: Seeds) -> int:
    """Return the largest number of seeds that an arm can have."""
    match seeds:
        case int(n):
            return n
        case AddedSeeds(at_most=at_most):
            return at_most
        case named:
            return len(named)


def _required_unless_extending(schema: dict[str, Any]) -> None:
    """Tell editors that a file with `extends` needs no other field, and that no file may have both arms and cross."""
    required = schema.pop("required")
    complete = [{"required": [*required, design]} for design in ("arms", "cross")]
    schema["anyOf"] = [{"required": ["extends"]}, *complete]
    schema["not"] = {"required": ["arms", "cross"]}


def _number_of_arms(fields: dict[str, Any]) -> int:
    return len(fields.get("arms") or ()) or prod(map(len, fields.get("cross", {}).values()))


class StudyConfig(Settings):
    """A comparison of architectures under one budget."""

    model_config = ConfigDict(json_schema_extra=_required_unless_extending)

    extends: FileName | None = None
    """Study to extend, by name or file. It provides the values of all fields that this file leaves out. `set` is merged
    key by key."""
    scales: dict[Line, dict[str, Any]] = Field(default_factory=dict)
    """Variants of this study at other scales (`--scale NAME`), by name. Each holds the fields that change, with their
    values. Values of a scale replace those of the study; `set` is merged key by key."""
    question: Text
    """Question that the study asks, as a sentence."""
    claim: Text | None = None
    """Common opinion that the study tests, with its source."""
    base: FileName
    """Config that every arm starts from: a preset, a YAML file, a run folder or a Hugging Face folder."""
    plugins: PlugIns = ()
    """Your Python files or modules that add components, optimizers, outcomes or other kinds. They apply to all arms."""
    set: Overrides = Field(default_factory=dict)
    """Changes to the base that apply to all arms. A `data.path` is looked up next to the study's file first. null
    removes a key that the `set` of the extended study contains or, in a scale, the `set` of this study."""
    against: Literal["base", "previous"] | dict[str, str] = "base"
    """Rule that picks the reference of each arm. `base`: each arm is the base plus its own changes, and is compared
    with the first arm. `previous`: a ladder, in which each arm adds its changes to the arm above and is compared with
    that arm. A map `arm -> reference`: like `base`, but each named arm is compared with its reference."""
    cross: dict[str, Annotated[list[Any], Field(min_length=2)]] = Field(default_factory=dict)
    """Fields to cross, each with its values. Every combination of values is an arm, and is compared with the first
    combination. Use either cross or arms."""
    arms: dict[Line, Overrides] = Field(default_factory=dict)
    """Arms by name, each with the fields that it changes; {} changes nothing. All other arms are compared with the
    first one. No two arms may be equal."""
    labels: dict[str, Line] = Field(default_factory=dict)
    """Names of arms in tables and charts, by arm."""
    sizes: Annotated[list[Count], Field(max_length=6)] = Field(default_factory=list)
    """Parameter counts, in ascending order. The base is scaled to each size and keeps its proportions. The arms are
    compared at each size. Empty: only the size of the base."""
    rate_over_sizes: Literal["inverse_width", "same"] = "inverse_width"
    """Rule for the base's learning rate when the width changes with the size. `inverse_width` divides the rate by the
    factor by which the width grows. `same` keeps the rate. model.mup requires `same`, because it scales the rate
    itself."""
    budget: Budget
    """The training budget of each run."""
    equal: Equal | None = None
    """Quantity that all arms share. null: arms may differ in size, and the report shows by how much."""
    tune: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Fields of train to tune, each with the values to try. Every arm is tuned separately, with seeds that the
    comparison does not use. The comparison uses the best value."""
    tune_seeds: Count = 1
    """Number of seeds for each point of the tuning grid. The comparison uses other seeds."""
    tuned: dict[str, Overrides] = Field(default_factory=dict)
    """Values of `train` fields that an earlier study found, by arm."""
    measure: Outcomes = Field(default_factory=dict)
    """Additional outcomes by which the arms are compared: a list of kinds, or settings by name. The held-out loss (for
    a task, the fraction of correct answers) is always compared."""
    primary: Line | None = None
    """Name of the outcome that the answer is about. null: the held-out loss or, for a task, the fraction of correct
    answers."""
    sweep: dict[str, Annotated[list[float], Field(min_length=2)]] = Field(default_factory=dict)
    """One field of train, with the values at which every arm is trained with every seed. Outcomes of a sweep require
    this field."""
    folds: Count | None = None
    """Number of folds of the text on which the seeds are evaluated in turn. Each seed trains on all other folds. null:
    half of all folds, at most ten. No tokenizer is trained on these default folds."""
    seeds: Seeds = 3
    """Number n of seeds per arm (the seeds 0 to n - 1), a list of seeds, or a rule that adds seeds."""
    margin: Positive | None = None
    """Largest difference that does not matter, in bits per byte. Arms are equivalent if a test shows that their
    difference is smaller. null: equivalence is not tested."""

    @field_validator("scales")
    @classmethod
    def _check_scales(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        allowed = [name for name in cls.model_fields if name not in ("extends", "scales", "question", "claim")]
        for scale, values in value.items():
            for field in values:
                if field not in allowed:
                    raise ValueError(f"{scale}: {field!r} cannot change with the scale; allowed: {', '.join(allowed)}")
        return value

    @field_validator("arms")
    @classmethod
    def _check_arms_or_cross(cls, value: Any, info: ValidationInfo) -> Any:
        if "cross" in info.data and bool(value) == bool(info.data["cross"]):
            raise ValueError("give exactly one of arms (name -> its changes) and cross (field -> its values)")
        return value

    @field_validator("sizes")
    @classmethod
    def _check_ascending(cls, value: list[int]) -> list[int]:
        if len(value) == 1 or any(after < 1.1 * before for before, after in pairwise(value)):
            raise ValueError(
                f"{value}; allowed: a list of 2 to 6 parameter counts, each at least 10% above the one before"
            )
        return value

    @field_validator("tune", "tune_seeds", "seeds")
    @classmethod
    def _check_number_of_runs(cls, value: Any, info: ValidationInfo) -> Any:
        """Count the runs before creating any list of runs, which could be huge. `info.data` does not contain invalid
        fields."""
        fields = {"tune": {}, **info.data, str(info.field_name): value}
        factors = {"arms": _number_of_arms(fields)}
        if sizes := fields.get("sizes"):
            factors |= {"sizes": len(sizes)}
        if info.field_name == "seeds":
            factors |= {"seeds": most_seeds(value)}
        else:
            points = prod(map(len, fields["tune"].values())) if fields["tune"] else 0
            factors |= {"points of the grid": points, "seeds": fields.get("tune_seeds", 1)}
        if (runs := prod(factors.values())) > MOST_RUNS:
            product = " x ".join(f"{number:,} {noun}" for noun, number in factors.items())
            raise ValueError(
                f"{runs:,} runs ({product}); allowed: up to {MOST_RUNS:,}, "
                "because each run trains a model and has a folder"
            )
        return value

    @property
    def seed_list(self) -> list[int]:
        """Seeds of the comparison. If a rule adds seeds, only the first seeds."""
        return first_seeds(self.seeds)
