"""Wording of the ledger's entries, shared by the terminal and the page."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from archlab.evidence.claims import Effect, Publication, margins, sources
from archlab.evidence.compared import Compared
from archlab.evidence.findings import WITHIN_MARGIN, PredictionVerdict
from archlab.evidence.ledger import LedgerEntry
from archlab.evidence.over_sizes import SizedResult
from archlab.evidence.rankings import Agreement
from archlab.evidence.results import A_TASK, RunInfo
from archlab.evidence.verdicts import ClaimAtScale, ClaimVerdict, JudgedPrediction, Role
from archlab.pricing.units import count, plural
from archlab.study.formatting import margin_of, span
from archlab.study.power import POWER
from archlab.study.study_file import AS_IT_STANDS

LEDGER = ("claim", "verdict", "judged statement", "found here")
"""Column headings of the table of all claims."""

PUBLISHED = ("source", "what was compared", "found", "scale and origin")
"""Column headings of the table of published results."""

EXPECTED = ("comparison", "expected", "difference", "result")
"""Column headings of the table of predictions for archlab's studies."""

UNPREDICTED = ("comparison", "difference", "result")
"""Column headings of the table of differences that no prediction covers."""

UNPREDICTED_HEADING = "Found but not predicted: exploratory, with no effect on the verdict"
"""Title of the table of differences that no prediction covers."""

HOW_SURE = (
    "The brackets say how each source was checked. Verified: the source itself was read. Secondary: a transcription of "
    "it was read. From memory: it was not read again for this list."
)
"""Note above a list of sources. It explains the word in brackets after each source."""

INTERVALS = (
    "Each interval is the one that decides the result, and its level is named if it is not 95%. Holm's correction "
    "covers the predictions that decide claims together, all others by study. For 'equivalent', 'not worse' and 'not "
    "better', the interval must lie within the margin, except that a gain is never worse and a loss never better. For "
    "'better' and 'worse', it must exclude zero. In predictions, the difference must also reach the margin."
)
"""Note on the intervals of results."""

LIMITS = (
    "Which prediction decides a claim was chosen on 27 November 2026, when the results were known. Statements were "
    "narrowed on 29 and 30 November 2026, also with known results: those of claims 2 to 4, 7 to 13, 15 to 17, 19 to 22 "
    "and 24. The caveats say what is left out. Claims 2, 3, 4, 5, 6, 8, 9, 18 and 19 share five runs of one model, and "
    "claim 11 repeats these. Claims 13, 16 and 20 each train ten other runs again. Claims 2, 3, 4, 6, 13 and 15 share "
    "runs of the ladder, and claims 15, 16 and 19 those of its further steps. Claims 16 and 17 repeat five, and claim "
    "11 repeats fifteen. So they are not independent evidence. Claims 23 and 24 begin with models that were trained on "
    "2M tokens before."
)
"""Note on what the corrections of the ledger do not cover (docs/claims.md)."""


_SIDES: dict[PredictionVerdict, str] = {
    "as claimed": "as claimed",
    "the opposite": "against the claim",
    "undecided": "undecided",
    "not testable": "could not be tested",
    "not run yet": "not run",
}
"""Map the verdict on a prediction to its wording in counts and short lines."""

TONES: dict[ClaimVerdict | PredictionVerdict, str] = {
    "as claimed here": "supported",
    "as claimed": "supported",
    "the opposite found here": "contradicted",
    "the opposite": "contradicted",
    "not run yet": "not-run",
    "no study yet": "not-run",
}
"""Map verdicts to the style of a page. Other verdicts have no style."""

VERDICTS = (
    ("as claimed here", "the prediction that decides the claim was found, and no instance of the claim was against it"),
    ("not found here", "it was neither found nor its opposite"),
    ("the opposite found here", "the opposite was found, and no instance was as claimed"),
    ("mixed", "the deciding prediction and an instance contradict each other, or two instances do"),
    ("not testable here", "the runs do not meet a condition that was set for the study"),
)
"""Meaning of each verdict. "Here" stands for the size and the text of the runs."""


