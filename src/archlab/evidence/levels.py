"""What a person calls the levels of crossed factors, and the contrasts that are made of them."""

import re
from typing import Any

from archlab.config.core.yaml_text import to_yaml_line
from archlab.evidence.topics import topics
from archlab.study.contrasts import Planned
from archlab.study.cross import said, short_names


def contrast_in_words(contrast: Planned) -> tuple[str, str]:
    """What is compared with what: `post-norm on average` and `pre-norm`; of an interaction `effect of no warm-up with
    post-norm` and `that with pre-norm`."""
    *given, (factor, (first, other)) = contrast.factors.items()
    if not given:
        return f"{level_in_words(factor, other)} on average", level_in_words(factor, first)
    ((where, levels),) = given
    one, another = (f"with {level_in_words(where, level)}" for level in levels)
    return f"effect of {level_in_words(factor, other)} {another}", f"that {one}"


def level_in_words(path: str, level: Any) -> str:
    """`post-norm`, where a topic is made by this value; `weight decay 0.3` and `no warm-up`, where one is about the
    field, whatever its value; else as on the command line."""
    about = [topic for _, topic in topics() if path in topic.fields]
    if len(about) == 1 and all(map(_is_number, (level, *about[0].fields.values()))):
        what = _in_a_sentence(about[0].title)
        return f"{what} {to_yaml_line(level)}" if level else f"no {what}"
    titles = [topic.title for topic in about if topic.fields == {path: level}]
    return _in_a_sentence(titles[0]) if titles else said(short_names([path])[path], level)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_a_sentence(title: str) -> str:
    """With a small letter where the first word is not a name of its own, as RoPE is."""
    return title[0].lower() + title[1:] if re.match(r"[A-Z][a-z]+\b", title) else title
