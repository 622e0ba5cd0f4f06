"""The HTML report: every method, every text escaped, nothing from outside, nothing flattering."""

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.cards import HOSTILE, NAMES, card, full_card, hostile_card

from sidelight import PrivateClassifier
from sidelight.errors import InputError
from sidelight.methods.declare import DECLARATIONS, METHODS
from sidelight.privacy import accountants, events
from sidelight.privacy.correlated import CorrelatedGaussian
from sidelight.report import Card, card_of, html, write_report
from sidelight.report.audits import audit_row
from sidelight.report.comparison_figures import comparison_figures, comparison_rows
from sidelight.report.figures import training_charts, training_constants
from sidelight.report.guarantee import explain, guarantee, several, source_of
from sidelight.report.score_tables import score_lines, score_table

ROOT = Path(__file__).parents[2]
VOID = {"meta", "br", "img", "link", "input", "hr", "rect", "path", "line"}


class Page(HTMLParser):
    """Tags in order, checked for balance; attributes; text by place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def changed(one: Card, **changes: Any) -> Card:
    return Card.from_dict(one.to_dict() | changes)


def with_statement(one: Card, **changes: Any) -> Card:
    return changed(one, statement=one.to_dict()["statement"] | changes)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_sound_page(name: str) -> None:
    one = card(name)
    page = Page(html(one))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    wanted = {attrs["href"][1:] for tag, attrs in page.tags if tag == "a"}  # type: ignore[index]
    assert wanted <= set(ids)
    assert one.method in page.words
    for word in ("nan", "None", "undefined", "inf "):
        assert not re.search(rf"\b{word}\b", page.words), word
    kind = guarantee(one).kind
    assert ("No guarantee" in page.words) == (name == "non_private") == (kind == "none")
    assert kind != "false"
    assert ("No private record was used" in page.words) == (not events.elementary(one.plan))


def test_the_page_asks_nothing_of_any_network() -> None:
    text = html(full_card())
    page = Page(text)
    for _, attrs in page.tags:
        assert not {"src", "srcset", "action", "style", "onclick", "onload"} & set(attrs)
        assert all((attrs[key] or "").startswith("#") for key in ("href", "xlink:href") if key in attrs)
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text
    assert {tag for tag, _ in page.tags}.isdisjoint(
        {"link", "img", "iframe", "object", "embed", "base", "form"}
    )
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_every_text_from_data_is_escaped() -> None:
    one = hostile_card()
    page = Page(html(one))  # unbalanced tags would raise here
    assert [tag for tag, _ in page.tags].count("script") == 1  # ours
    assert "img" not in {tag for tag, _ in page.tags}
    assert page.words.count("<script>alert") > 60  # it is there, as text
    places = {"title", "assumptions", "notes", "ledger", "versions", "comparison", "audits", "data"}
    text = json.dumps(one.to_dict())
    assert all(place in text for place in places) and text.count("onerror") > 60


@pytest.mark.parametrize(
    "field",
    ["title", "created", "method", "assumptions", "details", "ledger", "versions", "data", "scores",
     "score name", "comparison", "audits", "history", "receipt"],
)  # fmt: skip
def test_a_script_in_one_place_stays_text(field: str) -> None:
    one, bad = full_card().to_dict(), HOSTILE
    statement = one["statement"]
    match field:
        case "title" | "created":
            one[field] = bad
        case "method":
            statement["method"] = bad
        case "assumptions":
            statement["assumptions"] = [bad]
        case "details":
            statement["details"] = {
                "notes": [bad],
                "reasons": [bad, {"x": bad}],
                "chosen": bad,
                bad: {bad: [bad]},
            }
        case "receipt":
            statement["ledger"] = {
                "ledger": bad,
                "dataset": bad,
                "run": bad,
                "total": {bad: bad, "budget": bad},
            }
        case "ledger":
            one["ledger"] = [dict.fromkeys(("run", "when", "method", "event", "note", "epsilon"), bad)]
        case "versions" | "data":
            one[field] = {bad: bad, "list": [bad, {bad: bad}], "deep": {bad: {bad: {bad: {bad: {bad: bad}}}}}}
        case "scores":
            one["scores"] = {"name": "accuracy", bad: bad, "note": bad, "only_public": bad}
        case "score name":
            one["scores"] = {"name": bad, "public_validation": 0.5}
        case "comparison":
            one["comparison"] = [
                {"method": f"{bad}{k}", "epsilon": k + 1, "score": 0.5, "note": bad} for k in range(3)
            ]
        case "audits":
            finding = {"promise": bad, "seen": bad}
            one["audits"] = [{"kind": bad, "method": bad, "details": {bad: bad}, "findings": [finding, bad]}]
        case "history":
            one["history"] = [{"step": k, "noise_std": 1.0, bad: bad, "spent": bad} for k in range(3)]
    page = Page(html(Card.from_dict(one)))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any(tag == "img" or "onerror" in attrs for tag, attrs in page.tags)
    if field != "history":
        assert "<script>alert" in page.words


def test_the_promise_is_said_in_words_and_in_symbols() -> None:
    page = Page(html(full_card()))
    assert "ε = 1 at δ = 10−5" in page.words.replace("\u00a0", " ")
    assert "Pr[M(D) ∈ S] ≤ eε · Pr[M(D′) ∈ S] + δ" in page.words
    assert (
        "one record replaced by any other" in page.words
        and "at most 2.72 times as likely (plus δ) with this record as if another record takes its place"
        in page.words
    )
    for not_covered in ("several records", "The public records", "Side channels"):
        assert not_covered in page.words


def test_a_claim_below_what_the_events_cost_is_not_believed() -> None:
    honest = card("dp_sgd")
    for lie in (0.5, 0.99):
        one = with_statement(honest, epsilon=lie)
        page = Page(html(one))
        assert guarantee(one).kind == "false"
        assert "The claim does not hold" in page.words and "Do not rely on it" in page.words
        assert "What an attacker gains at most" not in page.words
    assert guarantee(with_statement(honest, epsilon=honest.epsilon * (1 + 1e-9))).kind == "private"
    wrong = with_statement(card("dp_sgd-sampled"), relation="replace-one")  # Poisson is not analyzed there
    assert guarantee(wrong).kind == "false" and "no accountant knows them" in Page(html(wrong)).words


def test_a_claim_without_events_is_nothing_used() -> None:
    assert guarantee(card("only_public")).kind == "unused"
    assert guarantee(with_statement(card("only_public"), epsilon=3.0)).kind == "unused"


def test_an_infinite_epsilon_is_loud_whatever_the_events_are() -> None:
    page = Page(html(with_statement(card("dp_sgd"), epsilon="infinity")))
    assert "No guarantee" in page.words and "hero none" in str([a.get("class") for _, a in page.tags])


def test_a_fixed_seed_is_told_on_top() -> None:
    assert "Made with a fixed seed" in Page(html(card("dp_sgd"))).words
    assert "Made with a fixed seed" not in Page(html(full_card())).words


def test_large_epsilons_do_not_sound_safe() -> None:
    event = events.to_json(events.gaussian(0.2))
    cost = accountants.epsilon(events.gaussian(0.2), delta=1e-5, relation="replace-one")
    one = with_statement(card("output_perturbation"), epsilon=cost, events=[event])
    words = Page(html(one)).words
    assert "guesses correctly at most 99.4 % of the time, on average over results (50 % without" in words
    assert "protects little" in words and "almost" not in words


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_a_promise_for_persons_says_person_everywhere(relation: str) -> None:
    one = with_statement(card("dp_sgd"), unit="patient_id", relation=relation)
    words = Page(html(one)).words
    assert "all rows of one person" in words and "that share a value of 'patient_id'" in words
    assert "one record" not in words and "any one private record" not in words
    assert "A person with several records" not in words  # which the promise covers


def test_several_records_of_a_person_cost_what_group_privacy_says() -> None:
    one = card("dp_sgd")
    mu = accountants.gdp(one.plan)
    assert mu is not None
    epsilon, delta = several(one, 5)
    assert delta == one.delta
    assert (
        accountants.delta(events.gaussian(1 / (5 * mu)), epsilon=epsilon, relation=one.relation)
        <= delta * 1.001
    )
    assert epsilon < 5 * one.epsilon * 5  # and not merely anything
    sampled = with_statement(
        one, events=[events.to_json(events.poisson(0.1, 5.0))], relation="add-or-remove-one", epsilon=0.5
    )
    assert several(sampled, 3) == (1.5, pytest.approx(one.delta * math.expm1(1.5) / math.expm1(0.5)))
    assert "for 20" in Page(html(one)).words


def test_ledger_shows_every_event_and_the_totals() -> None:
    words = Page(html(full_card())).words
    assert "(this)" in words and "output_perturbation" in words and "used of the budget" in words
    assert "not recorded in a ledger" in Page(html(card("dp_sgd"))).words


def test_training_charts_of_an_adaptive_method() -> None:
    titles = {chart.title for chart in training_charts(full_card())}
    assert titles >= {"Budget spent", "Noise added", "Clip norm", "Public gradient"}
    assert [name for name, _ in training_constants(full_card())] == ["noise multiplier"]
    assert "The same at every step: noise multiplier" in html(full_card())
    (budget,) = [chart for chart in training_charts(full_card()) if chart.key == "budget"]
    assert budget.series[0].y[-1] <= 1 and sorted(budget.series[0].y) == list(budget.series[0].y)


@pytest.mark.parametrize("name", ["dp_sgd", "dp_sgd-sampled"])
def test_budget_of_a_fixed_plan_ends_at_the_stated_epsilon(name: str) -> None:
    one = card(name)
    (budget,) = [chart for chart in training_charts(one) if chart.key == "budget"]
    spent = list(budget.series[0].y)
    assert spent == sorted(spent) and spent[-1] == one.epsilon and budget.series[0].x[-1] == 4
    part = next(iter(events.elementary(one.plan)))
    first = accountants.epsilon(part, delta=one.delta, relation=one.relation)
    assert spent[0] >= first * (1 - 1e-9)  # never less than what one step costs


def test_a_run_that_was_stopped_says_what_stays_charged() -> None:
    one = changed(card("dp_sgd"), history=card("dp_sgd").to_dict()["history"][:2])
    (budget,) = [chart for chart in training_charts(one) if chart.key == "budget"]
    assert "stays charged" in budget.summary and budget.series[0].y[-1] < one.epsilon


def test_selection_has_no_budget_curve_that_would_be_wrong() -> None:
    assert "budget" not in {chart.key for chart in training_charts(card("private_selection"))}


def test_strange_histories_draw_what_is_there() -> None:
    strange = [{"step": 0, "noise_std": "infinity"}, {"step": "x", "noise_std": 1.0}, {}, {"noise_std": True}]
    one = changed(
        card("dp_sgd"), history=[*strange, {"step": 4, "noise_std": 2.0}, {"step": 5, "noise_std": 3.0}]
    )
    (noise,) = [chart for chart in training_charts(one) if chart.key == "noise-std"]
    assert list(noise.series[0].x) == [5.0, 6.0]
    Page(html(one))


def test_comparison_has_a_panel_for_each_epsilon_and_a_row_for_each_method() -> None:
    panels = comparison_figures(full_card())
    assert [one["title"] for one in panels] == ["ε = 0.1", "ε = 0.5", "ε = 1", "ε = 2"]
    names = [[row[0] for row in one["table"]["rows"]] for one in panels]
    assert all(len(one) == 9 and one == names[0] for one in names)  # the same order in each
    assert names[0][0] == "nsgd" and set(names[0][-2:]) == {"only_public", "non_private"}
    assert dict(panels[0]["table"]["rows"])["only_public"] == "66\u202f% (62\u202f% to 70\u202f%)"
    assert "by nsgd" in panels[3]["summary"]  # not the non-private one
    assert comparison_figures(changed(full_card(), comparison=[])) == []


def test_scores_say_whether_private_records_helped() -> None:
    def verdict(**scores: Any) -> str:
        found = score_table(changed(full_card(), scores={"name": "accuracy", **scores}))
        assert found is not None
        return str(found["verdict"])

    helped = verdict(public_validation=0.84, only_public=0.66, difference_error=0.02)
    assert "+18 points (95\u202f% interval: +14.1 to +21.9)" in helped and "records helped" in helped
    worse = verdict(public_validation=0.6, only_public=0.66, difference_error=0.01)
    assert "−6 points" in worse and "did not help" in worse
    unsure = verdict(public_validation=0.67, only_public=0.66, difference_error=0.02)
    assert "cannot tell" in unsure
    assert "helped" in verdict(name="mean_squared_error", public_validation=1.0, only_public=2.0)
    assert verdict(public_validation=0.6) == ""
    assert score_table(changed(full_card(), scores={})) is None


def test_a_failed_audit_is_loud() -> None:
    audit = full_card().audits[0] | {
        "passed": False,
        "findings": [{"promise": "unit sensitivity", "seen": "2"}],
    }
    words = Page(html(changed(full_card(), audits=[audit]))).words
    assert "An audit failed" in words and "unit sensitivity: 2" in words
    assert "An audit failed" not in Page(html(full_card())).words
    replay = audit_row({"kind": "neighbor replay", "lower_bound": 0.0, "passed": True})
    assert replay["lower"] == "–"  # it proves no ε


@pytest.mark.parametrize("name", sorted(events._NAMES))
def test_every_event_has_words(name: str) -> None:
    sample = {
        "gaussian": events.gaussian(2.0),
        "poisson-sampled": events.poisson(0.1, 2.0),
        "sampled-without-replacement": events.fixed_size(10, 2, 2.0),
        "zcdp": events.ZeroConcentrated(0.1),
        "mixture-of-sensitivities": events.MixtureOfSensitivities((1.0, 2.0), (0.5, 0.5)),
        "tcdp": events.TruncatedConcentrated(0.1, 5.0),
        "renyi-bound": events.RenyiBound(3.0, 0.5),
        "approximate-dp": events.ApproximateDp(1.0, 0.0),
        "objective-perturbation": events.ObjectivePerturbation(0.1, 0.2, 1),
        "gaussian-sketch": events.GaussianSketch(50, 0.01),
        "best-of": events.BestOf((events.gaussian(4.0),), 0.0, 0.2),
        "correlated-gaussian": CorrelatedGaussian(2.0, (1.0, 0.5), 0, 8, 2, 4),
        "allocated-gaussian": events.AllocatedGaussian(2.0, 8),
        "non-private": events.NonPrivate(),
        "laplace": events._NAMES["laplace"](noise_multiplier=1.0),  # type: ignore[call-arg]
    }.get(name)
    if sample is None:
        assert name in ("repeated", "composed", "nothing")  # never elementary
        return
    text = explain(sample, 1)
    assert text[0].isupper() and text.endswith(".")
    assert explain(sample, 3)[0] in "3SA" or "3 times" in explain(sample, 3)


# ---------------------------------------------------------------------------------------------------
# departures


def test_departures_cover_every_method_and_no_other() -> None:
    assert all(source_of(name) is not None for name in (*METHODS, "private_selection"))
    assert source_of("a recipe of my own") is None


def test_gaps_of_the_papers_in_the_docs_are_departures_here() -> None:
    text = (ROOT / "docs/methods.md").read_text()
    table = text[text.index("| paper | gap | here |") :].splitlines()[2:]
    named = {
        "PPSGD": "ppsgd", "DOPE-SGD": "dope_sgd", "Coupling": "coupling", "RSGD-AR (code)": "rsgd_ar",
        "DP-AGD (code)": "dp_agd", "ObjPert 2012": "objective_perturbation", "AMP (code)": "amp",
        "SgdAdv (code)": "sgd_adv", "ObjPert 2023 (code)": "objective_perturbation", "PMT": "pmt",
        "Hessian mixing": "hessian_mixing",
    }  # fmt: skip
    rows = [line.split(" | ")[0].strip("| ") for line in table if line.startswith("|")]
    assert rows and set(rows) <= set(named)
    assert all(DECLARATIONS[named[row]].departs for row in rows)


def test_write_report_is_the_page(tmp_path: Path) -> None:
    write_report(full_card(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html(full_card())


def test_a_method_that_is_the_same_at_every_epsilon_is_one_row() -> None:
    rows = [{"method": "free", "epsilon": e, "score": 0.5, "note": "n"} for e in (1, 2)]
    found = comparison_rows(
        changed(full_card(), comparison=[*rows, {"method": "x", "epsilon": 1, "score": 0.6}])
    )
    assert [(row["method"], row["epsilon"]) for row in found] == [("free", "any"), ("x", "1")]


@pytest.mark.parametrize("seed", range(25))
def test_a_card_with_strange_values_is_refused_or_drawn(seed: int) -> None:
    """Whatever somebody edits into a card: one of our errors, or a page; never another exception."""
    rnd = random.Random(seed)
    body = card(rnd.choice(("dp_sgd", "rsgd_ar", "amp", "ppsgd", "only_public"))).to_dict()
    body |= {name: getattr(full_card(), name) for name in ("comparison", "audits", "scores", "ledger")}
    body = json.loads(json.dumps(body))
    for _ in range(3):
        inside: Any = body
        while True:
            key = rnd.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
            if not isinstance(inside[key], dict | list) or not inside[key] or rnd.random() < 0.2:
                break
            inside = inside[key]
        inside[key] = rnd.choice(STRANGE)
    try:
        found = Card.from_dict(body)
    except InputError:
        return
    Page(html(found))


STRANGE: list[Any] = [
    *(None, True, 0, -1, 3.5, 1e308, 1e-308, 10**30, "", "infinity", "nan", [], {}, [1], [None], {"a": 1}),
    *({"a": {"b": [1, {"c": None}]}}, "\ud800", "\x00<b>", "9" * 50, [[[[[[]]]]]], ["infinity"], -0.5),
]


def test_a_lone_surrogate_is_written_and_read_again(tmp_path: Path) -> None:
    one = changed(card("only_public"), title="broken \udc80 name")
    one.write(tmp_path / "privacy.json")
    assert Card.read(tmp_path / "privacy.json") == one
    write_report(one, tmp_path / "report.html")
    assert "broken \\udc80 name" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_rehearsal_is_no_method() -> None:
    one = with_statement(card("only_public"), method="compare")
    words = Page(html(changed(one, comparison=full_card().comparison))).words
    assert "Methods compared" in words and "recipe of the user's own" not in words
    assert "What was charged" not in words and "The promise, exactly" not in words
    assert words.index("Methods compared") < words.index("How it was rehearsed")  # the result comes first
    assert "How the training went" not in words


# ---------------------------------------------------------------------------------------------------
# scores beyond the first


def scored_card(**changes: Any) -> Card:
    measure = {"value": 0.84, "low": 0.7, "high": 0.92}
    scores = {
        "name": "accuracy", "public_validation": 0.84, "public_validation_low": 0.7,
        "public_validation_high": 0.92, "public_validation_error": 0.05, "majority": 0.6,
        "majority_label": "no", "rows": 50,
        "measures": {
            "accuracy": {"model": measure, "only_public": measure},
            "calibration_error": {"model": {"value": 0.04, "by_chance": 0.09}},
        },
        "confusion": {"labels": ["no", "yes"], "counts": [[28, 2], [6, 14]]},
        "reliability": [{"rows": 25, "predicted": 0.2, "observed": 0.3, "low": 0.1, "high": 0.5}],
    }  # fmt: skip
    return changed(full_card(), scores={**scores, **changes})


def test_the_majority_comes_first_and_every_score_has_its_interval() -> None:
    page = Page(html(scored_card()))
    words = page.words
    assert words.index("always the most common class") < words.index("this model, on public validation")
    assert "84 % (70 % to 92 %)" in words and "by chance up to 0.09" in words
    assert "public_validation_low" not in words and "Which classes are taken for which" in words
    assert (
        "Can the probabilities be trusted?" in words
        and "where the model says 20 %, it is true in 30 %" in words
    )


GROUPS = {"column": "site", "rows": [{"group": "north", "rows": 20, "value": 0.8, "low": 0.6, "high": 0.9}]}


def test_scores_of_subgroups_are_a_table() -> None:
    card = scored_card(groups=GROUPS)
    words = Page(html(card)).words
    assert "By site" in words and "north80 % (60 % to 90 %)20" in words.replace("> ", ">")
    assert "{'column'" not in words
    assert score_lines(card.scores)[-1].split() == [
        "north",
        *["80", "%", "(60", "%", "to", "90", "%)"],
        "20",
        "(weak)",
    ]


@pytest.mark.parametrize("facts", [{}, {"controller": "St Mary's"}, {"purpose": "Whom to invite."}])
def test_the_head_names_who_answers_and_for_what(facts: dict[str, str]) -> None:
    words = Page(html(changed(full_card(), facts=facts))).words
    assert words.count("not declared") >= 5
    assert all(value in words for value in facts.values())


def test_an_audit_names_its_relation_and_shows_no_empty_rows() -> None:
    row = audit_row(
        {"kind": "neighbor replay", "relation": "replace-one", "details": {"seeds": 3, "empty": {}}}
    )
    assert row["relation"] == "replace-one" and row["details"] == {"seeds": 3}


@pytest.mark.parametrize("field", ["measures", "confusion", "reliability", "groups"])
@pytest.mark.parametrize(
    "odd",
    [
        None, 7, "text", [], {}, [[]], {"labels": ["a", "b"], "counts": [[1], [2]]}, [{"predicted": "x"}],
        {"labels": ["a", "b"], "counts": [["x", 1], [1, 1]]}, {"accuracy": 3}, {"accuracy": {"model": 3}},
        {"accuracy": {"model": {"value": "nan", "low": "x"}}}, [{"predicted": 0.5, "observed": 7}], [None],
    ],
)  # fmt: skip
def test_scores_of_another_shape_are_left_out(field: str, odd: object) -> None:
    Page(html(scored_card(**{field: odd})))


def test_a_rehearsal_shows_ranges_and_claims_no_number() -> None:
    rows = [
        {"method": name, "epsilon": e, "score": 0.8, "error": 0.1, "low": 0.7, "high": 0.9,
         "on_synthetic_rows": rank, "on_real_rows": 0.75, "note": "x"}
        for name, rank in (("auto", 0.9), ("dp_sgd", 0.8), ("non_private", 0.95)) for e in (0.5, 1.0)
    ]  # fmt: skip
    words = Page(html(changed(full_card(), comparison=rows, scores={"name": "accuracy"}))).words
    assert "auto is ahead on synthetic rows" in words and "70 % to 90 %" in words
    assert "highest private score" not in words


def test_a_private_selection_says_why_more_is_charged_than_shown() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (20_300, 3))
    y = X @ [1.0, 2.0, -1.0] > 0
    model = PrivateClassifier(epsilon=5.0).fit(X[300:], y[300:], X_public=X[:300], y_public=y[:300])
    assert model.privacy_.details["chosen"] == "private_selection"
    words = Page(html(card_of(model))).words
    assert "3 candidates were trained, with 64 steps each" in words and "192 times" in words
    assert "candidates were trained" not in Page(html(full_card())).words
