"""Every field of the files that a person writes: a page per section of a config, and one for studies."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from archlab.evidence.field_help import FieldHelp, field_help
from archlab.study.authoring import SCHEMAS


class Group(NamedTuple):
    """The fields of one section."""

    path: str
    """Dotted; empty: what stands at the top of the file."""
    section: FieldHelp | None
    """null: at the top of the file, and where the section has a name that its writer gives it."""
    fields: list[FieldHelp]
    """Those that hold values; kind first."""
    sections: list[FieldHelp]
    """Those that hold fields, which are a group of their own."""


class ReferencePage(NamedTuple):
    """A part of a file."""

    address: str
    title: str
    about: str
    groups: list[Group]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Anchor and name of each section."""
        return [(group.path, group.path) for group in self.groups if group.path]


@cache
def reference_pages() -> list[ReferencePage]:
    """A config's own fields, each of its sections, and a study."""
    config, study = (list(groups(field_help(SCHEMAS[kind]))) for kind in ("config", "study"))
    return [
        ReferencePage("reference-config.html", "Config", "A file that archlab trains, costs or draws.", config[:1]),
        *(_of_section(section, config) for section in config[0].sections),
        ReferencePage("reference-study.html", "Study", "A file that `archlab study run` takes.", study),
    ]


def _of_section(section: FieldHelp, config: Sequence[Group]) -> ReferencePage:
    inside = [group for group in config if group.path.split(".")[0] == section.path]
    return ReferencePage(f"reference-{section.path}.html", f"Config: {section.path}", section.readings[0].text, inside)


def groups(fields: dict[str, FieldHelp]) -> Iterator[Group]:
    """In the order of the schema, a section before those inside it; first what stands at the top."""
    inside: dict[str, list[FieldHelp]] = {}
    for path, field in fields.items():
        inside.setdefault(path.rpartition(".")[0], []).append(field)
    for path, found in inside.items():
        plain = [field for field in found if field.path not in inside]
        plain.sort(key=lambda field: not field.path.endswith(".kind"))
        yield Group(path, fields.get(path), plain, [field for field in found if field.path in inside])


def addresses(pages: Sequence[ReferencePage]) -> dict[str, str]:
    """Dotted field -> where it is explained."""
    return {
        path: f"{page.address}#{path}"
        for page in pages
        for group in page.groups
        for path in (group.path, *(field.path for field in group.fields))
        if path
    }


@cache
def config_addresses() -> dict[str, str]:
    """Of the fields of a config."""
    return addresses(reference_pages()[:-1])


def address_of_code(code: str) -> str | None:
    """Of a field of a config, or of one that is set, as in `model.norm.eps=1e-6`; None for other words."""
    path = code.partition("=")[0]
    return config_addresses().get(path) if "." in path else None
