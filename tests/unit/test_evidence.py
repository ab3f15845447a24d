"""The ledger: its files are complete, results survive a round trip, and verdicts match planted differences."""

import html
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy import stats

import sample_study
from archlab.cli.app import main
from archlab.config.io import studies
from archlab.errors import UserError
from archlab.evidence import results as results_module
from archlab.evidence import verdicts as verdicts_module
from archlab.evidence.claims import (
    Claim,
    Predicted,
    Prediction,
    PrimaryPrediction,
    Ranking,
    claims,
    margins,
    mistakes,
    sources,
)
from archlab.evidence.compared import compared, level_in_words
from archlab.evidence.findings import p_values
from archlab.evidence.ledger import (
    LedgerEntry,
    _committed_entry,
    _committed_primaries,
    _committed_unpredicted,
    ledger,
    published,
)
from archlab.evidence.pace import committed_pace
from archlab.evidence.rankings import agreement
from archlab.evidence.results import (
    ArmOfResults,
    Results,
    ResultsHeader,
    committed,
    digest,
    identified,
    read_results,
    record,
    results_files,
)
from archlab.evidence.topics import topics
from archlab.evidence.verdicts import ClaimAtScale, judge, primary_findings
from archlab.exchange.configs import load_config
from archlab.report.charts.axes import both_sides
from archlab.report.ledger import words as words_of
from archlab.report.ledger.page import FINDINGS, panels, predictions, render
from archlab.study.arm import levels_of, overrides_of_arms
from archlab.study.comparisons import factor_contrasts
from archlab.study.forecast import bytes_per_token, pace_clock
from archlab.study.power import POWER, smallest_found
from archlab.study.record import Heading
from archlab.study.stats import estimate
from archlab.study.study_file import AS_IT_STANDS, library_study, library_values, read_study

HOME = Path(__file__).parents[2]
OLDER_FORM = HOME / "tests/older_studies/normed-mlp.yaml"
LOSS = Heading(name="bits_per_byte", title="loss on held-out text", unit="bits per byte", better="lower", source="log")
RATIO = Heading(name="ratio", title="a ratio", unit="rate", better="neither", source="log")
SPEED = Heading(name="speed", title="training speed", unit="tokens/s", better="higher", source="timing")


def arm(name: str, reference: str | None, **factors: object) -> ArmOfResults:
    return ArmOfResults(name=name, label=name, reference=reference, factors=factors, tuned={}, parameters=1, tokens=1)


def planted(
    differences: Mapping[str, float],
    seeds: int = 6,
    noise: float = 0.004,
    margin: float | None = None,
    heading: Heading = LOSS,
    diverged: tuple[str, ...] = (),
) -> Results:
    """Return results with planted differences from the first arm, whose own is 0. All arms share a level per seed."""
    scatter = np.random.default_rng(5)
    shared = scatter.normal(2, 0.1, seeds)
    first = next(iter(differences))
    about = ResultsHeader(
        study="gates", scale="cpu", digest="", date="2026-01-01", command="", environment={}, corpus="", margin=margin,
        first=None, outcomes=[heading], arms=[arm(name, None if name == first else first) for name in differences],
    )  # fmt: skip
    values = {
        name: {s: None if name in diverged else float(shared[s] + d + scatter.normal(0, noise)) for s in range(seeds)}
        for name, d in differences.items()
    }
    return Results(about=about, values={heading.name: values}, folds={s: s for s in range(seeds)})


def claiming(*expected: tuple[str, str], described: tuple[tuple[str, str], ...] = ()) -> Claim:
    """Return a claim whose first prediction is the primary one, and whose others are instances."""
    primary, instances = expected[:1], expected[1:]
    return Claim(
        number=1,
        name="n",
        statement="s",
        sources=("shazeer2020",),
        in_short="i",
        primary=next((PrimaryPrediction(study="gates", arm=a, verdict=v, because="b") for a, v in primary), None),  # pyright: ignore
        instances=tuple(Prediction(study="gates", arm=a, verdict=v) for a, v in instances),  # pyright: ignore
        described=tuple(Prediction(study="gates", arm=a, verdict=v) for a, v in described),  # pyright: ignore
        caveat_in_short="b",
        caveat="c",
    )


def test_every_cited_source_exists():
    """Claims, mistakes and topics cite sources; each source has a title and a place."""
    of_claims = {key for claim in claims().values() for key in (*claim.sources, *claim.also_cited)}
    of_others = {key for other in (*mistakes(), *(topic for _, topic in topics())) for key in other.sources}
    assert of_claims | of_others <= set(sources())
    assert [key for key, source in sources().items() if not (source.title and source.where)] == []


def test_the_ledger_shows_where_to_find_the_sources_of_numbers(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["ledger", "9"]) == 0
    printed = capsys.readouterr().out
    assert all(str(sources()[effect.source].where) in printed for effect in claims()[9].published)


def test_no_paper_is_listed_twice():
    assert len({source.where for source in sources().values()}) == len(sources())


def test_a_topic_cites_the_authors_whose_tables_and_findings_it_mentions():
    """Readers can then find them in the line of sources."""
    mentions, missing = 0, list[str]()
    for name, topic in topics():
        text = " ".join((topic.does, topic.why, topic.costs))
        cited = " ".join(f"{source.authors} {source.title}" for source in map(sources().__getitem__, topic.sources))
        for author in set(
            re.findall(r"([A-Z][a-zä]+)'s (?:tables?|plot)|([A-Z][a-z]+) (?:found|reports|explains|denies)", text)
        ):
            mentions += 1
            missing += [f"{name}: {author}"] if "".join(author) not in cited else []
    assert mentions >= 10
    assert missing == []


def test_the_number_of_a_paper_in_arxiv_begins_with_its_year():
    for source in sources().values():
        if "arXiv" in (where := source.where or ""):
            number = re.fullmatch(r"arXiv (\d\d)\d\d\.(\d{4}|\d{5})(, .*)?", where)
            assert number, source
            assert len(number[2]) == (4 if int(number[1]) < 15 else 5), source
            assert abs(2000 + int(number[1]) - source.year) <= 1, source


def test_papers_that_docs_name_by_number_are_in_the_list():
    named = set(re.findall(r"arXiv:(\d{4}\.\d{5})", (HOME / "docs" / "probes.md").read_text()))
    assert named <= {(source.where or "").removeprefix("arXiv ").partition(",")[0] for source in sources().values()}


def test_the_claims_are_numbered():
    assert list(claims()) == list(range(1, len(claims()) + 1))


@pytest.mark.parametrize("prediction", [one for claim in claims().values() for one in claim.expected], ids=repr)
def test_studies_measure_what_claims_predict(prediction: Prediction):
    study = library_study(prediction.study, "cpu")
    overrides = overrides_of_arms(study)
    arms = [arm(name, None, **levels_of(study, overrides[name])) for name in overrides]
    first = next(iter(overrides))
    assert prediction.arm in {*overrides, *factor_contrasts(arms)} - {first}
    known = {**dict.fromkeys(study.measure), "bits_per_byte": None, "accuracy": None}
    assert prediction.outcome is None or prediction.outcome in known
    outcome = study.measure.get(prediction.outcome or study.primary or "")
    neither = outcome is not None and outcome.better == "neither"
    assert neither == (prediction.verdict in ("higher", "lower"))
    if prediction.verdict in ("equivalent", "not worse", "not better"):
        unit = outcome.unit if outcome else "share" if study.set.get("data", {}).get("task") else "bits per byte"
        assert unit in margins()


@pytest.mark.parametrize("ranking", [one for claim in claims().values() for one in claim.rankings], ids=repr)
def test_ranked_arms_exist(ranking: Ranking):
    assert set(ranking.values) <= set(library_study(ranking.study, "cpu").arms)


FOUND = {"ref": 0.0, "low": -0.05, "high": 0.05, "same": 0.0}
NO_MORE = [
    (("low", "better"), ("high", "worse"), "as claimed here"),
    (("low", "better"), ("high", "better"), "mixed"),
    (("low", "better"), ("same", "better"), "as claimed here"),
    (("same", "better"), ("low", "better"), "not found here"),
    (("same", "better"), ("low", "worse"), "not found here"),
    (("high", "better"), ("same", "better"), "the opposite found here"),
    (("high", "better"), ("low", "better"), "mixed"),
]


