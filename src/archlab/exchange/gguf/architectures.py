"""The architectures of llama.cpp that archlab writes, by the family whose models they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.limits import (
    GELU,
    NO_OUT_BIAS,
    SILU,
    TIED,
    UNCAPPED,
    Limit,
    all_biases,
    capped,
    every_other,
    local_unscaled,
    no_window,
    only,
    rounded,
    scale,
    scalings,
    some_window,
    square,
)
from archlab.exchange.gguf.rows import (
    AROUND,
    FALCON_NORMS,
    FUSED,
    FUSED_MLP,
    MLP,
    ONE_MORE,
    SIDE_BY_SIDE,
    norms,
    separate,
)
from archlab.hf.weights import Row


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's, as its code in `src/models/` computes it and `convert_hf_to_gguf.py` writes it."""

    name: str
    """`general.architecture`."""
    rows: Sequence[Row]
    """Where its tensors are."""
    limits: Sequence[Limit]
    """What it can run of what the family can say."""
    needs_output: bool = False
    """Whether a head that is the embedding must be written once more."""
    reads_scales: bool = False
    """Whether it reads factors on embedding, scores, branches and logits."""

    def check(self, model: ModelConfig) -> list[str]:
        """UserError that names everything it could not run; what it computes a little differently, in words."""
        problems = [line for limit in self.limits for line in limit(model)]
        if problems:
            listed = [f"  {line}" for line in dict.fromkeys(problems)]
            raise UserError("\n".join([f"llama.cpp's {self.name} cannot run this model exactly", *listed]))
        return list(rounded(model))


ANY_SCALING = scalings("linear", "yarn")

LLAMA = Architecture(
    "llama",
    [*AROUND, *separate(SIDE_BY_SIDE), *MLP, *norms()],
    [SILU, scalings("linear", "llama3", "yarn"), no_window],
)
GRANITE = replace(LLAMA, name="granite", reads_scales=True)
QWEN2 = Architecture("qwen2", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, no_window, square])
QWEN3 = Architecture("qwen3", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, no_window, NO_OUT_BIAS])
OLMO2 = Architecture(
    "olmo2", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, NO_OUT_BIAS, square], needs_output=True
)

GEMMA_ROWS = [*AROUND, *separate(), *MLP, *norms(ONE_MORE)]
GEMMA = Architecture("gemma", GEMMA_ROWS, [GELU, ANY_SCALING, NO_OUT_BIAS, TIED])
GEMMA2 = Architecture(
    "gemma2", GEMMA_ROWS, [GELU, ANY_SCALING, NO_OUT_BIAS, TIED, capped, some_window, every_other, scale(of_depth=46)]
)
GEMMA3 = Architecture(
    "gemma3", GEMMA_ROWS, [GELU, UNCAPPED, scalings("linear"), local_unscaled, NO_OUT_BIAS, scale(of_depth=62)]
)

PHI3 = Architecture("phi3", [*AROUND, *FUSED, *FUSED_MLP, *norms()], [SILU, scalings("linear"), no_window, square])
STABLELM = Architecture(
    "stablelm", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, square], needs_output=True
)
STARCODER2 = Architecture(
    "starcoder2", [*AROUND, *separate(), *MLP, *norms()], [GELU, ANY_SCALING, no_window, square, all_biases]
)

GPT2 = Architecture("gpt2", [*AROUND, *FUSED, *MLP, *norms()], [GELU, scale()])
GPT_NEOX = Architecture(
    "gptneox", [*AROUND, *FUSED, *MLP, *norms()], [GELU, ANY_SCALING, all_biases], needs_output=True
)
BLOOM = Architecture("bloom", [*AROUND, *FUSED, *MLP, *norms()], [GELU, only("norm.placement", "pre")])
MPT = Architecture("mpt", [*AROUND, *FUSED, *MLP, *norms()], [GELU, scale()])
FALCON = Architecture(
    "falcon",
    [*AROUND, *FUSED, *MLP, *FALCON_NORMS],
    [
        GELU, ANY_SCALING, NO_OUT_BIAS, only("position.kind", "rope"), only("block.parallel", "shared", "separate"),
    ],
)  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": LLAMA, "mistral": LLAMA, "granite": GRANITE, "qwen2": QWEN2, "qwen3": QWEN3, "olmo2": OLMO2,
    "gemma": GEMMA, "gemma2": GEMMA2, "gemma3_text": GEMMA3, "phi3": PHI3, "stablelm": STABLELM,
    "starcoder2": STARCODER2, "gpt2": GPT2, "gpt_neox": GPT_NEOX, "bloom": BLOOM, "mpt": MPT, "falcon": FALCON,
}  # fmt: skip
"""By `model_type`."""


def find_architecture(family: str) -> Architecture:
    """The architecture that runs a family's models; UserError that lists those there are."""
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    raise UserError(f"{family}: no family that archlab writes for llama.cpp; allowed: {', '.join(ARCHITECTURES)}")
