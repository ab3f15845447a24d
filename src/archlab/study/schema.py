"""Schema of a study file: the study's question, its arms, and the quantity in which all arms match."""

from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from archlab.config.core.base import Count, Flops, Overrides, Positive, Seed, Settings, Share, Tokens
from archlab.config.core.plugins import PlugIns
from archlab.config.core.text import FileName, Line, Text
from archlab.study.outcomes.field import Outcomes

MOST_RUNS = 10_000
"""Largest allowed number of runs in the comparison. The same limit applies to the tuning runs."""

FIRST_TUNING_SEED = 1000
"""First seed of the tuning runs. The comparison uses different seeds, so a seed that happens to favor an arm cannot
affect both."""


def _check_exactly_one(settings: Settings, *fields: str) -> None:
    """Raise ValueError if none or several of these fields are set."""
    found = [field for field in fields if getattr(settings, field) is not None]
    if len(found) != 1:
        raise ValueError(f"sets {' and '.join(found) or 'nothing'}; allowed: exactly one of {', '.join(fields)}")


class Budget(Settings):
    """Training budget of each run. Set exactly one of the four fields."""

    tokens: Tokens | None = None
    """Number of training tokens of each run."""
    flops: Flops | None = None
    """Training FLOPs of each run. They include masked query-key pairs that the kernel computes, and the source texts
    of an encoder. An arm with fewer FLOPs per token trains on more tokens."""

    tokens_per_parameter: Positive | None = None
    """Number of training tokens per parameter of the base. If the study has `sizes`, the parameters of the scaled base
    count."""
    bytes: Tokens | None = None
    """Bytes of text that each run trains on. The number of tokens depends on the arm's tokenizer."""

    @model_validator(mode="after")
    def _check_one_field(self) -> "Budget":
        _check_exactly_one(self, "tokens", "flops", "tokens_per_parameter", "bytes")
        return self


class Equal(Settings):
    """Quantity in which every arm must match the first arm, and the field that is adjusted for this. Set exactly one of
    `parameters` and `flops`."""

    parameters: Share | None = None
    """Largest allowed relative difference from the first arm's parameter count, for example 0.01."""
    flops: Share | None = None
    """Largest allowed relative difference from the first arm's training FLOPs per token. The FLOPs include masked
    query-key pairs that the kernel computes, and the source texts of an encoder."""
    by: Literal["model.mlp.d_ff", "model.d_model", "model.n_layers"] = "model.mlp.d_ff"
    """Field that is adjusted if an arm differs from the first arm by more than allowed."""

    @model_validator(mode="after")
    def _check_one_field(self) -> "Equal":
        _check_exactly_one(self, "parameters", "flops")
        return self


class AddedSeeds(Settings):
    """Rule that adds seeds: the standard deviation over the first seeds decides the total number of seeds (Stein
    1945)."""

    until: Positive
    """Size of the difference to detect, in bits per byte. The rule adds seeds until every comparison detects a true
    difference of this size with a probability of 80%."""
    at_most: Annotated[int, Field(ge=3, le=FIRST_TUNING_SEED)]
    """Largest number of seeds per arm, even if the rule would add more."""
    first: Annotated[int, Field(ge=3, le=FIRST_TUNING_SEED)] = 5
    """Number of seeds per arm that run before the total is decided. A small number estimates the standard deviation
    badly, so more seeds are needed in total."""

    @model_validator(mode="after")
    def _check_limit(self) -> "AddedSeeds":
        if self.at_most < self.first:
            raise ValueError(f"at_most is {self.at_most}; allowed: {self.first} (the value of `first`) or more")
        return self


Seeds = Annotated[int, Field(ge=2)] | Annotated[list[Seed], Field(min_length=2)] | AddedSeeds
"""Seeds of a study: a number n for the seeds 0 to n - 1, a list of seeds, or a rule that adds seeds."""


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


class StartTraining(Settings):
    """Training of the base from random weights, once. All arms then begin from these weights."""

    tokens: Tokens
    """Number of training tokens."""
    set: Overrides = Field(default_factory=dict)
    """Changes to the base that apply only to this training, such as `train.schedule: constant`. Fields of the study's
    `set` that concern trained weights do not apply to it: train.start_layers, train.teacher and train.lora."""


