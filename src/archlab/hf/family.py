"""Family of published models: the translation of its config.json to an archlab config and back."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from archlab.config.components.moe import MoE
from archlab.config.components.position import NoPosition, Rope
from archlab.config.core.base import MOST_LAYERS
from archlab.config.core.merge import Raw, expand
from archlab.config.identity import flatten
from archlab.config.io import build_config, overlay
from archlab.config.layers import encoder_of, final_norm, layer_configs, resolve
from archlab.config.model_schema import Layers, ModelConfig
from archlab.config.problems import ConfigError, Problem, raise_problems
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.hf.fields import REQUIRED, ConfigReader, Field, Key, Only, all_hf_keys, lookup
from archlab.hf.quantization import Quantization
from archlab.hf.rope import without_idle_scalings
from archlab.hf.weight_map import Constant, Row, multiplied

NO_EFFECT = {
    "model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "use_cache", "output_past",
    "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "decoder_start_token_id", "unk_token_id", "_name_or_path", "name_or_path", "return_dict", "output_attentions",
    "output_hidden_states", "chunk_size_feed_forward", "is_encoder_decoder", "id2label", "label2id",
    "problem_type", "pretraining_tp", "attention_dropout", "hidden_dropout", "attn_pdrop", "resid_pdrop",
    "embd_pdrop", "dropout", "activation_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob",
    "residual_dropout", "embedding_dropout", "layerdrop", "gradient_checkpointing", "auto_map",
    "_attn_implementation", "attn_implementation", "task_specific_params", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "is_decoder", "finetuning_task",
    "tokenizer_class", "unsloth_version", "torchscript", "init_std", "layer_norm_eps_init", "_model_name_or_path",
    "cache_implementation", "_sliding_window_pattern", "prefix", "use_bfloat16", "tf_legacy_loss",
    "_attn_implementation_autoset", "unsloth_fixed", "neftune_noise_alpha", "is_llama_config",
    # settings for text generation, which older files keep in config.json
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
}  # fmt: skip
"""Keys of any family that do not change the forward pass of a loaded model.

Almost every config.json contains some of these keys, so archlab ignores them without a note.
"""

OTHER_TOOLS = {
    # which program reads the file, and how
    "transformers.js_config", "custom_pipelines", "trust_remote_code", "device_map", "low_cpu_mem_usage",
    "_commit_hash", "_diffusers_version", "keys_to_ignore_at_inference",
    # for training, or for a different head
    "num_labels", "loss_type", "classifier_dropout", "classifier_dropout_prob", "use_liger_kernel",
    # which kernel computes the same result
    "_flash_attn_2_enabled", "use_flash_attn", "use_flash_attention", "use_flash_attention_2", "flash_attention",
    "experts_implementation", "_experts_implementation",
    # settings of the tokenizer, and its maximum text length
    "padding_side", "tokenizer_padding_side", "tokenizer_model_max_length", "model_max_length", "max_sequence_length",
}  # fmt: skip
"""Keys that no transformers class uses in a forward pass, because they are for other tools or for training.