def tone(judged: JudgedPrediction) -> str:
    """Return the style of a result on a page."""
    return "" if judged.is_counted else TONES.get(judged.found, "")


def margins_in_words() -> str:
    """Return the margin of each unit, such as `0.02 bits per byte, 5% of the speed`."""
    return ", ".join(
        f"{100 * margin.largest:g}% of the mean in {unit}" if margin.is_relative else margin_of(margin.largest, unit)
        for unit, margin in margins().items()
    ).replace(" pp", " percentage points")


def verdict_here(entry: LedgerEntry, result: ClaimAtScale) -> str:
    """Return the verdict with the size and the text of the runs that decide it, such as `as claimed here (267K
    parameters, python-stdlib 3.11.7)`."""
    here = place(entry, result)
    return f"{result.verdict} ({here})" if here else result.verdict


def place(entry: LedgerEntry, result: ClaimAtScale) -> str:
    """Return the sizes of the models that decide, instances included, and the texts on which they were trained, the
    primary prediction's first. Return "" if that was not run."""
    primary = result.primary
    about = {ran.about.study: ran.about for ran in entry.runs if ran.about.scale == result.scale}
    if primary is None or primary.study not in about:
        return ""
    deciding = [judged for judged in result.deciding if judged.study in about]
    sizes = [arm.parameters for judged in deciding for arm in about[judged.study].arms_compared(judged.arm)]
    texts = Counter(about[study].text for study in dict.fromkeys(judged.study for judged in deciding))
    named = ["tasks" if text == A_TASK and n > 1 else text for text, n in texts.items()]
    return f"{span(count(min(sizes)), count(max(sizes)))} parameters, {' and '.join(named)}"


def row(entry: LedgerEntry) -> tuple[str, str, str, str]:
    """Return a row of the table of all claims, with the columns of LEDGER."""
    claim = entry.claim
    statement = f"{claim.statement}\nCommonly said: {claim.in_short}."
    return f"{claim.number}. {claim.name}", verdicts(entry), statement, _result_cell(entry)


def _result_cell(entry: LedgerEntry) -> str:
    lines = (("; ".join(filter(None, (found_here(result), beside(result)))), result.scale) for result in entry.found)
    texts = [line if scale == AS_IT_STANDS else f"{scale}: {line}" for line, scale in lines if line]
    return "\n".join([*texts, f"But: {entry.claim.caveat_in_short}."])


def verdicts(entry: LedgerEntry) -> str:
    """Return a verdict such as `as claimed here (267K parameters, python-stdlib 3.11.7)`, followed by lines with the
    verdicts at other scales."""
    first, *others = entry.found
    return "\n".join([verdict_here(entry, first), *(f"{one.scale}: {verdict_here(entry, one)}" for one in others)])


def in_a_line(entry: LedgerEntry) -> str:
    """Return a line such as `4. gates: Gated MLPs beat plain ones. Verdict: as claimed here (5 of 5 comparisons as
    claimed). But: ...`.

    The verdict covers all predictions of the claim, some of which may not be about the current topic.
    """
    claim = entry.claim
    return f"{claim.number}. {claim.name}: {claim.statement} {in_short(entry)}"


def in_short(entry: LedgerEntry) -> str:
    """Return the verdict with its caveat, such as `Verdict: as claimed here (267K parameters, python-stdlib 3.11.7; 5
    of 6 comparisons; with half the margin: mixed). But: ...`."""
    first, *others = entry.found
    here = "; ".join(filter(None, (place(entry, first), _in_numbers(first), other_margins(first))))
    verdict = f"{first.verdict} ({here})" if here else first.verdict
    texts = [verdict, *(f"{one.scale}: {verdict_here(entry, one)}" for one in others)]
    return f"Verdict: {', '.join(texts)}. But: {entry.claim.caveat_in_short}."