class ManipulationCheck(Settings):
    """Condition without which the study cannot answer its question, such as that the reference has learned the task.
    It should be written before the runs, so that a result cannot be explained away afterwards."""

    arm: Line
    """Name of an arm."""
    outcome: Line | None = None
    """Name of the outcome whose mean over the seeds is checked. null: the primary outcome."""
    at_least: float | None = None
    """Smallest mean that meets the condition."""
    at_most: float | None = None
    """Largest mean that meets the condition. Set exactly one of `at_least` and `at_most`."""
    because: Text
    """Reason for the condition, as a sentence."""
    decides: list[Line] = Field(default_factory=list)
    """Names of the outcomes that need the condition. Empty: all outcomes."""
    arms: list[Line] = Field(default_factory=list)
    """Names of the arms and contrasts whose comparisons need the condition. Empty: all comparisons."""

    @model_validator(mode="after")
    def _check_one_bound(self) -> "ManipulationCheck":
        _check_exactly_one(self, "at_least", "at_most")
        return self


def _required_unless_extending(schema: dict[str, Any]) -> None:
    """Tell editors that a file with `extends` needs no other field, that a file with `start` needs no base, and that no
    file may have both arms and cross."""
    required = [field for field in schema.pop("required") if field != "base"]
    bases = ("base", "start")
    complete = [{"required": [*required, base, design]} for base in bases for design in ("arms", "cross")]
    schema["anyOf"] = [{"required": ["extends"]}, *complete]
    schema["not"] = {"required": ["arms", "cross"]}


def _number_of_arms(fields: dict[str, Any]) -> int:
    return len(fields.get("arms") or ()) or prod(map(len, fields.get("cross", {}).values()))


