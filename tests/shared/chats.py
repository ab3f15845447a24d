"""Chat templates in the style of published models, tokenizers with them, and conversations."""

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from archlab.data import tokenizer as bpe
from subwords import TEXTS, llama_2

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a cat.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA_2 = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
LLAMA_3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""
ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
PHI_3 = """\
{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""
TAGGED = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TAGGED_LLAMA_3 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- macro head(role) %}<|start_header_id|>{{ role }}<|end_header_id|>{{ '\\n\\n' }}{% endmacro %}
    {%- if loop.index0 > 40 %}{% break %}{% endif %}
    {{- head(message.role) }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}<|eot_id|>{% endgeneration %}
    {%- else %}{{ message.content | trim }}<|eot_id|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
TEMPLATES = {
    "chatml": CHATML, "qwen": QWEN, "llama_2": LLAMA_2, "llama_3": LLAMA_3, "gemma": GEMMA, "zephyr": ZEPHYR,
    "phi_3": PHI_3, "tagged": TAGGED, "tagged_llama_3": TAGGED_LLAMA_3,
}  # fmt: skip
WITHOUT_SYSTEM = {"gemma"}
ENDS = {
    "chatml": "<|im_end|>", "qwen": "<|im_end|>", "llama_2": "</s>", "llama_3": "<|eot_id|>", "gemma": "<end_of_turn>",
    "zephyr": "</s>", "phi_3": "<|end|>", "tagged": "<|im_end|>", "tagged_llama_3": "<|eot_id|>",
}  # fmt: skip
"""Token that ends a response, by template."""

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "<start_of_turn>", "<end_of_turn>"]  # fmt: skip


def byte_level() -> Tokenizer:
    tokenizer = bpe.train(TEXTS * 5, 320)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Return a tokenizer like that of Phi 3, which puts a space before the text after each special token."""
    tokenizer = llama_2()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    tokenizer.add_special_tokens(
        [AddedToken(f"<|{name}|>", normalized=False, rstrip=True) for name in ("user", "assistant", "system", "end")]
    )
    return tokenizer


TOKENIZERS = {"byte_level": byte_level, "sentencepiece": sentencepiece}


def tokenizer_folder(folder: Path, template: str | None, kind: str = "byte_level", *, in_config: bool = True) -> Path:
    """Write a tokenizer with its special tokens and a chat template, as a published model has them."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(TOKENIZERS[kind]().to_str())
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if template is not None and in_config:
        described["chat_template"] = template
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def some_chats(n: int, *, system: bool = True, turns: int = 3, seed: int = 0) -> list[list[dict[str, str]]]:
    """Return different conversations of one or several turns."""
    draw, chats = random.Random(seed), list[list[dict[str, str]]]()
    words = ("the cat", "sat ☃", "naïve", "on a\n\nmat", "2 + 2", "日本語", "lazy dog", "quick")
    for i in range(n):
        messages = [{"role": "system", "content": "Be brief."}] if system and i % 3 == 0 else []
        for _ in range(draw.randint(1, turns)):
            for role in ("user", "assistant"):
                messages.append(
                    {"role": role, "content": " ".join([str(i), *draw.choices(words, k=draw.randint(1, 6))])}
                )
        chats.append(messages)
    return chats


def write_chats(path: Path, chats: list[list[dict[str, str]]]) -> Path:
    path.write_text("".join(json.dumps({"id": i, "messages": messages}) + "\n" for i, messages in enumerate(chats)))
    return path