archlab ignores these keys and prints a note with their names.
"""


EVERYWHERE: Sequence[Field] = (
    Only("is_causal", True, written=False),  # every transformers class reads it
    Only("rope_interleaved", False, written=False),
    Only("pruned_heads", {}, written=False),
    Quantization(),
)
"""Steps of the translation for keys that a config.json of any family may contain."""


ROPE_FREQUENCIES = "rotary_emb.inv_freq"
"""End of the names of tensors with the frequencies of RoPE, which old files have and which archlab computes."""


@dataclass(frozen=True)
class Family:
    """Family of published models: how its config.json is translated, and which tensors hold its weights.

    In this class and in the modules of the families, `hf` contains the values of the published config.json. `ours` maps
    archlab's dotted config fields (`attention.n_heads`) to values.
    """

    model_type: str
    architecture: str
    """Name of the transformers class, as in the key `architectures` of config.json."""
    fields: Sequence[Field]
    weights: Sequence[Row]
    default_max_seq_len: int | None = None
    """Default of the published class for the key of `max_seq_len`, such as `max_position_embeddings`. Scalings of RoPE
    read it, too. None if a field has the default."""
    ignored: Sequence[str] = ()
    """Ends of the names of published tensors that have no effect: buffers, such as masks, and unused weights."""
    constants: Sequence[Constant] = ()
    """Published tensors that contain one fixed number. archlab's model has no parameter for them, so another number is
    an error."""
    alternatives: Sequence[Row] = ()
    """Rows for weights files that store some parameters in a different layout. If a file contains the tensor of such a
    row, the row is used instead of the rows in `weights` for the same parameters."""
    factors: Callable[[ConfigReader], Mapping[str, float]] | None = None
    """Function that returns factors of parameters by name, for a config.json with multipliers for which archlab has no
    field. Loading multiplies the parameters by them."""
    has_mtp_layers: bool = False
    """Whether the published files may contain additional layers for multi-token prediction, which archlab ignores."""
    other_model_types: tuple[str, ...] = ()
    """Values of `model_type`, apart from the field `model_type`, in published config.json files of this family."""
    other_architectures: tuple[str, ...] = ()
    """Names of classes whose files have all tensors of `architecture`, and heads for other tasks, which archlab
    ignores."""
    prefix: str = ""
    """Prefix of all tensor names except those of the head. archlab also reads files without this prefix."""
    has_encoder: bool = False
    """Whether models of the family have an encoder and a decoder."""
    copies: tuple[str, ...] = ()
    """Names of tensors that some files contain and that must equal the embedding."""
    zero_if_absent: tuple[str, ...] = ()
    """Endings of names of tensors that some files lack because all of their values are 0."""
    position_tables: tuple[str, ...] = ()
    """Names of tensors with sinusoidal position vectors, which archlab computes. Other values are an error."""
    tied_by_weights: bool = False
    """Whether the weights file, not config.json, decides if the head is tied: it is tied if the file has no matrix for
    the head, or if this matrix equals the embedding."""
    no_effect: frozenset[str] = field(default_factory=frozenset)
    """Keys of this family that do not affect the forward pass."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Mapping from alternative names of keys, which some files contain, to their usual names."""

    def rows_of(self, parameter: str) -> list[Row]:
        """Return the rows of `weights` whose tensor holds only one parameter of archlab, the one with this name."""
        return [row for row in self.weights if row.names == (parameter,)]

    def with_factors(self, values: Mapping[str, Any], where: str) -> "Family":
        """Return the family with rows that multiply parameters by the factors in a config.json."""
        if self.factors is None:
            return self
        factors = self.factors(ConfigReader(_canonical(values, self.aliases, where), where))
        return replace(self, weights=[multiplied(row, factors) for row in self.weights])

    def model_config(self, values: Mapping[str, Any], where: str) -> ModelConfig:
        return self.read(values, where)[0]

    def read(self, values: Mapping[str, Any], where: str) -> tuple[ModelConfig, list[str]]:
        """Translate the values of a config.json. Return the archlab config, and the keys of `values` that were ignored
        and that a note should name.

        Raise UserError for an unknown key, or for a value that archlab cannot express. Error messages begin with
        `where`, the name of the file.
        """
        present = _canonical(values, self.aliases, where)
        if self.default_max_seq_len:
            present.setdefault(all_hf_keys(self.fields)["max_seq_len"], self.default_max_seq_len)
        hf, ours = ConfigReader(present, where), dict[str, Any]()
        parts = (Only("is_encoder_decoder", self.has_encoder), *EVERYWHERE, *self.fields)
        refused = [problem for part in parts if (problem := _refusal(part, hf, ours))]
        others = {k: v for k, v in hf.unread().items() if k not in NO_EFFECT | self.no_effect and v is not None}
        unknown = {k: v for k, v in others.items() if k not in OTHER_TOOLS and not _is_off(v)}
        if unknown:
            listed = ", ".join(f"{key} = {value!r}" for key, value in unknown.items())
            refused.append(f"{where}: archlab does not know these keys of family {self.model_type}: {listed}")
        if refused:
            raise UserError("\n".join(dict.fromkeys(refused)))
        try:
            return _built(ours, where), sorted(others)
        except ConfigError as error:
            raise_problems([self._with_hf_key(problem) for problem in error.problems], where)
            raise

    def _with_hf_key(self, problem: Problem) -> Problem:
        keys = all_hf_keys(self.fields)
        field = problem.path.removeprefix("model.")
        # A layer kind that DenseLayers has split is called `dense`, or ends in `_dense`.
        names = (
            re.sub(r"^layers\.\w+_dense\.", "layers.dense.", field),
            re.sub(r"^(layers\.\w+|encoder)\.", "", field),
        )
        return Problem(next((keys[name] for name in names if name in keys), problem.path), problem.message)

    def hf_config(self, model: ModelConfig, *, wide: bool = False) -> Raw:
        """Return the config.json values of a model. They are read back, and a UserError names the fields that have
        changed, because this family cannot express them.

        `wide` says that the weights are float32 or float64. Fields about the rounding of intermediate results are then
        not compared.
        """
        model = without_idle_scalings(model)
        # A class's default padding token may lie beyond a small vocabulary. The class then refuses the config.
        out: Raw = {"model_type": self.model_type, "architectures": [self.architecture], "pad_token_id": None}
        if self.has_encoder:
            out |= {"is_encoder_decoder": True, "decoder_start_token_id": None, "forced_eos_token_id": None}
        full = resolve(_with_mixture_as_base(_with_rope_as_base(model)))
        for part in self.fields:
            part.write(full, out)
        self._check_required_keys(full, out)
        read_back = self.model_config(out, f"{self.model_type} export")
        lost = {
            name: pair
            for name, pair in differing(model, read_back).items()
            if not (wide and name.endswith(("norm.cast", "embedding.round_scale")) and None not in pair)
        }
        if lost:
            # A field that differs in the same way in several layers is reported once.
            unique = {
                (re.sub(r"^(encoder\.)?layers\.\d+\.", r"\1layers.*.", name), *map(str, pair)): name
                for name, pair in lost.items()
            }
            lines = [f"  model.{name}: {here} in this model, {exported} if exported" for name, here, exported in unique]
            raise UserError("\n".join([f"{self.architecture} cannot express this model", *lines]))
        return out

    def _check_required_keys(self, model: ModelConfig, hf: Raw) -> None:
        for part in self.fields:
            if isinstance(part, Key) and part.default is REQUIRED and part.hf_key not in hf:
                component, _, name = part.field.partition(".")
                kind = f"model.{component}.kind is {lookup(model, f'{component}.kind')}"
                raise UserError(
                    f"{self.architecture} needs the key {part.hf_key}, but {kind}, which has no field {name}"
                )


