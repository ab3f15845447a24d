"""Configs and weights of MVP (MvpForConditionalGeneration in transformers): BART, with prompts in some files."""

from dataclasses import replace

from archlab.families.bart import FAMILY as BART
from archlab.hf.fields import Key, Only

FAMILY = replace(
    BART,
    model_type="mvp",
    architecture="MvpForConditionalGeneration",
    fields=[
        *BART.fields,
        Key("vocab_size", "vocab_size", 50267),
        Only("use_prompt", False, "false, because archlab has no learned prompts"),
    ],
    no_effect=BART.no_effect | {"prompt_length", "prompt_mid_dim"},
)