def numbered(entries: Iterable[LedgerEntry]) -> list[tuple[int, str, str]]:
    """Return the number and name of each claim, and its verdict with its caveat."""
    return [(entry.claim.number, entry.claim.name, in_short(entry)) for entry in entries]


def _in_numbers(result: ClaimAtScale) -> str:
    """Return how many comparisons are as claimed, and for a claim that was not found what would have been found."""
    n = sum(one.found == "as claimed" for one in result.deciding)
    share = f"{n} of {plural(len(result.deciding), 'comparison')}" if result.primary else ""
    return "; ".join(filter(None, (share, _would_have_found(result))))


def _would_have_found(result: ClaimAtScale) -> str:
    """Return the smallest difference that the primary comparison would have found, if the claim was not found."""
    primary = result.primary
    if result.verdict != "not found here" or primary is None or not primary.would_find or primary.outcome is None:
        return ""
    least = margin_of(float(f"{primary.would_find:.2g}"), primary.outcome.unit)
    return f"would have found {least} with {POWER:.0%} probability"


def found_here(result: ClaimAtScale) -> str:
    """Return how many comparisons are as claimed, the result that decides, and what other margins would change. Return
    "" without comparisons: then other studies decide the verdict."""
    if not result.judged:
        return ""
    return "; ".join(filter(None, (counts(result), decisive(result), other_margins(result))))


def counts(result: ClaimAtScale) -> str:
    """Return a phrase such as `2 of 4 comparisons as claimed, 1 undecided, 1 could not be tested`, about the primary
    prediction and the instances. Return "" if nothing was run."""
    numbers = Counter(_SIDES[one.found] for one in result.deciding)
    if len(result.deciding) == numbers["not run"]:
        return ""
    others = [kind for kind in ("undecided", "against the claim", "could not be tested", "not run") if numbers[kind]]
    words = [f"{numbers['as claimed']} of {plural(len(result.deciding), 'comparison')} as claimed"]
    return ", ".join([*words, *(f"{numbers[kind]} {kind}" for kind in others)])


def decisive(result: ClaimAtScale) -> str:
    """Return the result of the primary prediction, and for a mixed claim the first instances that contradict it or each
    other. Return "" if it was not run.

    For example `decided by SwiGLU vs ReLU, loss on held-out text, -0.004 [-0.010, 0.002] bits per byte (would have
    found 0.025 bits per byte with 80% probability)`.
    """
    if (primary := result.primary) is None:
        return ""
    if primary.untested:
        return f"not decided: {primary.untested.rstrip('.')}"
    found = _would_have_found(result)
    is_open = result.verdict == "mixed" and primary.found == "undecided"
    leading = "the deciding comparison is undecided: " if is_open else "decided by "
    texts = [f"{leading}{_result(primary)}{f' ({found})' if found else ''}"]
    if result.verdict == "mixed":
        sides = {"the opposite", "as claimed"} - {primary.found}
        firsts = {one.found: one for one in reversed(result.judged) if one.role == "instance" and one.found in sides}
        if firsts:
            contradicting = [f"{_SIDES[side]}: {_result(firsts[side])}" for side in _SIDES if side in firsts]
            texts.append(f"but {', and '.join(contradicting)}")
    return "; ".join(texts)


def _result(judged: JudgedPrediction) -> str:
    against = f" vs {judged.against}" if judged.against else ""
    outcome = judged.outcome.title if judged.outcome else ""
    return f"{judged.label}{against}, {outcome}, {judged.effect or judged.why}"


def other_margins(result: ClaimAtScale) -> str:
    """Return the verdicts at half and at double the margin, if they differ from the verdict."""
    others = (("half", result.at_half), ("double", result.at_double))
    return ", ".join(f"with {much} the margin: {other}" for much, other in others if other != result.verdict)


