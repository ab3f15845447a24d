"""The studies that come with archlab, at the scales that they have."""

from archlab.study.schema import StudyConfig
from archlab.study.study_file import read_study

AS_IT_STANDS = "cpu"
"""The scale of a study whose file is run as it is: two cores of a CPU."""

QUICKEST = "smoke"
"""The scale that takes seconds."""


def library_study(name: str, scale: str) -> StudyConfig:
    """The study of that name at that scale."""
    return read_study(name, None if scale == AS_IT_STANDS else scale)[1]


def scales_of(name: str) -> list[str]:
    """The quickest first, then as it stands, then the others."""
    named = list(read_study(name)[1].scales)
    return [*(s for s in named if s == QUICKEST), AS_IT_STANDS, *(s for s in named if s != QUICKEST)]