def _is_off(value: Any) -> bool:
    """Return whether an unknown key can be ignored because its value turns the option off: false, "", [] or {}.

    The value 0 does not count, because it may be a meaningful number.
    """
    return value is False or value in ("", [], {})


def _with_rope_as_base(model: ModelConfig) -> ModelConfig:
    """Return the model with its RoPE in `model.position`, where the fields look for it. The layer kinds without RoPE
    get `position.kind: none` instead."""
    ropes = [layer.position for layer in layer_configs(model) if isinstance(layer.position, Rope)]
    if model.layers is None or not isinstance(model.position, NoPosition) or not ropes:
        return model
    kinds = {name: {"position": {"kind": "none"}, **expand(change)} for name, change in model.layers.kinds.items()}
    layers = Layers.model_validate({**kinds, "pattern": model.layers.pattern})
    return model.model_copy(update={"position": ropes[0], "layers": layers})


def _with_mixture_as_base(model: ModelConfig) -> ModelConfig:
    mixture = next((layer.mlp for layer in layer_configs(model) if isinstance(layer.mlp, MoE)), None)
    if model.layers is None or isinstance(model.mlp, MoE) or mixture is None:
        return model
    common = model.mlp.model_dump()
    kinds = {name: {"mlp": common, **expand(change)} for name, change in model.layers.kinds.items()}
    layers = Layers.model_validate({**kinds, "pattern": model.layers.pattern})
    return model.model_copy(update={"mlp": MoE.model_validate(mixture.model_dump()), "layers": layers})