@pytest.mark.parametrize(("primary", "instance", "verdict"), NO_MORE)
def test_the_primary_prediction_decides_and_an_instance_against_it_makes_a_claim_mixed(primary, instance, verdict):
    assert judge(claiming(primary, instance), {"gates": planted(FOUND)}, "cpu").verdict == verdict
    described = claiming(primary, described=(instance,))
    alone = judge(claiming(primary), {"gates": planted(FOUND)}, "cpu")
    assert judge(described, {"gates": planted(FOUND)}, "cpu").verdict == alone.verdict


def test_the_primary_predictions_of_all_claims_share_one_correction():
    """An effect that is clear alone can be due to chance among many claims."""
    results = {"gates": planted({"ref": 0.0, "low": -0.05}, noise=0.015)}
    one = claiming(("low", "better"))
    alone = results["gates"].t_test(None, "low")
    assert alone
    assert 0.0005 < alone.p < 0.01
    assert judge(one, results, "cpu").verdict == "as claimed here"
    weak = [claiming(("low", "better")).model_copy(update={"number": number}) for number in range(1, 101)]
    found = primary_findings(weak, results, "cpu")
    assert {one.found for one in found.at_margin.values()} == {"undecided"}
    assert judge(one, results, "cpu", found).verdict == "not found here"


def test_a_difference_smaller_than_the_margin_is_not_found():
    """The margin is 0.02 bits per byte for every claim."""
    results = {"gates": planted({"ref": 0.0, "low": -0.012, "high": 0.03}, seeds=10, noise=0.003)}
    small = judge(claiming(("low", "better")), results, "cpu")
    assert (small.verdict, small.at_half, small.at_double) == ("not found here", "as claimed here", "not found here")
    assert small.judged[0].why == "better by less than the margin, so undecided"
    large = judge(claiming(("high", "worse")), results, "cpu")
    assert (large.verdict, large.at_half, large.at_double) == ("as claimed here", "as claimed here", "not found here")


@pytest.mark.parametrize("verdict", ["better", "not worse", "not better"])
def test_the_interval_of_a_primary_prediction_has_the_level_of_the_correction_over_claims(verdict: Predicted):
    """Ten claims make one prediction, and none of them is found after the correction. The interval is that of scipy."""
    results = {"gates": planted({"ref": 0.0, "low": -0.019 if verdict == "better" else 0.0}, noise=0.01)}
    weak = [claiming(("low", verdict)).model_copy(update={"number": number}) for number in range(1, 11)]
    (judged,) = judge(weak[0], results, "cpu", primary_findings(weak, results, "cpu")).judged
    assert judged.found == "undecided"
    level = 0.05 / 10 * (1 if verdict == "better" else 2)
    low, high = stats.t.interval(1 - level, *_t_arguments(results["gates"], "low"))
    assert judged.interval == pytest.approx((low, high))
    assert f"{100 * (1 - level):.3g}% interval" in judged.effect


def _t_arguments(results: Results, arm: str) -> tuple[int, float, float]:
    values = results.values[LOSS.name]
    pairs = [(values[arm][seed], values["ref"][seed]) for seed in values["ref"]]
    differences = [value - reference for value, reference in pairs if value is not None and reference is not None]
    return len(differences) - 1, float(np.mean(differences)), float(stats.sem(differences))


def test_a_prediction_within_the_margin_shows_the_interval_that_lies_within_it():
    """The difference itself is found, so the interval of its test is another one."""
    results = {"gates": planted({"ref": 0.0, "small": 0.012}, seeds=10, noise=0.005)}
    (_, judged) = judge(claiming(("small", "better"), ("small", "not worse")), results, "cpu").judged
    assert judged.comparison
    assert (judged.comparison.verdict, judged.found) == ("worse", "as claimed")
    assert judged.interval == (judged.comparison.within_low, judged.comparison.within_high)
    assert judged.effect.endswith("90% interval")


@pytest.mark.parametrize(("error", "claims_in_all"), [(0.002, 1), (0.006, 5), (0.02, 5)])
def test_a_difference_that_the_ledger_would_have_found_is_found_four_times_in_five(error: float, claims_in_all: int):
    """A finished study states the difference from its scatter. New studies then look for it by the ledger's rule: the
    corrected p-value is below 0.05, and the mean reaches the margin."""
    rng, margin, level, n = np.random.default_rng(7), 0.02, 0.05 / claims_in_all, 5
    scatter, new = error * n**0.5, 400
    errors = rng.normal(0, scatter, (400, n)).std(1, ddof=1) / n**0.5
    effects = np.array([smallest_found(float(seen), n - 1, level, margin) for seen in errors])

    def share_found(effects: np.ndarray) -> float:
        samples = rng.normal(effects[:, None, None], scatter, (len(effects), new, n))
        means = samples.mean(2)
        p = 2 * stats.t.sf(np.abs(means) / stats.sem(samples, axis=2), n - 1)
        return float(((p < level) & (means >= margin)).mean())

    assert share_found(effects) == pytest.approx(POWER, abs=0.025)
    assert share_found(0.8 * effects) < POWER - 0.1


def test_a_claim_that_is_not_found_names_a_difference_beyond_the_margin():
    results = {"gates": planted({"ref": 0.0, "low": -0.016}, seeds=5, noise=0.005)}
    found = judge(claiming(("low", "better")), results, "cpu")
    assert found.verdict == "not found here"
    assert found.judged[0].would_find
    assert found.judged[0].would_find > 0.02
    named = f"would have found {found.judged[0].would_find:.2g} bits per byte with 80% probability"
    assert named in words_of.decisive(found)


def test_a_mixed_claim_names_the_instances_that_contradict_the_primary_prediction_or_each_other():
    results = {"gates": planted({"ref": 0.0, "same": 0.0, "low": -0.1, "high": 0.1})}
    undecided = judge(claiming(("same", "better"), ("high", "better"), ("low", "better")), results, "cpu")
    assert undecided.verdict == "mixed"
    texts = words_of.decisive(undecided)
    assert re.findall(r"undecided: same|against the claim: high|as claimed: low", texts) == [
        "undecided: same", "as claimed: low", "against the claim: high",
    ]  # fmt: skip
    decided = words_of.decisive(judge(claiming(("low", "better"), ("high", "better")), results, "cpu"))
    assert decided.startswith("decided by low")
    assert "but against the claim: high" in decided
    assert "as claimed" not in decided


@pytest.mark.parametrize("mean", [-0.05, -0.015, 0.0, 0.015, 0.05])
def test_p_values_of_predictions_are_those_of_scipy(mean: float):
    """Each is a one-sample t-test against zero or against the margin."""
    differences = mean + np.random.default_rng(3).normal(0, 0.01, 8)
    found = estimate(list(differences))
    assert found

    def p(against: float, alternative: str) -> float:
        return float(stats.ttest_1samp(differences, against, alternative=alternative).pvalue)

    margin = 0.02
    sides = {name: p_values(name, found, "lower", margin) for name in get_args(Predicted)}
    assert sides["not worse"].claimed == pytest.approx(p(margin, "less"))
    assert sides["not better"].claimed == pytest.approx(p(-margin, "greater"))
    assert sides["equivalent"].claimed == pytest.approx(max(p(margin, "less"), p(-margin, "greater")))
    assert sides["not worse"].opposite == pytest.approx(min(1.0, 2 * p(margin, "greater")))
    is_large = abs(differences.mean()) >= margin
    assert sides["better"].claimed == pytest.approx(p(0, "two-sided") if is_large and differences.mean() < 0 else 1)
    assert sides["better"].opposite == sides["worse"].claimed
    assert sides["better"] == p_values("worse", found, "higher", margin), "for speeds, higher is better"
    assert sides["lower"] == p_values("lower", found, "neither", margin)


def test_a_study_that_fails_its_check_tests_nothing():
    """The rest of the study is not affected if the check is about one outcome."""
    claim = claims()[18]
    sinks = committed()["sinks"]
    verdicts = {(one.arm, one.expected.outcome): one.found for one in judge(claim, {"sinks": sinks}, "cpu").judged}
    assert verdicts["head", "weight on the first token"] == "not testable"
    assert verdicts["head", None] == "undecided"
    plain = sinks.values["weight on the first token"]["plain"]
    more = {**sinks.values["weight on the first token"], "plain": dict.fromkeys(plain, 0.2)}
    with_sink = sinks.model_copy(update={"values": {**sinks.values, "weight on the first token": more}})
    found = judge(claim, {"sinks": with_sink}, "cpu").judged
    assert {one.found for one in found if one.expected.outcome} == {"as claimed"}
    positions = judge(claims()[6], {"positions": committed()["positions"]}, "cpu")
    untested = {one.arm for one in positions.judged if one.untested}
    assert untested == {"learned", "sinusoidal"}, "a check can be about the comparisons of one arm"
    assert {one.arm for one in positions.judged} > untested
    windows = judge(claims()[14], {"windows": committed()["windows"]}, "cpu")
    assert windows.verdict == "not testable here"
    assert windows.judged[0].untested
    assert windows.judged[0].untested.startswith("right answers, full attention: 53.0%; required: at least 95.0%.")


