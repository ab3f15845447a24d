"""Find the topics or config fields that a word refers to, and the topics that explain what an arm changes."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from archlab.atlas.models import entries
from archlab.config.core.base import kind_of
from archlab.config.core.registry import Registered, users_kinds
from archlab.config.io import begins, facts, presets, words_of
from archlab.config.problems import nearest
from archlab.config.vocabulary import meant
from archlab.errors import UserError
from archlab.evidence.field_help import FieldHelp, field_help
from archlab.evidence.topics import Chapter, Topic, chapters, topics
from archlab.evidence.words import words
from archlab.study.authoring import SCHEMAS

Named = tuple[str, Topic]


class UsersKinds(list[type[Registered]]):
    """Kinds from the user's plug-ins that have the same name, each in a different section of the config."""


_CLOSE = 0.82
"""Minimum similarity between an unknown word and a suggestion, from 0 to 1. It is high because different terms are
often short and similar, such as NSA and SWA."""

_SIMPLIFIED = str.maketrans(
    "專丟個習僅優體餘減則動單參雙變後塊頭學實寬對層張歸徑態擴擬損據數斷無顯暫術"
    "機權構標橫殘匯彙潛點熱狀積穩線練組經綁絡絕維綴緩編縮網純縱範規計訓證識詞詢"
    "語誤調負軟載輸過運連適錯鍵長門間隨隱頂項預頸頻饋餾驗棄強並併碼測躍轉準佈"
    "內務疊啟師帶應掃擇撈檔檢溫監細繼續節譯試輔遲選針階佔捲",
    "专丢个习仅优体余减则动单参双变后块头学实宽对层张归径态扩拟损据数断无显暂术"
    "机权构标横残汇汇潜点热状积稳线练组经绑络绝维缀缓编缩网纯纵范规计训证识词询"
    "语误调负软载输过运连适错键长门间随隐顶项预颈频馈馏验弃强并并码测跃转准布"
    "内务叠启师带应扫择捞档检温监细继续节译试辅迟选针阶占卷",
)  # fmt: skip
"""Simplified character of each traditional character in the Chinese words for topics and chapters."""


def look_up(text: str) -> UsersKinds | Named | Chapter | list[FieldHelp]:
    """Look up a text among the kinds of the user's plug-ins, then among topics, chapters and fields.

    A field is found by its dotted path or the end of this path, by an allowed value, or by its name in other libraries.
    Raise UserError if the text is unknown, or if it names a feature that archlab does not have.
    """
    if own := [kind for kind in users_kinds() if plain(kind_of(kind)) == plain(text)]:
        return UsersKinds(own)
    if found := _named(plain(text)):
        return found
    if "=" in text:
        return _of_setting(text.replace(" ", "")) or _unknown(text)
    if fields := _fields_named(text) or _fields_with(text):
        return fields
    written = meant(text)
    if written.startswith("archlab has"):
        raise UserError(f"{text}: {written}")
    if fields := _of_settings(re.findall(r"(?:model|train|data)\.[\w.]+(?:=[^\s(]+)?", written)):
        return fields
    return next(filter(None, map(_named, _in_other_number(plain(text)))), None) or _unknown(text)


def _named(spelling: str) -> Named | Chapter | None:
    """Return the topic or chapter that has this normalized name, or the topic that has it as one of its words."""
    if found := by_name().get(spelling) or _chapters_by_name().get(spelling):
        return found
    name = _topics_by_word().get(spelling)
    return by_name()[plain(name)] if name else None


_SHORTEST_NOUN = 4
"""Minimum number of letters of a word that is looked up in the other number. Shorter words are often typos: `bia` and
`los` are not the singular of bias and loss."""


def _in_other_number(noun: str) -> Iterator[str]:
    """Yield the nouns that can be the plural or the singular of a noun."""
    if len(noun) < _SHORTEST_NOUN:
        return
    for singular, plural in (("y", "ies"), ("", "es"), ("", "s")):
        if noun.endswith(singular):
            yield noun.removesuffix(singular) + plural
        if noun.endswith(plural):
            yield noun.removesuffix(plural) + singular


def _every_field() -> dict[str, FieldHelp]:
    return field_help(SCHEMAS["config"])


