"""Changes that keep the trained tensors, so that the same weights compute something else: windows, scalings of RoPE,
norms of queries and keys that are added late, soft caps, and all other fields."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from archlab.config.components.position import T5, Position
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.layers import LayerConfig
from archlab.errors import UserError
from archlab.transplant.exact_lengths import no_tokens, same_keys, same_norms, same_rotations, same_temperatures
from archlab.transplant.transformation import Entry


class Difference(NamedTuple):
    """Field with another value than in the trained model."""

    field: str
    """Field of a layer or of the model, as in `attention.window`."""
    before: object
    after: object

    @property
    def name(self) -> str:
        """Name of the field in the config."""
        return f"model.encoder.{self.field}" if self.field.startswith("cross.") else f"model.{self.field}"

    def fits(self, fields: tuple[str, ...], before: object, after: object) -> bool:
        """Return whether the difference is in one of these fields and has these values. `...` is any value."""
        values = ((before, self.before), (after, self.after))
        in_fields = any(fnmatchcase(self.name, field) for field in fields)
        return in_fields and all(expected in (..., value) for expected, value in values)


@dataclass(frozen=True, kw_only=True)
class Reconfiguration(Entry):
    """Change of fields that keeps all tensors that the new model still has."""

    before: object = ...
    """Value in the trained model for which this holds. `...` is any value."""
    after: object = ...
    position: type[Position] = Position
    """Position encoding of the layers for which this holds."""
    exact_up_to: Callable[[LayerConfig, LayerConfig], float] = no_tokens
    """Function of the trained and the new layer. It returns the largest length of texts, in tokens, in which the change
    does nothing."""


class _Refusal(NamedTuple):
    fields: tuple[str, ...]
    why: str
    before: object = ...
    after: object = ...


_RATE = ("model.mlp.router.correction.rate",)
_VISIBILITY = ("model.attention.visibility",)
_SCALING = ("model.position.scaling.kind",)

RECONFIGURATIONS = (
    Reconfiguration(
        name="window",
        effect="approximate",
        fields=(
            "model.attention.window",
            "model.attention.stride",
            "model.attention.global_tokens",
            "model.attention.blocks*",
        ),
        rule="queries see more or fewer keys",
        exact_in="texts that are no longer than the smaller window or block",
        paper="Beltagy 2020, arXiv 2004.05150",
        exact_up_to=same_keys,
    ),
    Reconfiguration(
        name="temperature",
        effect="approximate",
        fields=("model.attention.temperature.*",),
        rule="queries of later tokens are multiplied by other factors",
        exact_in="texts of up to temperature.length - temperature.offset tokens",
        exact_up_to=same_temperatures,
    ),
    Reconfiguration(
        name="position interpolation",
        effect="approximate",
        fields=_SCALING,
        after="linear",
        rule="all frequencies of RoPE are divided by the factor",
        paper="Chen 2023, arXiv 2306.15595",
        exact_up_to=same_rotations,
    ),
    Reconfiguration(
        name="dynamic NTK",
        effect="approximate",
        fields=_SCALING,
        after="dynamic",
        rule="theta grows with the length of long texts",
        exact_in="texts of up to scaling.original_max_seq_len tokens",
        paper="Peng 2023, arXiv 2309.00071",
        exact_up_to=same_rotations,
    ),
    Reconfiguration(
        name="YaRN",
        effect="approximate",
        fields=_SCALING,
        after="yarn",
        rule="the frequencies of slow pairs of dimensions are divided by the factor, and scores are scaled",
        paper="Peng 2023, arXiv 2309.00071",
        exact_up_to=same_rotations,
    ),
    Reconfiguration(
        name="LongRoPE",
        effect="approximate",
        fields=_SCALING,
        after="longrope",
        rule="the frequency of each pair of dimensions is divided by its own number, and scores are scaled",
        exact_in="texts of up to scaling.original_max_seq_len tokens if scaling.factor and all short factors are 1",
        paper="Ding 2024, arXiv 2402.13753",
        exact_up_to=same_rotations,
    ),
    Reconfiguration(
        name="Llama 3 scaling",
        effect="approximate",
        fields=_SCALING,
        after="llama3",
        rule="long wavelengths of RoPE are multiplied by the factor",
        paper="Grattafiori 2024, arXiv 2407.21783",
        exact_up_to=same_rotations,
    ),
    Reconfiguration(
        name="p-RoPE",
        effect="approximate",
        fields=_SCALING,
        after="proportional",
        rule="slow pairs of dimensions are no longer rotated",
        paper="Barbero 2024, arXiv 2410.06205",
        exact_up_to=same_rotations,
    ),
    Reconfiguration(
        name="other rotations",
        effect="approximate",
        fields=("model.position.theta", "model.position.scaling.*"),
        rule="RoPE rotates queries and keys by other angles",
        exact_in="texts of up to the length from which the angles differ",
        exact_up_to=same_rotations,
    ),
    Reconfiguration(
        name="late QK-norm",
        effect="approximate",
        fields=("model.*.qk_norm.kind",),
        before="none",
        rule="the weights of the new norms are 1",
        paper="Henry 2020, arXiv 2010.04245",
    ),
    Reconfiguration(
        name="attention sinks",
        effect="approximate",
        fields=("model.*.sinks",),
        before=False,
        after=True,
        rule="the score of a new sink is 0",
        paper="Xiao 2023, arXiv 2309.17453",
    ),
    Reconfiguration(
        name="soft cap",
        effect="approximate",
        fields=("model.*.softcap",),
        rule="the larger a score or logit is, the more another cap changes it",
        paper="Gemma Team 2024, arXiv 2408.00118",
    ),
    Reconfiguration(
        name="lost output gate",
        effect="approximate",
        fields=("model.*.gate.*",),
        after=None,
        rule="the gate is lost",
    ),
    Reconfiguration(
        name="lost biases",
        effect="approximate",
        fields=("model.*bias",),
        before=True,
        after=False,
        rule="the values of the biases are lost",
    ),
    Reconfiguration(
        name="visible prefix with T5",
        effect="approximate",
        fields=_VISIBILITY,
        position=T5,
        rule="T5 has other buckets if tokens see later ones",
        paper="Raffel 2020, arXiv 1910.10683",
    ),
    Reconfiguration(
        name="visible prefix",
        effect="exact",
        fields=_VISIBILITY,
        before="causal",
        after="prefix",
        rule="exact in texts without a prefix",
        paper="Raffel 2020, arXiv 1910.10683",
    ),
    Reconfiguration(
        name="no visible prefix",
        effect="approximate",
        fields=_VISIBILITY,
        before="prefix",
        after="causal",
        rule="exact in texts without a prefix",
    ),
    Reconfiguration(
        name="one norm or two for parallel branches",
        effect="approximate",
        fields=("model.block.parallel",),
        rule="attention and MLP read other norms or another stream",
        exact_in="all texts if both models are parallel and their norms have no parameters",
        exact_up_to=same_norms,
    ),
    Reconfiguration(
        name="new biases of experts",
        effect="exact",
        fields=_RATE,
        before=None,
        rule="the new biases of the experts are 0",
        paper="Wang 2024, arXiv 2408.15664",
    ),
    Reconfiguration(
        name="lost biases of experts",
        effect="approximate",
        fields=_RATE,
        after=None,
        rule="the biases of the experts are lost",
    ),
    Reconfiguration(
        name="rate of the biases of experts",
        effect="exact",
        fields=_RATE,
        rule="only training changes",
    ),
    Reconfiguration(
        name="new factors of 1",
        effect="exact",
        fields=("model.block.stream_scale", "model.mlp.router.expert_scale"),
        before=False,
        rule="the new factors are 1",
    ),
    Reconfiguration(
        name="place of rounding",
        effect="exact",
        fields=("model.*.cast", "model.embedding.round_scale"),
        rule="only the rounding in 16-bit dtypes changes",
    ),
)
"""Changes whose effect is known. The first one that fits counts."""

OTHER_FIELD = Reconfiguration(
    name="other setting",
    effect="approximate",
    fields=("model.*",),
    rule="the same weights compute something else, such as with another activation, epsilon or position encoding",
)
"""Any other change that does not change the shapes of tensors."""

_HEADS = tuple(
    f"model.{place}.{field}"
    for place in ("attention", "encoder.cross")
    for field in ("n_heads", "n_kv_heads", "head_dim", "v_dim", "nope_dim", "rope_dim", "kv_rank", "q_rank")
)
_HEADS_OF_MIXER = tuple(
    f"model.mixer.{field}"
    for field in (
        "n_heads", "n_key_heads", "n_value_heads", "head_dim", "key_dim", "value_dim", "n_groups", "d_state",
    )
)  # fmt: skip
_REFUSALS = (
    _Refusal(("model.*.qk_norm.weight",), "no matrix can take over the weights of these norms", True, False),
    _Refusal(("model.position.pairing",), "RoPE would rotate other pairs of dimensions"),
    _Refusal(("model.position.layout",), "features would get the sinusoids of other features"),
    _Refusal(("model.*.gate.per",), "the trained gate has another number of factors"),
    _Refusal(("model.mlp.gated",), "the matrix `up` has another purpose in gated experts"),
    _Refusal((*_HEADS, *_HEADS_OF_MIXER), "the trained features are in heads of other sizes"),
)
"""Changes after which the weights would mean nothing."""


def reconfiguration_of(difference: Difference, layer: LayerConfig | None) -> Reconfiguration:
    """Return the change that a difference is. `layer` is the new layer, or None for a field outside the layers. Raise
    UserError, with the field, if the weights would mean nothing after the change."""
    for known in RECONFIGURATIONS:
        has_position = known.position is Position or (layer is not None and isinstance(layer.position, known.position))
        if has_position and difference.fits(known.fields, known.before, known.after):
            return known
    for fields, why, before, after in _REFUSALS:
        if difference.fits(fields, before, after):
            found = f"{text_of(difference.after)}, but {text_of(difference.before)} in the trained weights"
            raise UserError(f"{difference.name}: {found}; {why}; allowed: {text_of(difference.before)}")
    return OTHER_FIELD


def text_of(value: object) -> str:
    """Return a value of a field as YAML."""
    return to_yaml_line(list(value) if isinstance(value, tuple) else value)