WITH_MARGIN = [
    ("same", "equivalent", "as claimed"),
    ("same", "not worse", "as claimed"),
    ("same", "not better", "as claimed"),
    ("same", "better", "undecided"),
    ("high", "equivalent", "the opposite"),
    ("low", "equivalent", "the opposite"),
    ("high", "not worse", "the opposite"),
    ("low", "not worse", "as claimed"),
    ("low", "not better", "the opposite"),
    ("high", "not better", "as claimed"),
    ("small", "not worse", "as claimed"),  # a difference that is found, but smaller than the margin
    ("small", "worse", "undecided"),
    ("border", "not worse", "undecided"),  # a difference that is found, with an interval on both sides of the margin
    ("border", "equivalent", "undecided"),
]


@pytest.mark.parametrize(("name", "verdict", "found"), WITH_MARGIN)
def test_verdicts_with_a_margin(name, verdict, found):
    """The primary prediction and an instance use different corrections, but the same rule."""
    results = {"gates": planted({**FOUND, "small": 0.01, "border": 0.02}, seeds=10, noise=0.003)}
    assert margins()["bits per byte"].largest == 0.02
    (judged,) = judge(claiming((name, verdict)), results, "cpu").judged
    assert judged.found == found
    (_, judged) = judge(claiming(("low", "better"), (name, verdict)), results, "cpu").judged
    assert judged.found == found


def test_the_document_repeats_the_margins():
    document = (HOME / "docs/claims.md").read_text()
    table = re.findall(r"^\| ([\w/ ]+) \| ([\d.]+)(%?)[^|]* \|", document.partition("**Margins.**")[2], re.MULTILINE)
    written = {unit: float(number) / (100 if percent else 1) for unit, number, percent in table}
    assert written == {unit: margin.largest for unit, margin in margins().items()}
    assert {unit for unit, _, percent in table if percent} == {
        u for u, margin in margins().items() if margin.is_relative
    }


def test_the_margin_of_a_gap_is_that_of_a_loss():
    """A bit per byte is ln 2 nats per byte. The text has as many bytes per token as in the study of vocabularies."""
    tokens_per_byte = committed()["vocabulary"].mean("tokens_per_byte", "k1")
    assert tokens_per_byte
    nats_per_token = margins()["bits per byte"].largest * math.log(2) / tokens_per_byte
    assert margins()["nats per token"].largest == pytest.approx(nats_per_token, rel=0.002)
    measured = [ran.about for ran in committed().values() if "gap" in ran.values]
    assert measured
    assert all("of a vocabulary of 1024," in about.corpus for about in measured)


def test_claims_that_share_runs_are_named():
    """Runs are the same if they have the same losses at the same seeds.

    `norm-kind` was run again after the kernel of RMSNorm had changed, which moves a loss by 0.00013 at most. Other models
    of that width differ from the shared one by 0.0004 or more.
    """

    def losses(study: str) -> list[list[float]]:
        arms = committed()[study].values.get("bits_per_byte", {})
        return [[values[seed] for seed in range(len(values))] for values in arms.values() if len(values) >= 5]

    def has(study: str, run: list[float], at_most: float = 0.0002) -> bool:
        n_seeds = len(run)
        return any(losses_of[:n_seeds] == pytest.approx(run, abs=at_most) for losses_of in losses(study))

    (reference,) = [run for run in losses("biases") if run in losses("positions")]
    tested = {number: claim.primary.study for number, claim in claims().items() if claim.primary}
    shared = [str(number) for number, study in tested.items() if study in committed() and has(study, reference)]
    ten = [run for run in losses("kv-heads") if len(run) == 10]
    repeated = [(study, len(run)) for study in ("experts", "batch-norm") for run in ten if has(study, run, 0.0045)]
    assert repeated == [("experts", 10), ("batch-norm", 10)]
    for text in (words_of.LIMITS, (HOME / "docs/claims.md").read_text()):
        assert "laims 13, 16 and 20 each train ten" in " ".join(text.split())
    sentence = f"Claims {', '.join(shared[:-1])} and {shared[-1]} share five runs"
    assert sentence in words_of.LIMITS
    assert sentence in (HOME / "docs/claims.md").read_text()


def test_the_commits_of_the_table_of_reruns_changed_the_results():
    table = (HOME / "docs/claims.md").read_text().partition("**Reruns.**")[2].partition("**Not predicted.**")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    commits = [(commit, row) for row in rows for commit in re.findall(r"\b[0-9a-f]{8}\b", row)]
    assert len(commits) == 27
    git = shutil.which("git")
    if git is None or not (HOME / ".git").exists() or (HOME / ".git/shallow").exists():
        pytest.skip("the history is not here")
    for commit, row in commits:
        found = subprocess.run([git, "merge-base", "--is-ancestor", commit, "HEAD"], cwd=HOME, check=False)
        assert found.returncode == 0, commit
        listing = [git, "diff-tree", "--no-commit-id", "--name-only", "-r", commit]
        changed = subprocess.run(listing, cwd=HOME, check=True, capture_output=True, text=True).stdout
        names = re.findall(r"^\| `([\w-]+)`|as `([\w-]+)` \|", row)
        assert any(f"results/{''.join(name)}.jsonl" in changed for name in names), (commit, row)


def test_every_study_has_a_manipulation_check_unless_it_measures_time_alone():
    unchecked = {name for name in studies() if not library_values(name, AS_IT_STANDS).get("checks")}
    assert unchecked == {"kv-decoding", "window-time"}


def test_the_size_beside_a_verdict_covers_the_instances():
    (ladder_entry,) = ledger(15)
    assert words_of.place(ladder_entry, ladder_entry.found[0]) == "250K to 1.45M parameters, python-stdlib 3.11.7"
    (mixed,) = ledger(21)  # the encoder-decoder at equal FLOPs has 509K parameters; four of its studies are tasks
    assert words_of.place(mixed, mixed.found[0]) == "206K to 509K parameters, python-stdlib 3.11.7 and tasks"
    (experts,) = ledger(16)
    assert words_of.place(experts, experts.found[0]).startswith("251K to 1.22M parameters")


def test_a_difference_that_is_undecided_has_a_reason():
    """Without the reason, a reader sees an interval that excludes 0 beside "undecided"."""
    results = planted({"ref": 0.0, "border": 0.02, "small": 0.01}, seeds=10, noise=0.003)
    border, small = judge(claiming(("border", "not worse"), ("small", "worse")), {"gates": results}, "cpu").judged
    assert border.why == "worse, but maybe within the margin, so undecided"
    assert small.why == "worse by less than the margin, so undecided"


def test_a_margin_has_the_unit_of_its_outcome():
    share = LOSS.model_copy(update={"name": "accuracy", "unit": "share", "better": "higher"})
    for heading, words in ((LOSS, "0.02 bits per byte"), (share, "2.0 percentage points"), (SPEED, "0.1 tokens/s")):
        results = planted({"ref": 0.0, "same": 0.0}, heading=heading)
        (judged,) = judge(claiming(("same", "not worse")), {"gates": results}, "cpu").judged
        assert judged.comparison
        assert judged.comparison.margin
        if heading is SPEED:
            assert judged.comparison.margin == pytest.approx(0.05 * (results.mean(None, "ref") or 0))
        else:
            assert words_of.expected(judged)[1] == f"not worse (margin {words}); decides"


def test_the_reference_of_a_ladder_is_the_step_before():
    """`SwiGLU vs RoPE` would compare two unrelated choices."""
    found = compared(committed()["ladder-rates"])
    assert (found["swiglu"].label, found["swiglu"].against) == ("SwiGLU", "the step before (RoPE)")
    assert {one.against for one in compared(committed()["gates"]).values()} == {"ReLU"}


