"""Which seeds a study planned before it had a result. Others, taken after a look, find too much."""

from collections.abc import Collection
from pathlib import Path

from archlab.config.core.base import Base
from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.study.schema import Seeds

_FILE = "planned.json"


class _Plan(Base):
    seeds: Seeds
    """As in the study's file."""


def write_plan(study: Path, seeds: Seeds) -> None:
    """Record it in the study's folder."""
    write_with_digests(study, {_FILE: _Plan(seeds=seeds).model_dump_json()})


def read_plan(study: Path) -> Seeds | None:
    """None where nothing was recorded; UserError for damage."""
    file, remedy = study / _FILE, "remove it, and nothing is said of seeds that were added later"
    verify(file, remedy)
    try:
        return _Plan.model_validate_json(file.read_bytes()).seeds
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{file}: damaged; {remedy}") from None


def added_later(planned: Collection[int], compared: Collection[int]) -> list[str]:
    """The warning for a study that compares seeds that it did not plan, or none."""
    if not (added := set(compared) - set(planned)):
        return []
    were = "was" if len(added) == 1 else "were"
    return [
        f"{len(added)} of the {len(compared)} seeds that are compared {were} not planned before the first result: who "
        "looks and then takes other seeds finds a difference between equal arms in more than 5% of studies"
    ]