class StudyConfig(Settings):
    """A comparison of architectures under one budget."""

    model_config = ConfigDict(json_schema_extra=_required_unless_extending)

    extends: FileName | None = None
    """Study to extend: its name or its file. Fields that this file leaves out have the values of that study. `set` is
    merged key by key."""
    scales: dict[Line, dict[str, Any]] = Field(default_factory=dict)
    """Variants of this study, by name, for example with fewer tokens (`--scale NAME`). Each variant holds the fields
    that it changes, with their new values. `set` is merged key by key."""
    question: Text
    """Question that the study asks, as a sentence."""
    claim: Text | None = None
    """Common opinion that the study tests, with its source."""
    base: FileName
    """Config that every arm changes: a preset, a YAML file, a run folder or a Hugging Face folder. If it is left out,
    it is that of the folder or hub id in `start`."""
    plugins: PlugIns = ()
    """Your Python files or modules that add components, optimizers, outcomes or other kinds. They apply to all arms."""
    set: Overrides = Field(default_factory=dict)
    """Changes to the base that apply to all arms. A relative `data.path` is first looked up next to the study's file.
    null removes a key that the extended study sets or, in a scale, that this study sets."""
    start: str | StartTraining | None = None
    """Trained weights from which all arms begin: a run folder, a Hugging Face folder, a hub id, or a training of the
    base that the study does itself, as in `{tokens: 20M}`. The overrides of an arm change the weights
    (docs/trained_weights.md). The weights must not have read the folds on which the study evaluates; a training by the
    study leaves them out. null: random weights."""
    against: Literal["base", "previous"] | dict[str, str] = "base"
    """Rule that picks the reference of each arm. `base`: each arm adds only its own changes to the base, and its
    reference is the first arm. `previous`: a ladder, in which each arm adds its changes to those of the arm above. Its
    reference is the arm above. A mapping such as `{gqa: mha}`: like `base`, but the reference of the arm gqa is the arm
    mha."""
    cross: dict[str, Annotated[list[Any], Field(min_length=2)]] = Field(default_factory=dict)
    """Fields to cross, each with its values. Every combination of values is an arm, and is compared with the first
    combination. Set either `cross` or `arms`."""
    arms: dict[Line, Overrides] = Field(default_factory=dict)
    """Arms by name, each with the values of the fields that it changes; {} changes nothing. By default, every arm is
    compared with the first one. No two arms may be identical."""
    labels: dict[str, Line] = Field(default_factory=dict)
    """Labels of the arms in tables and charts, by arm."""
    sizes: Annotated[list[Count], Field(max_length=6)] = Field(default_factory=list)
    """Parameter counts, in ascending order. The base is scaled to each size with its proportions kept, and the arms are
    compared at each size. Empty: the base keeps its size."""
    at_size: dict[str, Overrides] = Field(default_factory=dict)
    """Further changes of an arm at one of the `sizes`, by the name of the arm at this size, such as `wide at 3M`. They
    take precedence over those in `arms`."""
    rate_over_sizes: Literal["inverse_width", "same"] = "inverse_width"
    """Rule for the base's learning rate if `sizes` changes the width. `inverse_width` divides the rate by the factor by
    which the width grows. `same` keeps the rate. `model.mup` requires `same`, because it already scales the rate with
    the width."""
    budget: Budget
    """The training budget of each run."""
    equal: Equal | None = None
    """Quantity in which all arms must match. null: arms may differ in size, and the report shows by how much."""
    tune: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Fields of `train` to tune, each with the values to try. Every arm is tuned separately, and the comparison uses
    its best values. Tuning and comparison use different seeds."""
    tune_seeds: Count = 1
    """Number of seeds for each combination of the values to try. The comparison uses different seeds."""
    tuned: dict[str, Overrides] = Field(default_factory=dict)
    """Values of `train` fields that an earlier study found by tuning, by arm."""
    measure: Outcomes = Field(default_factory=dict)
    """Additional outcomes by which the arms are compared: a list of kinds, or a mapping from names to settings. The
    held-out loss (for a task, the fraction of correct answers) is always compared."""
    primary: Line | None = None
    """Name of the outcome that the answer is about. null: the held-out loss or, for a task, the fraction of correct
    answers."""
    sweep: dict[str, Annotated[list[float], Field(min_length=2)]] = Field(default_factory=dict)
    """One field of `train`, with the values to sweep. Every arm is trained with each value and each seed. Outcomes such
    as `sensitivity` require a sweep."""
    folds: Count | None = None
    """Number of folds of the text for evaluation. The seeds are assigned to these folds in turn. Each seed trains on
    all folds except its own. null: half of all folds, at most ten, or a single one if the study has a `start`. No
    tokenizer is trained on these default folds."""
    seeds: Seeds = 3
    """Seeds of each arm: a number n for the seeds 0 to n - 1, a list of seeds, or a rule that adds seeds."""
    largest_seeds: Annotated[int, Field(ge=2)] | None = None
    """Number of seeds at the largest of the `sizes`, the first ones of `seeds`. null: all seeds."""
    margin: Positive | None = None
    """Largest difference that does not matter, in bits per byte. Two arms are equivalent if a test shows that their
    difference is smaller. null: equivalence is not tested."""
    checks: list[ManipulationCheck] = Field(default_factory=list)
    """Conditions without which the study cannot answer its question. If the runs do not meet one, the report says so.
    At a smaller scale, they may not be met."""

    @model_validator(mode="before")
    @classmethod
    def _with_base_of_start(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "base" not in raw and isinstance(raw.get("start"), str):
            return {**raw, "base": raw["start"]}
        return raw

    @field_validator("scales")
    @classmethod
    def _check_scales(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        allowed = [name for name in cls.model_fields if name not in ("extends", "scales", "question", "claim")]
        for scale, values in value.items():
            for field in values:
                if field not in allowed:
                    raise ValueError(f"{scale}: a scale cannot change {field!r}; allowed: {', '.join(allowed)}")
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
            raise ValueError(f"{value}; allowed: 2 to 6 parameter counts, each at least 10% larger than the one before")
        return value

    @field_validator("tune", "tune_seeds", "seeds")
    @classmethod
    def _check_number_of_runs(cls, value: Any, info: ValidationInfo) -> Any:
        """Check the number of runs before any list of runs is created, because the list could be huge. `info.data`
        lacks the fields that are invalid."""
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

    @field_validator("largest_seeds")
    @classmethod
    def _check_largest_seeds(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None or "seeds" not in info.data or "sizes" not in info.data:
            return value
        if not info.data["sizes"]:
            raise ValueError("needs `sizes`; a study of one size has the same seeds for all arms")
        if isinstance(info.data["seeds"], AddedSeeds) or value > len(first_seeds(info.data["seeds"])):
            raise ValueError(f"{value}; allowed: up to the number of `seeds`, which must be fixed")
        return value

    def has_run(self, size: int | None, seed: int) -> bool:
        """Return whether the arms of this size are trained with this seed."""
        is_largest = bool(self.sizes) and size == self.sizes[-1]
        return self.largest_seeds is None or not is_largest or seed in self.seed_list[: self.largest_seeds]

    @property
    def seed_list(self) -> list[int]:
        """Seeds of the comparison. If a rule adds seeds, the list contains only the first seeds."""
        return first_seeds(self.seeds)
