"""A study's file to begin with: every field with what the schema says of it."""

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from pydantic.fields import FieldInfo

from archlab.config.core.merge import Raw, section_classes
from archlab.config.core.yaml_text import to_yaml, to_yaml_line
from archlab.study.schema import StudyConfig

EXAMPLE: Raw = {
    "question": "Does RMSNorm train as well as LayerNorm?",
    "base": "tiny-llama",
    "set": {"train.seq_len": 128, "train.batch_tokens": 1024},
    "arms": {"layer": {"model.norm.kind": "layernorm"}, "rms": {"model.norm.kind": "rmsnorm"}},
    "budget": {"tokens": "256K"},
    "seeds": 3,
}
"""A few minutes on two cores."""

_WIDTH = 100


def template(values: Raw = EXAMPLE) -> str:
    """YAML of these values in the order of the schema. Each field stands below its description, and one that has no
    value is a comment with its default."""
    intro = "A study. Lines that begin with # are comments; docs/studies.md explains every field with examples."
    blocks = [_comment(intro)]
    blocks += [_block(name, field, values) for name, field in StudyConfig.model_fields.items()]
    return "\n\n".join(blocks) + "\n"


def _block(name: str, field: FieldInfo, values: Raw) -> str:
    lines = [_comment(str(field.description)), *_inside(field)]
    if name in values:
        line = to_yaml({name: values[name]}).rstrip()
        line = line[1:-1] if line.startswith("{") else line  # a short mapping is written in braces
    else:
        line = f"# {name}: {to_yaml_line(field.get_default(call_default_factory=True))}"
    return "\n".join([*lines, line])


def _inside(field: FieldInfo) -> Iterator[str]:
    """Of a field that has fields of its own."""
    for section in section_classes(field):
        for name, inner in section.model_fields.items():
            yield _comment(f"{name}: {inner.description}", indent="  ")


def _comment(text: Any, indent: str = "") -> str:
    """As many lines as it needs."""
    lines = wrap(" ".join(str(text).split()), _WIDTH, initial_indent=f"# {indent}", subsequent_indent=f"# {indent * 2}")
    return "\n".join(lines)
