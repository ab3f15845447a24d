"""The claims and topics on a study's page and at the end of its run."""

import re

import pytest

import sample_study
from archlab.evidence.claims import claims
from archlab.evidence.ledger import about_study, ledger
from archlab.evidence.look_up import explaining
from archlab.report.study.claims import claims_of, explained, lines
from archlab.report.study.page import render
from archlab.study.record import StudySummary
from archlab.study.study_file import library_study


def run_of(study: str, scale: str) -> StudySummary:
    """Return a summary with made-up values of a study that comes with archlab."""
    config = library_study(study, scale)
    arms = {name: (name, 2.0 - 0.1 * i, overrides) for i, (name, overrides) in enumerate(config.arms.items())}
    found = sample_study.study(arms, seeds=[0, 1], against="base")
    return found.model_copy(update={"study": config.model_dump(mode="json")})


def test_the_terminal_shows_the_claim_and_the_findings_of_the_ledger():
    said = list(lines(run_of("gates", "smoke")))
    (entry,) = ledger("gates")
    assert said[0].startswith("claim 4 of the ledger, gates: At equal parameters, gated MLPs beat")
    assert said[0].endswith("(Shazeer 2020, Narang 2021)")
    assert said[1] == "  predicted: swiglu better, geglu better, reglu better, bilinear better, glu better"
    assert said[2].startswith("  the ledger's run, at the studies' own scale: ")
    assert said[2].endswith(f"verdict on the claim: {entry.found[0].verdict}")
    assert said[-2] == f"  but: {claims()[4].caveat_in_short}"
    assert said[-1] == "  in full: archlab ledger 4"


def test_a_study_over_sizes_shows_its_predictions_and_gains():
    """Other studies decide the verdict, so their results are left out."""
    said = list(lines(run_of("steps", "cpu")))
    assert said[1] == "  predicted: SwiGLU vs ReLU: grows over sizes"
    assert re.match(r"  the ledger's run, .*: steps: SwiGLU vs ReLU on python-stdlib [0-9.]+: gain ", said[2])
    assert "verdict on the claim: mixed" in said[2]
    assert "margin" not in said[2]


@pytest.mark.slow
def test_the_page_of_a_study_over_sizes_shows_its_gains():
    page = render(run_of("steps", "cpu"))
    # claims 4 and 13 have one comparison each, claim 6 has two, and claim 15 has all four
    assert page.count("difference over model sizes") == 8
    assert not re.search(r"<tbody[^>]*>\s*</tbody>", page)


@pytest.mark.slow
def test_the_page_shows_the_claim_with_links_to_its_sources():
    page = render(run_of("gates", "cpu"))
    assert "Claim 4 of the ledger: gates" in page
    assert claims()[4].statement in page
    assert '<a href="https://arxiv.org/abs/2002.05202">Shazeer 2020</a>' in page
    assert "gates: SwiGLU vs ReLU, loss on held-out text" in page
    assert "archlab explain" not in page


def test_other_studies_of_a_claim_are_left_out():
    (entry,) = about_study("hybrid-recall")
    assert {judged.expected.study for found in entry.found for judged in found.judged} == {"hybrid-recall"}
    (whole,) = ledger(entry.claim)
    assert [found.verdict for found in entry.found] == [found.verdict for found in whole.found]


@pytest.mark.slow
def test_a_study_of_ones_own_is_about_no_claim():
    """Not even a study that extends one of archlab's, because its runs are different."""
    gates = run_of("gates", "cpu")
    own = gates.model_copy(update={"study": {**gates.study, "seeds": 77}})
    assert claims_of(own) == ("", [])
    (line,) = lines(own)
    assert line == f"explain: {'; '.join(explained(own))}"
    page = render(own)
    assert "of the ledger" not in page
    assert all(f"<code>{command}</code>" in page for command in explained(own))
    assert len(re.findall("<code>archlab explain ", page)) == len(explained(own)) > 1


PLAIN = {"model.mlp.kind": "plain", "model.mlp.activation": "gelu", "model.norm.kind": "rmsnorm", "train.lr": 1e-3}
CHANGES = [
    ({}, []),
    ({"train.lr": 2e-3}, []),
    ({"model.norm.kind": "layernorm"}, ["layernorm"]),
    ({"model.mlp.activation": "relu"}, ["relu"]),
    ({"model.mlp.kind": "gated", "model.mlp.activation": "silu"}, ["swiglu"]),
    ({"model.mlp.kind": "gated", "model.mlp.activation": "silu", "model.attention.n_kv_heads": 1}, ["swiglu", "mqa"]),
    ({"model.mlp.kind": "gated", "model.mlp.activation": "gelu"}, ["geglu"]),  # not the plain MLP's GELU
    ({"model.mlp.kind": "gated", "model.mlp.activation": "gelu_tanh"}, ["gated-mlp", "model.mlp.activation"]),
    ({"model.attention.kind": "latent", "model.attention.kv_rank": 7}, ["mla"]),
    ({"model.attention.n_kv_heads": 4}, ["model.attention.n_kv_heads"]),
]


@pytest.mark.parametrize(("changed", "names"), CHANGES)
def test_which_topics_explain_a_change(changed: dict[str, object], names: list[str]):
    assert list(explaining(changed, PLAIN | changed)) == names