def plain(text: str) -> str:
    """Return only the letters and digits of a string, in lowercase and in simplified Chinese characters. Each `+`
    becomes the word plus, because Transformer++ is not the Transformer."""
    return "".join(character for character in "".join(words_of(text)) if character.isalnum()).translate(_SIMPLIFIED)


@cache
def by_name() -> dict[str, Named]:
    """Map every spelling of a topic to its name and the topic. The spellings are normalized with `plain`."""
    return {
        plain(spelling): (name, topic) for name, topic in topics() for spelling in (name, topic.title, *topic.aliases)
    }


@cache
def _topics_by_word() -> dict[str, str]:
    return {plain(word): name for word, name in words().items()}


@cache
def _chapters_by_name() -> dict[str, Chapter]:
    return {
        plain(spelling): chapter
        for name, chapter in chapters().items()
        for spelling in (name, chapter.title, *chapter.aliases)
    }


def _fields_named(text: str) -> list[FieldHelp]:
    wanted = [plain(part) for part in text.split(".")]
    paths = {path: [plain(part) for part in path.split(".")] for path in _every_field()}
    exact = [path for path, parts in paths.items() if parts == wanted]
    ending = [path for path, parts in paths.items() if parts[-len(wanted) :] == wanted]
    return [_every_field()[path] for path in exact or ending]


def _fields_with(value: str) -> list[FieldHelp]:
    return [field for field in _every_field().values() if plain(value) in map(plain, field.values)]


def _of_setting(setting: str) -> Named | list[FieldHelp]:
    """Return the topic that is named like the setting's value, if this topic's `fields` contain the setting. Otherwise,
    return the result of `_of_settings`."""
    found = by_name().get(plain(setting.partition("=")[2]))
    return found if found and setting in found[1].settings else _of_settings([setting])


def _of_settings(settings: Sequence[str]) -> Named | list[FieldHelp]:
    """Return the topic whose settings are all in `settings`. If there are several, return the one with the most fields.
    If there is none, return the fields that `settings` sets."""
    made = [(name, topic) for name, topic in topics() if topic.fields and set(topic.settings) <= set(settings)]
    if made:
        return max(made, key=lambda found: len(found[1].fields))
    paths = dict.fromkeys(setting.partition("=")[0] for setting in settings)
    return [_every_field()[path] for path in paths if path in _every_field()]


def _unknown(text: str) -> list[FieldHelp]:
    if commands := [f"`{command}`" for command in showing_models(text)]:
        raise UserError(f"{text!r} is a name of models, not of a topic; type {' or '.join(commands)}")
    spelled = [spelling for name, topic in topics() for spelling in (*topic.aliases, name)]
    hint = nearest(text, [*spelled, *_every_field(), *map(kind_of, users_kinds())], _CLOSE)
    raise UserError(
        f"unknown topic {text!r}{hint or ';'} `archlab explain` lists all topics; any field of a config is a topic, too"
    )


def showing_models(text: str) -> Iterator[str]:
    """Yield the command that shows the preset of this name, and the one that lists the models of its family. Without
    such a preset, the text may also name families or begin their names."""
    preset = next((name for name in (*presets(), *facts()) if plain(name) == plain(text)), "")
    if preset:
        yield f"archlab show {preset}"
    name = _families().get(preset, text)
    if families := families_named(name) or [family for family in _families().values() if begins(family, name)]:
        yield listing_models(name, families)


_VERSION = re.compile(r"-?(?<!\d)\d{1,2}(\.\d+)?$")
"""Version number at the end of a family's name. A number of more than two digits, such as a year, does not match."""

_SHORTEST_NAME = 3
"""Minimum number of letters of a family's name without its version. `t` can mean many things besides T5."""


def families_named(text: str) -> list[str]:
    """Return the families of models that have this name.

    The first version of a family may have the number 1: `LLaMA 1` names llama. The number may be missing if no family
    has the name without it: `SmolLM` names smollm2 and smollm3.
    """
    typed = plain(text)
    if not any(plain(preset).startswith(typed.removesuffix("1")) for preset in (*presets(), *facts())):
        return []  # reading no config, which would take as long as the rest of an explanation
    families = list(dict.fromkeys(_families().values()))
    return (
        [family for family in families if plain(family) == typed]
        or [family for family in families if f"{plain(family)}1" == typed]
        or [family for family in families if plain(_VERSION.sub("", family)) == typed and len(typed) >= _SHORTEST_NAME]
    )