def test_papers_are_about_a_topic_if_they_name_it_in_whole_words():
    """ELU once had the papers on "ReLU against GEGLU", and GLU those on GEGLU."""
    entries = {entry.claim.number: entry for entry in ledger()}
    named = {
        name: {effect.of for effect in published(topic, [entries[number] for number in topic.claims])}
        for name, topic in topics()
    }
    assert named["elu"] == named["glu"] == named["synthetic-tasks"] == named["sinks"] == set()
    assert any("GEGLU" in text for text in named["geglu"])
    assert "windows with RoPE and full layers with NoPE, against full layers with RoPE" in named["sliding-window"]
    assert [text for text in named["output-gate"] if "output gate" in text]


def test_not_distinguishable_does_not_mean_equal():
    noisy = planted({"ref": 0.0, "same": 0.0}, noise=0.1, margin=0.01)
    for verdict in ("better", "worse", "equivalent", "not worse", "not better"):
        assert judge(claiming(("same", verdict)), {"gates": noisy}, "cpu").verdict == "not found here"


def test_outcomes_that_are_neither_good_nor_bad_are_higher_or_lower():
    results = {"gates": planted(FOUND, heading=RATIO)}
    assert judge(claiming(("low", "lower"), ("high", "higher")), results, "cpu").verdict == "as claimed here"
    assert judge(claiming(("low", "higher")), results, "cpu").verdict == "the opposite found here"
    assert judge(claiming(("same", "higher")), results, "cpu").verdict == "not found here"


def test_diverged_arms_are_worse():
    results = {"gates": planted(FOUND, diverged=("same",))}
    assert judge(claiming(("same", "worse")), results, "cpu").verdict == "as claimed here"
    assert judge(claiming(("same", "not worse")), results, "cpu").verdict == "the opposite found here"
    lost = {"gates": planted(FOUND, diverged=("ref",))}
    assert judge(claiming(("same", "better")), lost, "cpu").verdict == "as claimed here"


def test_without_runs_there_is_no_verdict():
    assert judge(claiming(("low", "better")), {}, "cpu").verdict == "not run yet"
    assert judge(claiming(), {}, "cpu").verdict == "no study yet"
    assert judge(claiming(("low", "better")), {"gates": planted(FOUND)}, "gpu").verdict == "not run yet"


def test_predictions_that_a_scale_leaves_out_do_not_count():
    """An instance about a missing arm is dropped. A primary prediction about one is not run yet, like a prediction about
    an outcome that was not measured."""
    results = {"gates": planted(FOUND)}
    assert judge(claiming(("bilinear", "better")), results, "cpu").verdict == "not run yet"
    found = judge(claiming(("low", "better"), ("bilinear", "better")), results, "cpu")
    assert found.verdict == "as claimed here"
    assert len(found.judged) == 1
    primary = PrimaryPrediction(study="gates", arm="low", outcome="cache", verdict="better", because="b")
    claim = claiming(("low", "better")).model_copy(update={"primary": primary})
    assert judge(claim, results, "cpu").verdict == "not run yet"


def test_a_contrast_with_diverged_runs_is_undecided():
    names = [f"norm.placement={p} warmup={w}" for p in ("pre", "post") for w in (0.1, 0)]
    results = planted(dict.fromkeys(names, 0.0), diverged=(names[1],))
    factors = [{"model.norm.placement": p, "train.warmup": w} for p in ("pre", "post") for w in (0.1, 0)]
    crossed = [one.model_copy(update={"factors": f}) for one, f in zip(results.about.arms, factors, strict=True)]
    results = results.model_copy(update={"about": results.about.model_copy(update={"arms": crossed})})
    contrast = claiming(("warmup=0 where norm.placement=post", "worse"))
    assert judge(contrast, {"gates": results}, "cpu").verdict == "not found here"


def test_unpredicted_differences_are_listed_and_do_not_affect_the_verdict():
    """They cover outcomes that the claim is about, but none that follow from the config."""
    loss = planted({**FOUND, "more": 0.1})
    other = planted({**FOUND, "more": 0.1}, heading=RATIO)
    cache = RATIO.model_copy(update={"name": "cache", "source": "config"})
    unasked = RATIO.model_copy(update={"name": "unasked"})
    about = loss.about.model_copy(update={"outcomes": [LOSS, RATIO, cache, unasked]})
    ratio = other.values["ratio"]
    values = {**loss.values, "ratio": ratio, "cache": {a: {0: v[0]} for a, v in ratio.items()}, "unasked": ratio}
    results = {"gates": Results(about=about, values=values, folds=loss.folds)}
    by_ratio = Prediction(study="gates", arm="high", outcome="ratio", verdict="higher")
    by_cache = Prediction(study="gates", arm="high", outcome="cache", verdict="higher")
    predicted = claiming(("low", "better"), ("more", "worse"))
    claim = predicted.model_copy(update={"described": (by_ratio, by_cache)})
    found = judge(claim, results, "cpu")
    assert [(one.outcome.name, one.arm, one.why) for one in found.unpredicted if one.outcome] == [
        ("bits_per_byte", "high", "worse"),
        ("ratio", "low", "lower"),
        ("ratio", "more", "higher"),
    ]
    assert found.verdict == "as claimed here"


UNPREDICTED = [
    (9, "depth", "eight", "bits_per_byte", "0.053", "worse"),
    (13, "kv-heads", "mqa", "bits_per_byte", "0.018", "worse"),
]


