"""Words that people try as commands, and the commands that do it."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Way: TypeAlias = tuple[str, str]
"""A command without `archlab`, and what it does."""

_GENERATE = ("generate RUN --prompt TEXT", "continue a text; there is no chat")
_EXPORT = ("export RUN --out FOLDER", "a folder for transformers or vLLM")
_GGUF = ("export RUN --gguf --out FILE", "a file for llama.cpp")
_IMPORT = ("import NAME --out RUN", "a run folder of a published model")
_TRAIN = ("train CONFIG --out RUN", "train a model")
_FURTHER = ("train RUN data.path=DATA --out RUN", "train it further")
_RESUME = ("train RUN --out RUN", "go on where the run stopped")
_LONGER = ("train RUN train.tokens=N --out RUN", "a longer run (constant or wsd)")
_STUDY = ("study run STUDY", "train several arms and compare them")
_OWN_STUDY = ("study new --out mine.yaml", "a study's file, to change and run")
_DIFF = ("diff A B", "two configs, field by field")
_COST = ("cost CONFIG", "parameters, FLOPs, memory and time")
_COSTS = ("cost A B", "what they cost, side by side")
_EVAL = ("eval RUN", "bits per byte on held-out text")
_LM_EVAL = ("lm-eval RUN TASK", "scores on tasks of lm_eval")
_REPORT = ("report RUN", "curves of runs, also while they train")
_DRAW = ("draw CONFIG --out X.svg", "a block diagram")
_SHOW = ("show CONFIG", "a config, whole; `> x.yaml` keeps it")
_INSPECT = ("inspect FOLDER", "what a folder with weights is")
_BENCH = ("bench train CONFIG", "measured speed")
_PROFILE = ("profile CONFIG", "where the time of a training step goes")
_LIST = ("list", "presets, hardware, families and studies")
_DATA = ("data TEXT --out DATA", "learn a tokenizer and tokenize a text")
_EXPLAIN = ("explain TOPIC", "a choice: why, who uses it, what it costs")
_LEDGER = ("ledger", "published claims, and what was measured here")
_CHECK = ("check CONFIG", "review the shape of a config")
_STUDY_REPORT = ("study report FOLDER", "the table and the page, from the runs so far")

_ROWS: tuple[tuple[str, Sequence[Way]], ...] = (
    ("finetune fine-tune fine_tune sft lora adapt", (_IMPORT, _FURTHER)),
    ("run fit pretrain learn start launch", (_TRAIN, _STUDY)),
    ("resume continue restart", (_RESUME, _STUDY)),
    ("extend", (_LONGER,)),
    ("compare versus vs ablate ablation experiment experiments", (_DIFF, _COSTS, _STUDY, _OWN_STUDY)),
    ("sweep tune search grid optimize", (_OWN_STUDY, _STUDY)),
    ("chat talk ask prompt complete completion predict sample infer inference", (_GENERATE,)),
    ("serve server deploy api", (_EXPORT, _GGUF)),
    ("save upload push publish", (_EXPORT, _GGUF)),
    ("quantize quantise gguf", (_GGUF,)),
    ("download pull fetch load get", (_IMPORT, _LIST)),
    ("plot chart graph curves dashboard watch monitor tensorboard log logs status", (_REPORT, _STUDY_REPORT, _DRAW)),
    ("visualize visualise diagram picture", (_DRAW, _REPORT)),
    ("evaluate evaluation test score perplexity validate validation", (_EVAL, _LM_EVAL)),
    ("benchmark benchmarks", (_BENCH, _LM_EVAL)),
    ("speed time timing measure", (_BENCH, _PROFILE, ("hardware --measure", "this machine"))),
    ("info describe summary summarize view print config", (_SHOW, _INSPECT)),
    ("new init create edit", (_SHOW, _OWN_STUDY)),
    ("params parameters flops memory count estimate price budget", (_COST,)),
    ("scale shape design", (("size --params 1B", "a shape for a number of parameters"), _CHECK)),
    ("lint review", (_CHECK,)),
    ("models model preset presets families studies ls", (_LIST,)),
    ("tokenize tokenise tokenizer prepare preprocess dataset", (_DATA,)),
    ("why evidence claims", (_EXPLAIN, _LEDGER)),
    ("help", (("--help", "the commands"),)),
    ("version", (("--version", "the version"),)),
    ("docs doc tutorial", (("guide --out DIR", "the documents as a site"),)),
    ("study-start study-train study-resume study-continue", (_STUDY,)),
    ("study-create study-init study-edit", (_OWN_STUDY,)),
    ("study-status study-results study-plot study-compare study-summary", (_STUDY_REPORT,)),
)  # fmt: skip

WORDS: Mapping[str, Sequence[Way]] = {word: ways for words, ways in _ROWS for word in words.split()}
"""Word, after its group and a dash if it has one (`study-resume`) -> the commands that do it."""


def meant(word: str, ways: Sequence[Way]) -> str:
    """The lines that say what to use in place of a word."""
    width = max(len(command) for command, _ in ways)
    return "\n".join(
        [f"no command {word!r}; use:", *(f"  archlab {command:<{width}}  {does}" for command, does in ways)]
    )