@cache
def _families() -> dict[str, str]:
    """Map each preset of a published model to its family."""
    return {entry.preset: entry.family for entry in entries()}


def listing_models(name: str, families: Sequence[str]) -> str:
    """Return the command that lists the models of the families that a name refers to. If a family begins with the name,
    the command lists all families that do: `llama` also lists Llama 2."""
    if any(begins(family, name) for family in families):
        condition = f"family={'-'.join(name.lower().split())}"
    else:
        condition = f"family=={'|'.join(families)}"
    return f"archlab list presets --filter {shlex.quote(condition)}"


def explaining(changed: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of topics and fields that explain the changes in a resolved config, as arguments for `archlab
    explain`.

    `changed` and `config` map dotted fields to values. Topics that match the config come first; those that explain the
    most changed fields are at the start. The remaining changed fields follow, if any topic contains them.
    """
    unexplained = set(changed)
    for name, topic in [*_made(changed, config), *_called(changed, config)]:
        if unexplained & topic.fields.keys():
            unexplained -= topic.fields.keys()
            yield name
    fields_of_topics = {path for _, topic in topics() for path in topic.fields}
    yield from (path for path in changed if path in unexplained & fields_of_topics)


_EXPLAINED_BY: Mapping[str, str] = {
    "model.d_model": "width",
    "model.n_layers": "depth",
    "model.vocab_size": "vocabulary-size",
    "model.max_seq_len": "context-length",
    "model.attention.kind": "attention",
    "model.attention.n_heads": "heads",
    "model.attention.n_kv_heads": "gqa",
    "model.attention.head_dim": "heads",
    "model.mlp.d_ff": "mlp-width",
}
"""Topic of each field most of whose values have no topic of their own."""


def topic_of(path: str, config: Mapping[str, Any]) -> str:
    """Return the topic that explains a field of a resolved config, or the field itself if no topic contains it.

    The topic that is named after the value comes first, then a topic that the config makes, and then any other topic
    that contains the field. Among several, the one with the fewest fields is about this field most of all.
    """
    about, value = _topics_about(path), config.get(path)
    called = [name for name, _ in _called({path: value}, config)]
    made = [name for name, topic in about if all(config.get(p) == v for p, v in topic.fields.items())]
    with_value = [name for name, topic in about if topic.fields[path] == value]
    named = [_EXPLAINED_BY[path]] if path in _EXPLAINED_BY else []
    return next(iter([*called, *made, *named, *with_value, *(name for name, _ in about), path]))


@cache
def _topics_about(path: str) -> list[Named]:
    """Return the topics that contain a field, those with the fewest fields first."""
    return sorted(
        ((name, topic) for name, topic in topics() if path in topic.fields), key=lambda named: len(named[1].fields)
    )


def _made(changed: Mapping[str, Any], config: Mapping[str, Any]) -> list[Named]:
    found = [
        (name, topic)
        for name, topic in topics()
        if topic.fields.keys() & changed.keys()
        and all(path in config and config[path] == value for path, value in topic.fields.items())
    ]
    return sorted(found, key=lambda named: (-len(named[1].fields.keys() & changed.keys()), len(named[1].fields)))


def _called(changed: Mapping[str, Any], config: Mapping[str, Any]) -> list[Named]:
    """Return the topics that are named after a changed value, such as `latent`.

    The config must also have all other named values of the topic. For example, a gated MLP with the activation GELU
    does not match the topic GELU, whose MLP is not gated. It is called GEGLU.
    """
    by_value = ((path, by_name().get(plain(value))) for path, value in changed.items() if isinstance(value, str))
    return [found for path, found in by_value if found and path in found[1].fields and _has_words(found[1], config)]


def _has_words(topic: Topic, config: Mapping[str, Any]) -> bool:
    return all(config.get(path) == value for path, value in topic.fields.items() if isinstance(value, str))