def _refusal(part: Field, hf: ConfigReader, ours: Raw) -> str | None:
    try:
        _read(part, hf, ours)
    except UserError as error:
        defaults = ConfigReader({}, hf.where)
        with suppress(UserError):
            _read(part, defaults, ours)
        hf.read |= defaults.read
        return str(error)
    return None


def _read(part: Field, hf: ConfigReader, ours: Raw) -> None:
    before = set(hf.read)
    try:
        part.read(hf, ours)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        _built(ours, hf.where)  # if an earlier value is the cause, the schema has a better message
        values = ", ".join(f"{key} = {hf.get(key)!r}" for key in sorted(hf.read - before)) or "a value"
        raise UserError(f"{hf.where}: {values}: cannot be read: {error}") from None
    n_layers = ours.get("n_layers", 1)
    if isinstance(n_layers, int) and n_layers > MOST_LAYERS:
        ours["n_layers"] = 1  # go on with one layer, because some fields are expanded layer by layer
        raise UserError(f"{hf.where}: {n_layers} layers; allowed: up to {MOST_LAYERS}")


def _canonical(values: Mapping[str, Any], aliases: Mapping[str, str], where: str) -> Raw:
    out = dict(values)
    for other, name in aliases.items():
        value = out.pop(other, None)
        if value is None:
            continue
        if out.get(name) is None:
            out[name] = value
        elif value != out[name]:
            raise UserError(f"{where}: {other} is {value!r}, but {name}, which means the same, is {out[name]!r}")
    return out


def _built(ours: Raw, where: str) -> ModelConfig:
    fields = {f"model.{key}": value for key, value in ours.items() if value is not None}
    return build_config(
        overlay({}, {**fields, "train.seq_len": 1, "train.batch_tokens": 1}, Config), source=where
    ).model


def differing(a: ModelConfig, b: ModelConfig) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ between two models, without fields that have no effect on the forward pass.

    The result maps each field to its values in `a` and in `b`. Layers are compared one by one, with their resolved
    configs.
    """
    left, right = _forward_fields(a), _forward_fields(b)
    return {key: (left.get(key), right.get(key)) for key in {**left, **right} if left.get(key) != right.get(key)}


TRAINING_ONLY: Any = {"kind": True, "dropout": True, "mlp": {"balance": True, "router": {"correction": {"rate"}}}}
"""Fields of a resolved layer that have no effect on the forward pass."""


def _forward_fields(model: ModelConfig) -> Raw:
    fields = resolve(model).model_dump(
        mode="json", include={"vocab_size", "d_model", "max_seq_len", "embedding", "head"}
    )
    encoder = encoder_of(model)
    return flatten({**fields, **_of_stack(model), "encoder": encoder and _of_stack(encoder)})


def _of_stack(model: ModelConfig) -> Raw:
    around: Raw = {"n_layers": model.n_layers, "norm": final_norm(model).model_dump(mode="json", exclude={"placement"})}
    if model.embedding.norm or (model.head.transform and model.head.transform.norm):
        around["outer_norm"] = model.norm.model_dump(mode="json", exclude={"placement"})
    around["layers"] = {
        str(i): layer.model_dump(mode="json", exclude=TRAINING_ONLY) for i, layer in enumerate(layer_configs(model))
    }
    return around