def beside(result: ClaimAtScale) -> str:
    """Return a phrase such as `3 differences not predicted; over sizes, SwiGLU vs ReLU on python-docs grows`. Return
    "" if all differences were predicted, and none was studied over model sizes."""
    differences = f"{plural(len(result.unpredicted), 'difference')} not predicted" if result.unpredicted else ""
    return "; ".join(filter(None, (differences, _trends(result.over_sizes))))


def _trends(results: Sequence[SizedResult]) -> str:
    found = [f"{one.expected.of} on {one.text} {one.trend}" for one in results if one.trend != "no trend found"]
    none = len(results) - len(found)
    others = f" (no trend found in {none} of {len(results)} comparisons)" if none else ""
    return f"over sizes, {', '.join(found)}{others}" if found else "no trend over sizes found" if results else ""


def published(effect: Effect) -> tuple[str, str, str, str]:
    """Return a row of the table of published results, with the columns of PUBLISHED."""
    scale = f"{effect.scale}; " if effect.scale else ""
    return sources()[effect.source].cited, effect.of, effect.found, f"{scale}{effect.read}"


def untested(result: ClaimAtScale) -> list[str]:
    """Return one sentence for each reason why predictions could not be tested."""
    about: dict[str, list[str]] = {}
    for judged in result.judged:
        if judged.untested:
            about.setdefault(judged.untested, []).append(judged.label)
    return [
        f"Could not be tested here: {', '.join(dict.fromkeys(arms))}. {reason[:1].upper()}{reason[1:]}"
        for reason, arms in about.items()
    ]


_ROLES: dict[Role, str] = {"primary": "; decides", "instance": "", "described": "; does not count"}


def expected(judged: JudgedPrediction) -> tuple[str, str, str, str]:
    """Return a row of the table of predictions, with the columns of EXPECTED."""
    is_within = judged.expected.verdict in WITHIN_MARGIN
    margin = judged.comparison.margin if judged.comparison and is_within else None
    unit = judged.outcome.unit if judged.outcome else "rate"
    margin = f" (margin {margin_of(margin, unit).replace(' pp', ' percentage points')})" if margin else ""
    later = "; listed after the result" if judged.expected.listed_later else ""
    wanted = f"{judged.expected.verdict}{margin}{_ROLES[judged.role]}{later}"
    return _what(judged, judged.expected.outcome), wanted, judged.effect, judged.why


def not_predicted(compared: Compared) -> tuple[str, str, str]:
    """Return a row of the table of unpredicted differences, with the columns of UNPREDICTED."""
    return _what(compared), compared.effect, compared.why


def _what(compared: Compared, outcome: str | None = None) -> str:
    """Return a phrase such as `gates: SwiGLU vs ReLU, loss on held-out text`. `outcome` is the name to use for the
    outcome if nothing was run."""
    outcome = compared.outcome.title if compared.outcome else outcome
    return _pair(compared) + (f", {outcome}" if outcome else "")


def _pair(compared: Compared) -> str:
    """Return a phrase such as `gates: SwiGLU vs ReLU`."""
    reference = f" vs {compared.against}" if compared.against else ""
    return f"{compared.study}: {compared.label}{reference}"


def measured_lines(found: Iterable[Compared]) -> Iterator[str]:
    """Yield lines such as `gates: SwiGLU vs ReLU, loss on held-out text: -0.047 [-0.060, -0.034] bits per byte,
    better, as claimed`. Results of the same two arms share a line. A line also names predictions that do not count."""
    by_pair = dict[str, list[Compared]]()
    for compared in found:
        by_pair.setdefault(_pair(compared), []).append(compared)
    for pair, outcomes in by_pair.items():
        yield f"{pair}, {'; '.join(map(_outcome_and_result, outcomes))}"


