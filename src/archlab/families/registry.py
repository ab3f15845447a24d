"""All families of published models that archlab can read and write."""

from collections.abc import Mapping
from functools import cache
from importlib import resources

from archlab.config.core.yaml_text import read_yaml
from archlab.config.problems import choose
from archlab.displayed import Families
from archlab.errors import UserError
from archlab.families import (
    afmoe,
    apertus,
    arcee,
    aria_text,
    axk1,
    bamba,
    bart,
    bert,
    bert_generation,
    biogpt,
    blenderbot,
    bloom,
    camembert,
    codegen,
    cohere,
    cohere2,
    cohere2_moe,
    cohere_compass_text,
    ctrl,
    cwm,
    data2vec_text,
    dbrx,
    deepseek_v2,
    deepseek_v3,
    distilbert,
    dots1,
    electra,
    ernie,
    ernie4_5,
    ernie4_5_moe,
    exaone4,
    exaone_moe,
    falcon,
    falcon_h1,
    falcon_mamba,
    flex_olmo,
    flint,
    gemma,
    gemma2,
    gemma3_text,
    gemma4_text,
    gemma4_unified_text,
    glm,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gpt_neox_japanese,
    gpt_oss,
    gptj,
    granite,
    granite_swa,
    granitemoe,
    granitemoe_swa,
    granitemoehybrid,
    granitemoeshared,
    grok_1,
    helium,
    hunyuan_v1_dense,
    hunyuan_v1_moe,
    hy_v3,
    hyperclovax,
    internlm3,
    jais2,
    jamba,
    kimi_linear,
    laguna,
    lfm2,
    lfm2_moe,
    lfm3,
    llama,
    llama4_text,
    m2m_100,
    mamba,
    mamba2,
    marian,
    mbart,
    megatron_bert,
    mellum,
    mimo_v2_flash,
    minicpm3,
    minimax_m2,
    ministral,
    ministral3,
    mistral,
    mixtral,
    modernbert,
    modernbert_decoder,
    mpt,
    mt5,
    mvp,
    nanochat,
    nemotron,
    nemotron_h,
    olmo,
    olmo2,
    olmo3,
    olmo_hybrid,
    olmoe,
    openai_gpt,
    opt,
    pegasus,
    persimmon,
    phi,
    phi3,
    phimoe,
    plbart,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5_moe_text,
    qwen3_5_text,
    qwen3_moe,
    qwen3_next,
    recurrent_gemma,
    roberta,
    roberta_prelayernorm,
    roformer,
    seed_oss,
    smollm3,
    solar_open,
    stablelm,
    starcoder2,
    t5,
    umt5,
    vaultgemma,
    xglm,
    xlm_roberta_xl,
    youtu,
)
from archlab.hf.family import Family

_MODULES = (
    afmoe, apertus, arcee, aria_text, axk1, bamba, bart, bert, bert_generation, biogpt, blenderbot, bloom, camembert,
    codegen, cohere, cohere2, cohere2_moe, cohere_compass_text, ctrl, cwm, data2vec_text, dbrx, deepseek_v2,
    deepseek_v3, distilbert, dots1, electra, ernie, ernie4_5, ernie4_5_moe, exaone4, exaone_moe, falcon, falcon_h1,
    falcon_mamba, flex_olmo, flint, gemma, gemma2, gemma3_text, gemma4_text, gemma4_unified_text, glm, glm4, glm4_moe,
    glm4_moe_lite, gpt2, gpt_bigcode, gpt_neo, gpt_neox, gpt_neox_japanese, gpt_oss, gptj, granite, granite_swa,
    granitemoe, granitemoe_swa, granitemoehybrid, granitemoeshared, grok_1, helium, hunyuan_v1_dense, hunyuan_v1_moe,
    hy_v3, hyperclovax, internlm3, jais2, jamba, kimi_linear, laguna, lfm2, lfm2_moe, lfm3, llama, llama4_text, m2m_100,
    mamba, mamba2, marian, mbart, megatron_bert, mellum, mimo_v2_flash, minicpm3, minimax_m2, ministral, ministral3,
    mistral, mixtral, modernbert, modernbert_decoder, mpt, mt5, mvp, nanochat, nemotron, nemotron_h, olmo, olmo2, olmo3,
    olmo_hybrid, olmoe, openai_gpt, opt, pegasus, persimmon, phi, phi3, phimoe, plbart, qwen2, qwen2_moe, qwen3,
    qwen3_5_moe_text, qwen3_5_text, qwen3_moe, qwen3_next, recurrent_gemma, roberta, roberta_prelayernorm, roformer,
    seed_oss, smollm3, solar_open, stablelm, starcoder2, t5, umt5, vaultgemma, xglm, xlm_roberta_xl, youtu,
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {module.FAMILY.model_type: module.FAMILY for module in _MODULES}
"""Mapping from `model_type`, the key of config.json that names the family, to the family. Sorted by the names of the
family modules."""

_BY_NAME = {name: family for family in FAMILIES.values() for name in (family.model_type, *family.other_model_types)}


@cache
def refused() -> Mapping[str, Mapping[str, str]]:
    """Return why archlab does not load some causal language models of transformers: reasons by answer and `model_type`.

    The answers are `refused` and `not a language model`.
    """
    return read_yaml(resources.files("archlab.families") / "refused.yaml")


def find_family(model_type: object, where: str) -> Family:
    """Return the family with this `model_type`. `where` names its field in messages, with its file.

    If archlab refuses the family, raise a UserError that gives the reason. If it does not know the `model_type`, raise
    a UserError that lists all families.
    """
    name = str(model_type)
    if name in _BY_NAME:
        return _BY_NAME[name]
    for answer, reasons in refused().items():
        if name in reasons:
            families = "`archlab list families` shows the families that archlab loads"
            raise UserError(f"{where} is {name!r}; {answer}: {reasons[name]}; {families}")
    problem = f"is {model_type!r}" if model_type else "is missing"
    raise UserError(f"{where} {problem}{choose(name, list(FAMILIES))}")


def list_families() -> Families:
    """Return the model families whose checkpoints archlab loads and saves, each with its class in transformers.

    >>> archlab.list_families()["llama"]
    'LlamaForCausalLM'
    """
    return Families({name: family.architecture for name, family in FAMILIES.items()})