@pytest.mark.parametrize(("number", "study", "arm", "outcome", "effect", "why"), UNPREDICTED)
@pytest.mark.slow
def test_the_ledger_shows_differences_that_no_claim_predicted(capsys, number, study, arm, outcome, effect, why):
    """They are shown in the terminal, on the page and in the JSON."""
    (entry,) = ledger(number)
    (one,) = [one for one in entry.found[0].unpredicted if (one.study, one.arm) == (study, arm)]
    assert one.outcome
    assert (one.outcome.name, one.why) == (outcome, why)
    assert effect in one.effect
    heading = words_of.UNPREDICTED_HEADING
    assert main(["ledger", str(number)]) == 0
    printed = capsys.readouterr().out
    assert printed.index(heading) > printed.index("expected")
    page = render([entry])
    assert heading in page
    assert one.effect in page[page.index(heading) :]
    assert main(["ledger", str(number), "--json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert arm in [found["arm"] for found in claim["found"][0]["unpredicted"]]


def test_crossed_factors_are_shown_as_contrasts():
    (entry,) = ledger(1)
    labels = [one.label for one in entry.found[0].unpredicted]
    assert {*(f"{level} averaged over the other settings" for level in ("post-norm", "no warm-up"))} <= set(labels)
    assert "effect of no warm-up with double norm" in labels
    assert all(one.is_contrast for one in entry.found[0].unpredicted)


LEVELS = [
    ("model.norm.placement", "double", "double norm"),
    ("model.position.kind", "rope", "RoPE"),
    ("model.attention.n_kv_heads", 1, "MQA"),
    ("model.attention.n_kv_heads", 3, "attention.n_kv_heads=3"),
    ("train.weight_decay", 0.3, "weight decay 0.3"),
    ("train.weight_decay", 0.1, "weight decay 0.1"),
    ("model.dropout.branch", 0.1, "dropout 0.1"),
    ("train.warmup", 0, "no warm-up"),
    ("model.attention.rope_dim", 8, "attention.rope_dim=8"),
    ("model.max_seq_len", 64, "max_seq_len=64"),
]


@pytest.mark.parametrize(("path", "level", "words"), LEVELS)
def test_levels_have_readable_names(path: str, level: object, words: str):
    assert level_in_words(path, level) == words


@pytest.mark.slow
def test_the_reason_why_a_claim_is_not_testable_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    entry = next(entry for entry in ledger() if entry.found[0].verdict == "not testable here")
    reason = entry.found[0].judged[0].untested
    assert reason
    assert main(["ledger", str(entry.claim.number)]) == 0
    printed = capsys.readouterr().out
    assert reason in printed
    assert "not testable here" in printed
    assert reason[1:] in html.unescape(render([entry]))  # there, it is a sentence
    assert main(["ledger", str(entry.claim.number), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["claims"]
    assert shown["found"][0]["judged"][0]["untested"] == reason


def test_gradients_in_the_caveat_of_norm_placement_are_those_of_the_runs():
    by_arm = committed()["norm-placement"].values["gradient by depth"]
    caveat = claims()[1].caveat
    for placement in ("pre", "post", "double", "output"):
        ratios = np.array([v for name, runs in by_arm.items() if f"={placement} " in name for v in runs.values()])
        assert len(ratios) == 10
        assert f"{ratios.mean():.2f}" in caveat
        assert f"{abs(np.log(ratios)).mean():.2f}" in caveat


NUMBERS_IN_CAVEATS = [
    (3, "biases", "best_loss", "without", "all", "0.007 bits per byte [0.004, 0.009]"),
    (3, "biases", "best_loss", "without", "qkv", "0.009 [0.006, 0.012]"),
    (3, "biases", "sensitivity", "without", "all", "0.013 [0.010, 0.016]"),
    (
        1,
        "norm-placement",
        "bits_per_byte",
        "norm.placement=double warmup=0.1",
        "norm.placement=pre warmup=0.1",
        "0.031 [0.019, 0.043]",
    ),
    (
        1,
        "norm-placement",
        "bits_per_byte",
        "norm.placement=output warmup=0.1",
        "norm.placement=pre warmup=0.1",
        "0.140 [0.116, 0.164]",
    ),
    (
        1,
        "norm-placement",
        "bits_per_byte",
        "norm.placement=pre warmup=0",
        "norm.placement=double warmup=0",
        "0.072 [0.035, 0.108]",
    ),
    (
        1,
        "norm-placement",
        "bits_per_byte",
        "norm.placement=output warmup=0",
        "norm.placement=pre warmup=0",
        "0.044 [-0.009, 0.096]",
    ),
    (
        1,
        "norm-placement",
        "best_loss",
        "norm.placement=pre warmup=0",
        "norm.placement=pre warmup=0.1",
        "0.124 [0.083, 0.166]",
    ),
    (4, "gates", "bits_per_byte", "swiglu", "gelu", "0.009 [0.003, 0.015]"),
    (4, "gates", "bits_per_byte", "glu", "gelu", "0.038 [0.029, 0.047]"),
    (4, "gates", "bits_per_byte", "reglu", "swiglu", "0.009 [0.004, 0.014]"),
    (12, "stability", "best_loss", "qk", "plain", "0.015 [0.002, 0.027]"),
    (13, "kv-heads", "bits_per_byte", "narrow", "mha", "0.047 [0.038, 0.055]"),
    (15, "stability", "bits_per_byte", "qk", "plain", "0.019 bits per byte [0.014, 0.025]"),
    (19, "late-hybrids", "bits_per_byte", "delta", "full", "0.130 bits per byte [0.104, 0.155]"),
    (13, "kv-heads", "bits_per_byte", "latent", "mha", "0.057 [0.051, 0.062]"),
    (12, "stability", "sensitivity", "qk", "plain", "-0.027 [-0.043, -0.010]"),
    (14, "window-time", "training_speed", "three-2k", "three-512", "-18.3% [-24.2, -12.5]"),
    (14, "window-time", "training_speed", "three-8k", "three-2k", "-43.2% [-47.0, -39.3]"),
    (16, "ladder-further", "bits_per_byte", "moe", "qk", "-1.3% [-1.6, -0.9]"),
    (16, "experts", "bits_per_byte", "dense", "e8", "0.008 bits per byte [0.001, 0.014]"),
    (16, "experts", "bits_per_byte", "dense", "e16", "0.017 [0.012, 0.021]"),
    (16, "experts", "bits_per_byte", "dense", "shared", "0.005 [0.001, 0.009]"),
    (21, "encoder-decoder", "continuation", "mixture", "causal", "0.533 [0.468, 0.597]"),
    (21, "encoder-decoder-halves", "continuation", "mixture", "causal", "0.351 [0.301, 0.400]"),
    (15, "ladder-further", "bits_per_byte", "qk", "moe", "0.025 [0.018, 0.032]"),
    (21, "encoder-decoder", "continuation", "encoder", "prefix", "0.072 [0.051, 0.094]"),
    (6, "positions", "2 times the length", "sinusoidal", "nope", "0.048 [0.037, 0.059]"),
    (6, "positions", "2 times the length", "nope", "rope", "0.046 [0.030, 0.061]"),
    (6, "positions", "4 times the length", "learned", "rope", "-0.005 [-0.032, 0.021]"),
    (6, "positions", "8 times the length", "learned", "rope", "-0.051 [-0.091, -0.012]"),
    (1, "norms", "bits_per_byte", "post at 300K", "llama at 300K", "0.070 bits per byte [0.061, 0.079]"),
    (1, "norms", "bits_per_byte", "post at 1M", "llama at 1M", "0.073 [0.052, 0.094]"),
    (1, "norms", "bits_per_byte", "post at 3M", "llama at 3M", "0.088 [0.048, 0.129]"),
    (2, "norms", "bits_per_byte", "llama at 300K", "layer at 300K", "0.005 bits per byte [-0.002, 0.013]"),
    (2, "norms", "bits_per_byte", "llama at 1M", "layer at 1M", "0.007 [0.001, 0.014]"),
    (2, "norms", "bits_per_byte", "layer at 3M", "llama at 3M", "0.009 [-0.021, 0.039]"),
    (5, "parallel-blocks", "decoding_speed", "shared", "serial", "7.7% [6.9, 8.6]"),
    (4, "steps", "bits_per_byte", "relu at 300K", "llama at 300K", "0.004 bits per byte [-0.014, 0.021]"),
    (4, "steps", "bits_per_byte", "relu at 1M", "llama at 1M", "-0.009 [-0.022, 0.004]"),
    (4, "steps", "bits_per_byte", "relu at 3M", "llama at 3M", "-0.024 [-0.064, 0.015]"),
    (4, "shapes", "bits_per_byte", "llama at 1M", "gelu at 1M", "0.039 bits per byte [0.030, 0.049]"),
    (6, "steps", "bits_per_byte", "learned at 300K", "llama at 300K", "0.119 bits per byte [0.110, 0.127]"),
    (6, "steps", "bits_per_byte", "learned at 1M", "llama at 1M", "0.147 [0.128, 0.167]"),
    (6, "steps", "bits_per_byte", "learned at 3M", "llama at 3M", "0.078 [0.046, 0.110]"),
    (6, "steps", "bits_per_byte", "none at 300K", "learned at 300K", "0.001 [-0.004, 0.006]"),
    (6, "steps", "bits_per_byte", "none at 1M", "learned at 1M", "0.029 [0.022, 0.036]"),
    (6, "steps", "bits_per_byte", "none at 3M", "learned at 3M", "0.043 [0.007, 0.079]"),
    (4, "steps-docs", "bits_per_byte", "relu at 1M", "llama at 1M", "0.011 bits per byte [0.006, 0.016]"),
    (6, "steps-docs", "bits_per_byte", "learned at 300K", "llama at 300K", "0.108 [0.102, 0.114]"),
    (6, "steps-docs", "bits_per_byte", "learned at 1M", "llama at 1M", "0.228 [0.207, 0.249]"),
    (7, "shapes", "bits_per_byte", "wider at 300K", "gelu at 300K", "0.023 bits per byte [0.013, 0.032]"),
    (7, "shapes", "bits_per_byte", "wider at 1M", "gelu at 1M", "0.025 [-0.016, 0.067]"),
    (9, "shapes", "bits_per_byte", "wide at 1M", "llama at 1M", "0.056 bits per byte [0.038, 0.073]"),
    (9, "shapes", "bits_per_byte", "wide at 300K", "llama at 300K", "0.009"),
    (13, "steps", "bits_per_byte", "gqa at 300K", "llama at 300K", "-0.002 bits per byte [-0.016, 0.012]"),
    (13, "steps", "bits_per_byte", "gqa at 1M", "llama at 1M", "0.002 [-0.007, 0.010]"),
    (13, "steps", "bits_per_byte", "gqa at 3M", "llama at 3M", "0.018 [-0.009, 0.045]"),
    (9, "depth", "bits_per_byte", "one", "two", "0.022 bits per byte [0.011, 0.034]"),
    (9, "depth", "bits_per_byte", "four", "two", "0.023 [0.017, 0.030]"),
    (9, "depth", "bits_per_byte", "eight", "four", "0.053 [0.038, 0.069]"),
    (9, "depth", "bits_per_byte", "sixteen", "four", "0.143 [0.125, 0.161]"),
    (10, "vocabulary", "bits_per_byte", "k4", "k2", "-0.010 bits per byte [-0.044, 0.025]"),
    (
        11,
        "decay-schedule",
        "bits_per_byte",
        "schedule=cosine weight_decay=0.3",
        "schedule=cosine weight_decay=0",
        "0.007",
    ),
    (
        11,
        "decay-schedule",
        "bits_per_byte",
        "schedule=wsd weight_decay=0.3",
        "schedule=wsd weight_decay=0",
        "0.013 [0.005, 0.020]",
    ),
    (
        11,
        "decay-schedule",
        "bits_per_byte",
        "schedule=constant weight_decay=0.3",
        "schedule=constant weight_decay=0",
        "0.047 bits per byte [0.022, 0.072]",
    ),
    (12, "stability", "sensitivity", "z", "plain", "0.001"),
    (12, "stability", "best_loss", "all", "plain", "0.014 [0.001, 0.028]"),
    (12, "stability", "best_loss", "qk", "plain", "0.015 [0.002, 0.027]"),
    (13, "kv-heads", "bits_per_byte", "gqa", "mha", "0.007"),
    (13, "kv-heads", "bits_per_byte", "mqa", "mha", "0.018 [0.010, 0.026]"),
    (13, "kv-heads", "bits_per_byte", "narrow", "mqa", "0.029"),
    (13, "kv-heads", "bits_per_byte", "latent", "narrow", "0.010 [0.003, 0.017]"),
    (17, "balance", "bits_per_byte", "bias", "nothing", "0.002 bits per byte [-0.004, 0.008]"),
    (19, "hybrid", "bits_per_byte", "delta", "delta3", "0.003 [-0.008, 0.013]"),
    (19, "hybrid-recall", "accuracy", "mamba3", "full", "18.3 percentage points"),
    (20, "batch-norm", "bits_per_byte", "own", "batch", "0.034 bits per byte [0.014, 0.055]"),
    (21, "encoder-decoder", "continuation", "prefix", "causal", "0.106 [0.086, 0.125]"),
    (21, "sorting", "accuracy", "prefix", "causal", "0.9 percentage points [-0.1, 1.9]"),
    (23, "upcycling", "bits_per_byte", "dense", "experts", "0.006 [0.004, 0.008]"),
]


@pytest.mark.parametrize(("number", "study", "outcome", "arm", "other", "text"), NUMBERS_IN_CAVEATS)
def test_differences_in_caveats_are_those_of_the_runs(number, study, outcome, arm, other, text):
    """The mean is exact to the shown digits. An interval is that of scipy, without a correction."""
    values = committed()[study].values[outcome]
    differences = np.array([value - values[other][seed] for seed, value in values[arm].items()])
    differences *= 100 if "points" in text else 100 / np.mean([*values[other].values()]) if "%" in text else 1
    low, high = interval(differences)
    shown = [float(part) for part in re.findall(r"-?\d+\.\d+", text)]
    digits = len(re.findall(r"\.(\d+)", text)[0])
    assert [round(abs(differences.mean()), digits), *np.round([low, high], digits)][: len(shown)] == [
        abs(shown[0]),
        *shown[1:],
    ]
    assert text in claims()[number].caveat


@pytest.mark.parametrize(
    ("arm", "text"), [("qk", "falls by 0.012 [0.002, 0.022]"), ("all", "falls by 0.030 [0.013, 0.046]")]
)
def test_the_mean_loss_over_rates_in_a_caveat_is_that_of_the_runs(arm: str, text: str):
    """Sensitivity is the mean loss over the rates minus the loss at the best rate."""
    values = committed()["stability"].values
    mean = {
        name: np.add(*([*values[of][name].values()] for of in ("sensitivity", "best_loss"))) for name in ("plain", arm)
    }
    assert text == f"falls by {with_interval(mean['plain'] - mean[arm])}"
    assert text in claims()[12].caveat


def test_the_gain_of_rope_over_sizes_in_a_caveat_is_that_of_the_seeds_of_all_sizes():
    values = committed()["steps"].values["bits_per_byte"]
    seeds = sorted(values["llama at 3M"])
    rope, learned = (
        np.array([[values[f"{arm} at {size}"][seed] for seed in seeds] for size in ("300K", "1M", "3M")])
        for arm in ("llama", "learned")
    )
    shares = 100 * (1 - rope / learned)
    gains = [f"{gain:.1f}%" for gain in 100 * (1 - rope.mean(1) / learned.mean(1))]
    fall = shares[1] - shares[2]
    low, high = interval(fall)
    caveat = claims()[6].caveat
    assert f"RoPE's gain is {gains[0]}, {gains[1]} and {gains[2]} of the loss" in caveat
    assert f"From 1M to 3M it falls by {fall.mean():.1f} points [{low:.1f}, {high:.1f}]" in caveat


def test_the_share_of_a_gain_in_a_caveat_has_the_interval_of_fieller():
    """Its ends are the shares r for which the mean of (loss at the best rate) - r (gain) is just not zero."""
    values = committed()["stability"].values
    rise, fall = (
        np.subtract(*([*values[of][arm].values()] for arm in arms))
        for of, arms in (("best_loss", ("qk", "plain")), ("sensitivity", ("plain", "qk")))
    )
    (rr, rf), (_, ff) = np.cov(rise, fall) * stats.t.ppf(0.975, len(rise) - 1) ** 2 / len(rise)
    means = rise.mean(), fall.mean()
    low, high = sorted(np.roots([means[1] ** 2 - ff, -2 * (means[0] * means[1] - rf), means[0] ** 2 - rr]))
    share = means[0] / means[1]
    assert f"{share:.2f} of it, with a 95% interval from {low:.2f} to {high:.2f}" in claims()[12].caveat


@pytest.mark.parametrize(
    ("arm", "length", "text"),
    [
        ("alibi", 2, "0.006 [-0.011, 0.023]"),
        ("alibi", 4, "-0.009 [-0.046, 0.028]"),
        ("alibi", 8, "-0.006 [-0.034, 0.022]"),
        ("nope", 2, "0.044 [0.030, 0.057]"),
        ("nope", 8, "0.061 [0.027, 0.096]"),
    ],
)
def test_the_change_of_a_loss_beyond_the_training_length_is_that_of_the_runs(arm: str, length: int, text: str):
    values = committed()["positions"].values
    rises = np.subtract(*([*values[of][arm].values()] for of in (f"{length} times the length", "bits_per_byte")))
    assert text == with_interval(rises)
    assert text in claims()[6].caveat


def with_interval(differences: np.ndarray) -> str:
    low, high = interval(differences)
    return f"{differences.mean():.3f} [{low:.3f}, {high:.3f}]"


def interval(differences: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the mean, without a correction."""
    return stats.t.interval(0.95, len(differences) - 1, differences.mean(), stats.sem(differences))


def test_claims_that_are_not_testable_do_not_change_the_verdicts_of_others(monkeypatch: pytest.MonkeyPatch):
    """They are not counted in Holm's correction. With them in it, the verdicts are the same (docs/claims.md)."""
    tested = primary_findings(claims().values(), committed(), "cpu").at_margin
    monkeypatch.setattr(verdicts_module, "why_untested", lambda *_: "")
    counted = primary_findings(claims().values(), committed(), "cpu").at_margin
    others = [number for number, finding in tested.items() if finding.found != "not testable"]
    assert "not testable" not in {finding.found for finding in counted.values()}
    assert 0 < len(others) < len(tested)
    assert [tested[number].found for number in others] == [counted[number].found for number in others]


def test_seeds_that_share_a_part_of_the_text_count_once():
    results = planted(FOUND, seeds=9).model_copy(update={"folds": {seed: seed % 3 for seed in range(9)}})
    values = {name: np.array(list(by_seed.values())) for name, by_seed in results.values["bits_per_byte"].items()}
    by_hand = (values["low"] - values["ref"]).reshape(3, 3).mean(axis=0)
    (judged,) = judge(claiming(("low", "better")), {"gates": results}, "cpu").judged
    assert judged.comparison
    assert judged.comparison.folds == 3
    assert judged.comparison.p == pytest.approx(stats.ttest_1samp(by_hand, 0)[1])


def test_an_interaction_is_computed_from_the_runs_of_its_arms():
    levels = {(p, w): 0.2 * (p == "post" and w == 0) for p in ("pre", "post") for w in (0.1, 0)}
    names = {point: f"norm.placement={point[0]} warmup={point[1]}" for point in levels}
    results = planted({names[point]: size for point, size in levels.items()})
    factors = [{"model.norm.placement": p, "train.warmup": w} for p, w in levels]
    crossed = [one.model_copy(update={"factors": f}) for one, f in zip(results.about.arms, factors, strict=True)]
    results = results.model_copy(update={"about": results.about.model_copy(update={"arms": crossed})})
    contrast = "warmup=0 where norm.placement=post"
    (judged,) = judge(claiming((contrast, "worse")), {"gates": results}, "cpu").judged
    by_arm = {point: np.array(list(results.values["bits_per_byte"][name].values())) for point, name in names.items()}
    by_hand = (by_arm["post", 0] - by_arm["post", 0.1]) - (by_arm["pre", 0] - by_arm["pre", 0.1])
    assert judged.found == "as claimed"
    assert judged.comparison
    assert judged.comparison.difference == pytest.approx(by_hand.mean())
    assert judged.comparison.p == pytest.approx(stats.ttest_1samp(by_hand, 0)[1])


def test_results_survive_a_round_trip():
    """Comparisons computed from the lines equal those of the study: loss, log, timing and outcomes from the config."""
    summary = sample_study.rich()
    summary = summary.model_copy(update={"study": library_study("gates", "cpu").model_dump(mode="json")})
    lines = list(record(summary, "gates", "cpu", "2026-01-01"))
    assert all(json.loads(line) for line in lines)
    back = read_results("\n".join(lines))
    assert back.about.digest == digest(library_study("gates", "cpu"))
    for heading, found in [
        (summary.outcome, {arm.name: arm.comparison for arm in summary.arms}),
        *((other.outcome, {name: one.comparison for name, one in other.arms.items()}) for other in summary.others),
    ]:
        assert {name: one.comparison for name, one in back.compared(heading.name).items()} == found, heading.name


def test_a_changed_line_changes_the_verdict():
    """Verdicts are computed, not stored."""
    text = "\n".join(record(_gates(), "gates", "cpu", "2026-01-01"))
    better = read_results(text)
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows[1:]:
        row["values"] = {name: value + (row["arm"] == "swiglu") for name, value in row["values"].items()}
    worse = read_results("\n".join(map(json.dumps, rows)))
    claim = claiming(("swiglu", "better"))
    assert judge(claim, {"gates": better}, "cpu").verdict == "as claimed here"
    assert judge(claim, {"gates": worse}, "cpu").verdict == "the opposite found here"


def _gates():
    arms = {name: (name, 2.0 - 0.1 * i, {}) for i, name in enumerate(library_study("gates", "cpu").arms)}
    found = sample_study.study(arms, seeds=[0, 1, 2, 3, 4], against="base")
    return found.model_copy(update={"study": library_study("gates", "cpu").model_dump(mode="json")})


def test_a_study_is_identified_by_its_runs():
    assert identified(_gates()) == ("gates", "cpu")
    smoke = library_study("gates", "smoke").model_dump(mode="json")
    assert identified(_gates().model_copy(update={"study": smoke})) == ("gates", "smoke")
    with pytest.raises(UserError, match="no study that comes with archlab"):
        identified(_gates().model_copy(update={"study": {**smoke, "seeds": 77}}))


def test_missing_runs_are_refused():
    summary = _gates()
    short = summary.arms[1].model_copy(update={"seeds": [0, 1]})
    with pytest.raises(UserError, match=f"runs of {short.name} are missing"):
        list(record(summary.model_copy(update={"arms": [summary.arms[0], short]}), "gates", "cpu", "2026-01-01"))


def test_the_rank_correlation_is_that_of_scipy():
    values = {"a": 1.0, "b": 1.2, "c": 1.1, "d": 1.4, "e": 1.6}
    means = {"a": 0.0, "b": 0.1, "c": 0.3, "d": 0.2, "e": 0.5, "f": -1.0}
    found = agreement(Ranking(study="gates", source="s", what="w", values=values), planted(means))
    expected = stats.spearmanr(list(values.values()), [means[name] for name in values])
    assert found.rho == pytest.approx(expected.statistic)  # pyright: ignore
    assert found.arms == 5
    assert found.low is not None
    assert found.high is not None
    assert found.rho
    assert found.low
    assert found.high
    assert found.low < found.rho < found.high


def test_committed_results_match_the_current_studies():
    for name, found in committed().items():
        assert found.about.digest == digest(library_study(found.about.study, found.about.scale)), name
        assert set(found.values) == {heading.name for heading in found.about.outcomes}


def test_the_digest_of_a_study_does_not_depend_on_the_install_folder():
    study = library_study("batch-norm", "cpu")
    moved = study.model_copy(update={"plugins": tuple(f"/elsewhere/{Path(p).name}" for p in study.plugins)})
    assert moved.plugins != study.plugins
    assert digest(moved) == digest(study)
    assert digest(study.model_copy(update={"plugins": ("/elsewhere/other.py",)})) != digest(study)


_CACHED = (committed, _committed_entry, _committed_primaries, _committed_unpredicted)


@pytest.fixture
def one_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "gates.jsonl").write_text("\n".join(record(_gates(), "gates", "cpu", "2026-01-01")))
    monkeypatch.setattr(results_module, "results_files", lambda: {"gates": tmp_path / "gates.jsonl"})
    for cached in _CACHED:
        cached.cache_clear()
    yield
    for cached in _CACHED:
        cached.cache_clear()


@pytest.mark.usefixtures("one_result")
@pytest.mark.slow
def test_the_ledger_in_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ledger"]) == 0
    table = capsys.readouterr().out
    assert "archlab ledger mistakes" in table
    assert max(map(len, table.splitlines())) <= 80
    heads = [line for line in table.splitlines() if re.match(r" ?\d+ \w", line)][: len(claims())]
    assert [head.split()[0] for head in heads] == [str(number) for number in claims()]
    verdicts = {head.index(word) for head in heads for word in ("as claimed here", "not run yet") if word in head}
    assert len(verdicts) == 1, "verdicts are aligned"
    assert "5 of 6 comparisons as claimed, 1 not run" in " ".join(table.split())
    for number in claims():
        assert main(["ledger", str(number)]) == 0
        one = capsys.readouterr().out
        assert max(map(len, one.splitlines())) <= 80
        assert claims()[number].caveat[:30] in one
    assert main(["ledger", "gates", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["claims"]
    assert entry["found"][0]["verdict"] == "as claimed here"
    assert entry["found"][0]["judged"][0]["comparison"]["p"] < 0.05


@pytest.mark.usefixtures("one_result")
@pytest.mark.slow
def test_the_page_has_every_claim_and_loads_nothing(tmp_path: Path):
    page = render(ledger())
    assert all(f'id="claim-{number}"' in page for number in claims())
    shown = re.sub(r"<script type=\"module\">.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"src=|@import|url\(", shown)
    assert "default-src 'none'" in page
    assert main(["ledger", "--html", str(tmp_path / "sub" / "ledger.html")]) == 0
    assert (tmp_path / "sub" / "ledger.html").read_text() == page


@pytest.mark.slow
def test_a_verdict_never_stands_without_its_caveat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The caveat is in the ledger's row on the page and in the terminal, and in every topic that shows the verdict.

    RMSNorm, for instance, is "slower" only as an operation that is not fused.
    """
    monkeypatch.setenv("COLUMNS", "2000")
    page = html.unescape(render(ledger()))
    rows = re.findall(r'id="claim-(\d+)".*?<summary>(.*?)</summary>', page, re.DOTALL)
    assert [int(number) for number, _ in rows] == [*claims()]
    assert main(["ledger"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    for number, row in rows:
        said = claims()[int(number)].caveat_in_short
        assert f"But: {said}." in row
        (block,) = (block for block in blocks if re.match(rf" *{number} +\w", block))
        assert f"but   {said}" in block
    assert "a fact of these kernels" in claims()[2].caveat_in_short
    assert main(["explain", "rmsnorm"]) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"2. norm kind: .*as claimed here \(267K to 1.45M parameters, python-stdlib 3.11.7; 3 of 3 comparisons\).*a fact of",
        " ".join(printed.split()),
    )
    assert 'contradicted">the opposite found here' in page


def entry_of(claim: Claim, *scales: ClaimAtScale) -> LedgerEntry:
    return LedgerEntry(claim=claim, found=list(scales), runs=[], changed=[])


def test_without_runs_the_page_has_no_picture():
    claim = claiming(("low", "better"))
    page = render([entry_of(claim, judge(claim, {}, "cpu"))])
    assert "vega" not in page.lower()
    assert "Predictions and results" not in page


def test_a_picture_has_predictions_of_one_unit_each_with_its_interval():
    claim = claiming(("low", "better"), ("same", "not worse"))
    fast = {"gates": planted({"ref": 0.0, "low": 1.0}, heading=SPEED)}
    lost = judge(claiming(("low", "better")), {"gates-gpu": planted(FOUND, diverged=("low",))}, "gpu")
    loss = judge(claim, {"gates": planted(FOUND)}, "cpu")
    speed = judge(claiming(("low", "better")), fast, "cpu")
    of_loss, of_speed = panels([entry_of(claim, loss, lost), entry_of(claiming(), speed)])
    better, same, none = of_loss.rows
    for row, judged, decides in (
        (better, loss.judged[0], ("low", "high")),
        (same, loss.judged[1], ("within_low", "within_high")),
    ):
        assert judged.comparison
        assert row["value"] == judged.comparison.difference
        assert (row["low"], row["high"]) == tuple(getattr(judged.comparison, end) for end in decides)
        assert (row["below"], row["above"]) == (-0.02, 0.02)
        assert row["found"] == judged.found
    assert -0.02 < same["low"] < same["high"] < 0.02, "an equivalent difference lies within the margin"
    assert (none["value"], none["text"], none["found"]) == (None, "diverged", "the opposite")
    assert none["arm"] == "1. n: low, gpu (expected: better)"
    (row,) = of_speed.rows
    means = {
        name: np.array([*values.values()], dtype=float).mean() for name, values in fast["gates"].values["speed"].items()
    }
    assert of_speed.outcome.unit == "share"
    assert row["value"] == pytest.approx(means["low"] / means["ref"] - 1)
    assert row["low"] < row["value"] < row["high"]


@pytest.mark.slow
def test_every_prediction_that_was_run_is_in_one_picture_which_is_valid():
    entries = ledger()
    rows = [row for panel in panels(entries) for row in panel.rows]
    run = [one for e in entries for found in e.found for one in found.judged if one.comparison]
    assert len(rows) == len(run)
    assert sorted(row["found"] for row in rows) == sorted("undecided" if one.untested else one.found for one in run)
    assert {row["found"] for row in rows} <= {*FINDINGS}
    for panel in panels(entries):
        assert len({row["arm"] for row in panel.rows}) == len(panel.rows), "rows of one label would be drawn as one"
        spec = predictions(panel).to_dict()
        (zero,) = {
            layer["encoding"]["x"]["scale"]["type"] for layer in spec["layer"] if "scale" in layer["encoding"]["x"]
        }
        assert zero == "symlog"
        (gap,) = {
            layer["encoding"]["x"]["axis"]["labelSeparation"]
            for layer in spec["layer"]
            if "axis" in layer["encoding"]["x"]
        }
        assert gap > 0, "on a phone, ticks would run into each other"


@pytest.mark.parametrize(
    ("low", "high", "near", "ticks"),
    [
        (-0.016, 0.055, 0.01, [-0.01, 0, 0.01, 0.02, 0.05]),
        (-1.2, 0.004, 0.01, [-1, -0.1, -0.01, 0]),
        (-0.78, 0.03, 0.75, [-0.5, 0]),
    ],
)
def test_ticks_of_both_sides(low: float, high: float, near: float, ticks: list[float]):
    assert both_sides(low, high, near) == pytest.approx(ticks)


def test_the_ledger_names_studies_that_changed(monkeypatch: pytest.MonkeyPatch):
    claim = claiming(("low", "better")).model_copy(update={"number": 4})
    older = planted(FOUND)
    (entry,) = ledger(claim, results={"gates": older})
    assert entry.changed == ["gates"]
    about = older.about.model_copy(update={"digest": digest(library_study("gates", "cpu"))})
    (entry,) = ledger(claim, results={"gates": older.model_copy(update={"about": about})})
    assert entry.changed == []


def test_an_unknown_claim(capsys: pytest.CaptureFixture[str]):
    assert main(["ledger", "gate"]) == 2
    assert "unknown claim 'gate'; did you mean gates?" in capsys.readouterr().err
    assert main(["ledger", "99"]) == 2
    assert f"expected a number from 1 to {len(claims())}, or the name of a claim" in capsys.readouterr().err


@pytest.mark.slow
def test_the_list_of_studies(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Listing opens and tokenizes no text."""

    def refuse(*_: object) -> None:
        raise AssertionError("a text was opened")

    monkeypatch.setattr("archlab.study.design.tokens_per_byte", refuse)
    monkeypatch.setattr("archlab.data.open.open_training_data", refuse)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["study", "list"]) == 0
    text = capsys.readouterr().out
    assert "vocabulary" in text
    assert max(map(len, text.splitlines())) <= 80
    gates = next(one for one in text.split("\n\n") if one.startswith("gates"))
    assert "claim 4" in gates
    assert "Which activation for the MLP" in gates
    assert "Shazeer 2020" in " ".join(gates.split())
    assert "swiglu better" in " ".join(gates.split())
    assert all(f"{scale} {n} runs" in gates for scale, n in {"smoke": 20, "cpu": 90, "gpu": 80}.items())
    assert main(["study", "list", "--json"]) == 0
    every = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert set(every) == set(studies())
    assert every["gates"]["takes"]["cpu"]["runs"] == 10 * (5 + 4)  # arms x (seeds + rates)
    assert every["gates"]["claims"] == [4]
    assert all(takes["seconds"] for one in every.values() for takes in one["takes"].values())
    assert "about" in gates
    last = " ".join(text.split("\n\n")[-1].split())
    assert re.search(r"committed results: [\d.]+K tokens/s of mini-llama|for this machine, as", last)


def test_times_are_predicted_from_the_speed_of_the_committed_runs():
    """mini-llama processes as many tokens per second as in the committed runs."""
    pace = committed_pace()
    assert pace
    timed = [json.loads(line) for line in results_files()["norm-kind"].read_text().splitlines()[1:]]
    speeds = [row["values"]["training_speed"] for row in timed if row["arm"] == "rms" and "round" in row]
    assert pace.tokens_per_second == pytest.approx(sum(speeds) / len(speeds))
    config = load_config("mini-llama", "train.tokens=512K")
    assert pace_clock(pace.flops_per_second)(config) == pytest.approx(512_000 / pace.tokens_per_second, rel=1e-6)


def test_a_tiny_model_is_not_expected_to_train_faster_than_its_operations_start():
    """Measured on two cores: 3.2 ms per update with one layer, 11.7 ms with eight."""
    tiny = ["model.d_model=16", "model.attention.n_heads=2", "model.attention.n_kv_heads=2", "model.vocab_size=512"]
    for n_layers, seconds in ((1, 0.0032), (8, 0.0117)):
        config = load_config(
            "tiny-llama", *tiny, f"model.n_layers={n_layers}", "train.batch_tokens=64", "train.seq_len=32",
            "train.tokens=64000",
        )  # fmt: skip
        assert pace_clock(1e12)(config) / 1000 == pytest.approx(seconds, rel=0.5)


def test_tokens_predicted_for_a_budget_in_bytes_are_close_to_the_real_number():
    about = committed()["vocabulary"].about
    sizes = {"k1": 1024, "k05": 512, "k2": 2048, "k4": 4096, "k8": 8192}
    for arm in about.arms:
        assert bytes_per_token(sizes[arm.name]) == pytest.approx(1_400_000 / arm.tokens, rel=0.04)


@pytest.mark.slow
def test_a_study_shows_the_predictions_of_its_claim(capsys: pytest.CaptureFixture[str]):
    assert main(["study", "show", "norm-kind"]) == 0
    said = "claim 2 of the ledger (norm kind) predicts: rms not worse, rms better in training_speed, rms better in norm_share"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("scale", "known"), [("smoke", "9a45abcef3b6"), (None, "e6a08578e64c"), ("gpu", "908c7804f606")]
)
def test_a_study_in_the_older_form_keeps_its_digest(scale: str | None, known: str) -> None:
    """archlab finds the claim of a study by its digest, even if the study was run before kinds registered themselves."""
    assert digest(read_study(str(OLDER_FORM), scale)[1]) == known
