"""Examples of use, which `--help` and the command reference show for each command."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Example: TypeAlias = tuple[str, str]
"""Command as the user types it, and a description of what it does."""

_BENCH_TRAIN: Sequence[Example] = (
    ("archlab bench train mini-llama", "Training speed of a preset."),
    (
        "archlab bench train mini-llama train.compile=true --steps 20",
        "The same with a compiled model, over 20 training steps.",
    ),
)
_BENCH_DECODE: Sequence[Example] = (
    ("archlab bench decode mini-llama", "Decoding speed of a preset."),
    ("archlab bench decode mini-llama --batch 8 --context 512", "Eight sequences at once, after 512 tokens each."),
)
_STUDY_RUN: Sequence[Example] = (
    ("archlab study run gates --scale smoke", "A short trial of a study that comes with archlab."),
    ("archlab study run mine.yaml --out studies/mine", "A study of your own. Run it again to resume."),
)
_STUDY_NEW: Sequence[Example] = (
    ("archlab study new --out mine.yaml", "A small study to change and run."),
    ("archlab study new ladder --out my-ladder.yaml", "Start from a study that comes with archlab."),
)

EXAMPLES: Mapping[str, Sequence[Example]] = {
    "list": (
        ("archlab list presets", "Published architectures by year, and small presets to train."),
        ("archlab list presets --filter family=llama 'year>=2024'", "Llama models since 2024."),
        ("archlab list presets --sort -size", "All architectures, the largest first."),
    ),
    "show": (
        ("archlab show llama-3-8b", "Every field of a published model, with defaults and derived values."),
        ("archlab show gemma-2-9b --layers", "Its layers as a table."),
        ("archlab show tiny-llama model.norm.kind=layernorm > mine.yaml", "Save a changed config."),
    ),
    "ui": (
        ("archlab ui --open", "Start the server and open its first page."),
        ("archlab ui --host lab.example --port 8000", "In a container that browsers reach as lab.example."),
    ),
    "draw": (
        ("archlab draw llama-3-8b --out llama.svg", "The block diagram of a published model."),
        ("archlab draw gemma-2-9b --unfold mlp,attention --out gemma.png", "With the inside of MLP and attention."),
    ),
    "diff": (
        ("archlab diff llama-2-7b llama-3-8b --model-only", "What differs between the two architectures."),
        ("archlab diff llama-3-8b gemma-2-9b --html diff.html", "A page with both diagrams side by side."),
        ("archlab diff gpt-2 gpt-2 b.model.n_layers=6 --model-only", "A config and a changed version of it."),
    ),
    "explain": (
        ("archlab explain", "All topics, in the order of a lecture."),
        ("archlab explain rope", "One topic: formula, reasons, models that use it, cost and evidence."),
        ("archlab explain model.attention.n_kv_heads", "One field of a config."),
    ),
    "guide": (
        ("archlab guide --out guide", "Write the website; guide/index.html is its first page."),
        ("archlab guide --out ~/public_html/archlab", "Write it into a folder that a web server shows."),
    ),
    "schema": (
        ("archlab schema > archlab.json", "The schema of configs, for the YAML support of an editor."),
        ("archlab schema study > study.json", "The schema of studies."),
    ),
    "cost": (
        ("archlab cost llama-3-8b gemma-2-9b --hardware h100", "Two models side by side, with times on an H100."),
        ("archlab cost llama-3-8b --batch 1,64 --context 8Ki,32Ki", "Four combinations of batch and context."),
        (
            "archlab cost llama-3-8b train.tokens=1T --hardware h100x8 --devices 64",
            "Ways to train it on 64 devices.",
        ),
    ),
    "size": (
        ("archlab size --params 1B", "The shape of a model with a billion parameters, like Llama 3."),
        ("archlab size --like gemma-2 --memory 16GiB", "A shape like Gemma 2 that fits into 16 GiB for serving."),
        (
            "archlab size --flops 1e20 --out mine.yaml",
            "The best size for a training budget in FLOPs, saved as a config.",
        ),
    ),
    "check": (
        ("archlab check palm-540b", "Review a published shape."),
        (
            "archlab check llama-3-8b model.mlp.d_ff=11000 --tensor 8",
            "Review a changed shape for training on eight devices.",
        ),
        ("archlab check mine.yaml --strict", "For scripts: exit code 1 if there is a warning."),
    ),
    "hardware": (
        ("archlab hardware h100", "Peak speeds, memory and links of a device."),
        ("archlab hardware h100x8", "The same for eight such devices."),
        ("archlab hardware --measure", "Measure this machine, in about four minutes."),
    ),
    "bench": (_BENCH_TRAIN[0], _BENCH_DECODE[0]),
    "bench train": _BENCH_TRAIN,
    "bench decode": _BENCH_DECODE,
    "profile": (
        ("archlab profile mini-llama", "Time, FLOPs and bytes of a training step by kind of operation."),
        ("archlab profile mini-llama train.seq_len=512 --json", "With longer sequences, as JSON."),
    ),
    "data": (
        (
            "archlab data books/ --out data/books",
            "Learn a tokenizer from the text files in a folder, and tokenize them.",
        ),
        ("archlab data python-stdlib --vocab-size 4096 --out data/python", "Python's standard library as text."),
        (
            "archlab data chats.jsonl --chat messages --tokenizer llama --out chats",
            "Conversations in the chat template of a model.",
        ),
    ),
    "train": (
        ("archlab train tiny-llama --out runs/first", "Train a small preset. Run it again to resume."),
        ("archlab train tiny-llama model.norm.kind=layernorm --out runs/layernorm", "Train a changed architecture."),
        ("archlab train mine.yaml data.path=data/books --out runs/books", "Train your own config on your own text."),
    ),
    "report": (
        ("archlab report runs/first", "Write runs/first/report.html."),
        ("archlab report runs/first runs/layernorm --out compared.html", "Compare two runs on one page."),
        ("archlab report runs/first --live 10", "Write the page again every 10 seconds during the training."),
    ),
    "probe": (
        ("archlab probe tiny-llama", "Gradients and activations of every layer before training."),
        ("archlab probe tiny-llama tiny-transformer --html probe.html", "Compare two architectures on a page."),
        ("archlab probe tiny-llama model.mup.base_width=64 --widths 64,128,256", "The coordinate check of muP."),
    ),
    "eval": (
        ("archlab eval runs/first", "Score the last checkpoint on all of the held-out text."),
        ("archlab eval runs/first runs/layernorm", "Compare two runs on the same text."),
        ("archlab eval runs/first --tokens 100K --int8", "The first 100,000 tokens, with weights of 8 bits."),
    ),
    "lm-eval": (
        ("archlab lm-eval runs/first arc_easy piqa", "Score a run on two tasks."),
        ("archlab lm-eval HuggingFaceTB/SmolLM2-135M hellaswag --limit 100", "100 questions to a published model."),
    ),
    "generate": (
        ('archlab generate runs/first --prompt "def main():"', "Continue a text."),
        ("archlab generate runs/first --temperature 0 --max-new-tokens 50", "Always take the likeliest token."),
        ('archlab generate runs/tuned --chat --prompt "What is a cat?"', "The response of a model for conversations."),
    ),
    "fill": (
        ('archlab fill google-bert/bert-base-uncased --text "The [MASK] sat."', "The five likeliest tokens."),
        ('archlab fill FacebookAI/roberta-base --text "The <mask> sat." --top 3', "Another tokenizer, three tokens."),
    ),
    "demo": (
        ("archlab demo", "Train the ladder of seven architectures. Run it again to resume."),
        ("archlab demo --out studies/here", "Choose the study folder."),
    ),
    "study": (
        ("archlab study list", "The studies that come with archlab."),
        _STUDY_RUN[0],
        _STUDY_NEW[0],
    ),
    "study list": (
        ("archlab study list", "Question, prediction and duration of every study."),
        ("archlab study list --json", "The same as JSON, for scripts."),
    ),
    "study show": (
        ("archlab study show ladder", "The arms of a study and how long it takes."),
        ("archlab study show ladder --scale smoke", "The same for a short trial."),
        ("archlab study show ladder --yaml > my-ladder.yaml", "Save it, to change and run it."),
    ),
    "study new": _STUDY_NEW,
    "study run": _STUDY_RUN,
    "study report": (
        ("archlab study report studies/ladder", "Table and page of the runs that are finished."),
        ("archlab study report studies/ladder --json > ladder.json", "All results as JSON, for scripts."),
    ),
    "ledger": (
        ("archlab ledger", "All claims, and what our runs found."),
        ("archlab ledger 3", "One claim in full."),
        ("archlab ledger mistakes", "Common errors, each with the fact and a command that shows it."),
    ),
    "import": (
        ("archlab import HuggingFaceTB/SmolLM2-135M --out runs/smollm", "Download a model of the Hugging Face hub."),
        ("archlab import models/llama --out runs/llama", "Import a Hugging Face folder."),
    ),
    "export": (
        ("archlab export runs/first --out exported", "A folder for transformers or vLLM."),
        ("archlab export runs/first --gguf --out first.gguf", "A file for llama.cpp."),
    ),
    "inspect": (
        ("archlab inspect runs/first", "What a run folder contains."),
        ("archlab inspect HuggingFaceTB/SmolLM2-135M", "Whether archlab can load a published model."),
    ),
    "convert": (
        ("archlab convert llama model.attention.n_kv_heads=8 --out llama-gqa", "Eight key/value heads."),
        ("archlab convert runs/a model.attention.window=512 --out runs/a-windows", "Sliding windows in all layers."),
    ),
    "flatten": (
        ("archlab flatten llama-3-8b", "The whole model as one PyTorch file."),
        ("archlab flatten gpt-2 model.norm.kind=rmsnorm > mine.py", "Save a changed model as a file."),
    ),
    "verify": (
        ("archlab verify model.py:MultiHeadAttention cs336 --part attention", "A class that computes attention."),
        (
            "archlab verify norms.py:rms_norm cs336 model.d_model=64 --part norm --json",
            "A function of the input and the weight, for a narrower model.",
        ),
    ),
    "doctor": (
        ("archlab doctor", "Everything, with the command that installs what is missing."),
        ("archlab doctor gguf hub", "The same; exit code 1 if GGUF files or hub ids would not work."),
    ),
    "completion": (
        ("archlab completion --install", "Complete in new shells of the kind that you use."),
        ("archlab completion fish > archlab.fish", "Only write the script for fish."),
    ),
}
"""Mapping from commands (without `archlab`, as in `study run`) to their examples."""