def _outcome_and_result(compared: Compared) -> str:
    outcome = f"{compared.outcome.title}: " if compared.outcome else ""
    text = f"{outcome}{f'{compared.effect}, ' if compared.effect else ''}{compared.why}"
    does_not_count = isinstance(compared, JudgedPrediction) and compared.role == "described"
    return f"{text} (does not count)" if does_not_count else text


def published_line(effect: Effect) -> str:
    """Return a line such as `Shazeer 2020, perplexity of GEGLU against ReLU: 1.942 against 1.997 (T5-Base;
    verified)`."""
    source, what, found, where = published(effect)
    return f"{source}, {what}: {found} ({where})"


def ranked(agreement: Agreement) -> str:
    """Return a sentence that compares archlab's order of the arms with a published order."""
    source = sources()[agreement.ranking.source].cited
    published = f"{source} ({agreement.ranking.what}), {plural(agreement.arms, 'arm')}"
    if agreement.rho is None:
        return f"There are too few arms to compare their order with {published}."
    around = "" if agreement.low is None or agreement.high is None else f" [{agreement.low:.2f}, {agreement.high:.2f}]"
    return f"Rank correlation with {published}: {agreement.rho:.2f}{around}."


def citation(source: Publication) -> str:
    """Return a full citation such as `Kaplan and others 2020, Scaling Laws for Neural Language Models, arXiv 2001.08361
    (verified)`."""
    parts = [text for text in (f"{source.authors} {source.year}", source.title, source.where) if text]
    return f"{', '.join(parts)} ({source.certainty})"


def where(ran: RunInfo) -> str:
    """Return the command that repeats a study, with the size, machine and date of its runs.

    For example `archlab study run gates (265K to 267K parameters, 512K training tokens, 5 seeds; Intel Xeon, cpu,
    float32, torch 2.13.0, commit 0d6482e, 2026-11-23)`.
    """
    environment = ran.about.environment
    machine = [environment.get(name) for name in ("processor", "device", "dtype")]
    known = dict.fromkeys(str(part) for part in machine if part)
    commit = str(environment.get("commit") or "?").replace("-dirty", " with changes")
    conditions = [*known, f"torch {environment.get('torch', '?')}", f"commit {commit}", ran.about.date]
    return f"{ran.about.command} ({_size([ran])}; {', '.join(conditions)})"


def scale(entries: Sequence[LedgerEntry]) -> str:
    """Return a sentence that says for which scale all verdicts hold. Comparisons over sizes decide none."""
    deciding = {one.study for entry in entries for found in entry.found for one in found.deciding}
    runs = [ran for entry in entries for ran in entry.runs if ran.about.study in deciding]
    sentence = "Each verdict holds only at the scale that was run"
    if not runs:
        return f"{sentence}."
    return f"{sentence}: here {_size(runs)}."


def _size(runs: Sequence[RunInfo]) -> str:
    arms = [arm for ran in runs for arm in ran.about.arms]

    def ends(values: Iterable[int]) -> str:
        known = list(values)
        return span(count(min(known)), count(max(known)))

    seeds = [n for ran in runs for n in (ran.fewest_seeds, ran.seeds)]
    parameters, tokens = ends(arm.parameters for arm in arms), ends(arm.tokens for arm in arms)
    return f"{parameters} parameters, {tokens} training tokens, {ends(seeds)} seeds"


def at_scale(result: ClaimAtScale) -> str:
    """Return a phrase such as `at the studies' own scale` or `at the scale gpu`."""
    return "at the studies' own scale" if result.scale == AS_IT_STANDS else f"at the scale {result.scale}"


def commands(entry: LedgerEntry) -> list[str]:
    """Return the commands that run the studies of the claim."""
    return [f"archlab study run {study}" for study in entry.claim.studies]


def has_changed(entry: LedgerEntry) -> str:
    """Return a sentence about studies that were changed after they were run, or "" if no study was changed."""
    if not entry.changed:
        return ""
    names = ", ".join(entry.changed)
    return f"{names}: the study was changed after it was run; these results are from the earlier version."
