"""Page one: what it says follows from the numbers, and every number is computed again here."""

import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm
from tests.report.cards import card, full_card
from tests.report.test_page import Page, with_statement

from sidelight.numbers import right_in, up
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.conversions import right_at_most
from sidelight.report import Card, html
from sidelight.report.decision import lifetime, page_one, vouched_facts
from sidelight.report.facts import FACTS
from sidelight.report.gain import gain_over_public
from sidelight.report.guarantee import (
    alarms,
    guarantee,
    not_true,
    protected,
    right_guesses,
    times_as_likely,
    what_delta_allows,
)

ALL = {
    "public_is_public": True, "public_is_independent": True, "records_per_person": 1, "size_is_public": True,
    "nothing_else_released": True, "side_channels": "one user on one machine",
}  # fmt: skip


def gaussian_card(epsilon: float, delta: float = 1e-6, **facts: Any) -> Card:
    """One Gaussian release of this ε."""
    mu = conversions.gdp_mu(epsilon, delta)
    plan = events.gaussian(1 / mu)
    cost = accountants.epsilon(plan, delta=delta, relation="replace-one")
    one = with_statement(
        card("output_perturbation"), events=[events.to_json(plan)], epsilon=cost, delta=delta
    )
    plain = [line for line in one.statement["assumptions"] if "seed" not in line]
    return replace(with_statement(one, assumptions=plain), facts=facts)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 20.0, 100.0])
def test_page_one_is_true_at_every_epsilon(epsilon: float) -> None:
    one = gaussian_card(epsilon)
    words = Page(html(one)).words.replace("\u00a0", " ").replace("\u202f", " ")
    assert "almost" not in words
    mu = accountants.gdp(one.plan)
    assert mu is not None
    right = 100 * norm.cdf(mu / 2)
    if epsilon > 30:
        assert "may guess correctly every time (50 % without the model)" in words and right > 99.9
    else:
        (shown,) = set(re.findall(r"guesses correctly at most ([\d.]+) % of the time, on average", words))
        assert right <= float(shown) <= right + 0.1 + 1e-9
    if epsilon < 30:
        assert (
            f"at most {times_as_likely(one.epsilon)} as likely (plus δ) with this record as if another "
            "record takes its place, and the reverse" in words
        )
    else:
        assert "only by a number of 44 digits, which is no protection in practice" in words
    assert ("protects little" in words) == ("protects little" in " ".join(alarms(one))) == (epsilon >= 10)
    n = one.data["private_records"]
    assert "each record exposed with probability one in a million" in words
    (told,) = re.findall(r"about ([\d.]+) of (\d+) records expected", words)
    assert int(told[1]) == n and n * one.delta <= float(told[0]) <= n * one.delta * 1.06


@pytest.mark.parametrize(
    ("epsilon", "text"), [(0.1, "1.11 times"), (9.2, "9,898 times"), (20.0, "486 million times")]
)
def test_a_likelihood_ratio_is_a_number_for_people(epsilon: float, text: str) -> None:
    assert times_as_likely(epsilon) == text
    number, _, unit = text.removesuffix(" times").partition(" ")
    size = {"": 1.0, "million": 1e6}[unit]
    assert math.exp(epsilon) <= float(number.replace(",", "")) * size <= math.exp(epsilon) * 1.01


def test_delta_of_one_in_n_is_an_alarm() -> None:
    n = full_card().data["private_records"]
    assert "δ = " in " ".join(alarms(gaussian_card(1.0, delta=1.01 / n)))
    assert alarms(gaussian_card(1.0, delta=0.5 / n)) == []


def test_the_headline_is_for_a_person() -> None:
    """With five records of one person, ε is that of five, and so is the attacker."""
    plain, one = gaussian_card(1.0), gaussian_card(1.0, records_per_person=5)
    mu = accountants.gdp(one.plan)
    assert mu is not None
    who = protected(one)
    assert who.epsilon == conversions.gaussian_epsilon(1e-6, 5 * mu) > 5 * plain.epsilon
    assert f"{who.epsilon:.1f}" in guarantee(one).headline and "per person" in guarantee(one).headline
    assert right_guesses(one, who) == pytest.approx(norm.cdf(2.5 * mu))
    assert "per record" in guarantee(plain).headline
    assert "per person" in guarantee(gaussian_card(1.0, records_per_person=1)).headline
    said = " ".join(guarantee(one).sentences).replace("\u00a0", " ")
    assert "record " not in said
    assert "if no one has more than 5 records (declared, not checked)" in said
    assert "at most 0.00074 of at most 740 people expected" in said
    alone = " ".join(guarantee(plain).sentences).replace("\u00a0", " ")
    assert (
        "Per record only. How many records one person has was not declared: for 5 it would be "
        f"ε = {up(who.epsilon)}." in alone
    )
    by_column = with_statement(plain, unit="patient_id")
    assert "per person" in guarantee(by_column).headline and protected(by_column).records == 1


def test_a_person_of_a_sampled_plan_is_bounded_by_epsilon_and_delta() -> None:
    part = [events.to_json(events.repeat(events.poisson(0.1, 5.0), 3))]
    cost = accountants.epsilon(events.from_json(part[0]), delta=1e-6, relation="add-or-remove-one")
    one = with_statement(gaussian_card(1.0, records_per_person=3), events=part, epsilon=cost,
                         relation="add-or-remove-one")  # fmt: skip
    who = protected(one)
    assert who.epsilon == 3 * cost and who.delta > 1e-6
    e = math.exp(who.epsilon)
    assert right_guesses(one, who) == pytest.approx((1 + (e - 1 + 2 * who.delta) / (e + 1)) / 2)


def test_the_lifetime_budget_and_what_all_of_it_would_allow() -> None:
    one = full_card()
    text = told(one)
    total = one.statement["ledger"]["total"]
    shown = re.findall(r"ε = (\S+) at|spent (\S+),|used (\S+) |left (\S+), the most", text)
    for key, found in zip(("budget", "epsilon", "epsilon_adaptive", "remaining"), shown, strict=True):
        value = float("".join(found))
        side = -1 if key == "remaining" else 1
        assert 0 <= side * (value - total[key]) < 1.01e-3, key
    assert "do not add up" in Page(html(one)).words  # 1.1 + 2.2 is not 3
    e, delta = math.exp(3.0), 1e-5
    (bound,) = re.findall(r"guesses correctly at most ([\d.]+) % of the time", text)
    right = 50 * (1 + (e - 1 + 2 * delta) / (e + 1))
    assert right <= float(bound) <= right + 0.11 and right_at_most(3.0, delta) == pytest.approx(right / 100)
    assert "Per record: budget" in text
    assert "not recorded in a ledger" in told(card("dp_sgd"))
    assert "Per person: budget" in told(replace(one, facts={"records_per_person": 1}))
    two = told(replace(one, facts={"records_per_person": 2}))
    assert "Per record: budget" in two and "Per person (2 records): this run ε = " in two
    assert "the whole budget ε = 6 at δ = 2.11 × 10⁻⁴" in two  # δ(e^3 + 1), rounded up
    many = told(replace(one, facts={"records_per_person": 9}))
    assert "group privacy leaves no bound" in many and "ε = 27" not in many


def told(one: Card) -> str:
    return " ".join(line for line, _ in lifetime(one)).replace("\u202f", " ")


@pytest.mark.parametrize(("records", "weak"), [(1, False), (3, False), (4, True), (9, True)])
def test_a_budget_that_promises_a_person_nothing_is_red(records: int, weak: bool) -> None:
    one = replace(full_card(), facts={"records_per_person": records})  # a budget of 3
    assert any(red for _, red in lifetime(one)) == weak
    assert ('<p class="bad">Per person' in html(one)) == weak
    assert "every time" not in told(one)  # 1 − 10⁻⁵ is not 1


def test_a_share_says_how_far_it_is_from_certainty() -> None:
    assert "at most 99.996\u202f% of the time" in right_in(right_at_most(10.0, 0.0))
    assert right_in(1.0) == right_in(1 - 1e-9) == "may guess correctly every time"
    assert "at most 73.2\u202f% of the time, on average over results" in right_in(right_at_most(1.0, 0.0))


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ("public_is_independent", "that public records were taken, made or chosen by looking"),
        ("nothing_else_released", "is released, without being charged"),
        ("size_is_public", "that the number of records, the columns or their types are not public"),
    ],
)
def test_an_assumption_that_is_not_true_is_an_alarm(fact: str, words: str) -> None:
    one = replace(full_card(), facts={**ALL, fact: False})
    (line,) = alarms(one)
    assert line.startswith("The guarantee below does not hold as stated: it was declared") and words in line
    assert 'class="state not-true">not true' in html(one) and len(not_true(one)) == 1
    assert not_true(replace(one, facts=ALL)) == []


def test_open_assumptions_are_counted_on_top() -> None:
    facts = {key: value for key, value in ALL.items() if key not in ("size_is_public", "side_channels")}
    assert "Incomplete: 2 of 6 assumptions open" in Page(html(replace(full_card(), facts=facts))).words
    assert "Incomplete" not in Page(html(replace(full_card(), facts=ALL))).words


def test_the_name_at_the_signature_is_left_to_the_signer() -> None:
    facts = {"reviewer": "A. Borg", "officer_opinion": "no objection"}
    page = html(replace(full_card(), facts=facts))
    assert '<div class="signature"><p>Name</p>' in page
    assert "Opinion as submitted by the applicant (not a signature): no objection." in page


@pytest.mark.parametrize(
    ("delta", "words"),
    [(1e-6, "one in a million"), (1e-5, "one in 100,000"), (3e-7, "one in 3.33 million"),
     (1e-9, "one in a billion"), (0.01, "one in 100"), (0.6, "0.6"), (1e-20, "one in 10²⁰")],
)  # fmt: skip
def test_a_delta_in_words(delta: float, words: str) -> None:
    assert f"with probability {words}," in what_delta_allows(100, delta, person=False)


def test_everything_that_somebody_vouches_for_is_declared_or_open() -> None:
    assert {one.state for one in vouched_facts(full_card())} == {"open"}
    done = replace(full_card(), facts=ALL)
    assert {one.state for one in vouched_facts(done)} == {"declared"} and len(vouched_facts(done)) == 6
    denied = replace(full_card(), facts={**ALL, "size_is_public": False})
    assert [one.state for one in vouched_facts(denied)].count("not true") == 1
    alone = replace(full_card(), data={**full_card().data, "public_records": 0}, facts=ALL)
    assert len(vouched_facts(alone)) == 4  # nothing to vouch for in public records that were not used


def test_what_nobody_declared_is_listed() -> None:
    one = replace(full_card(), facts={"purpose": "x", "public_is_public": False})
    missing = page_one(one, "private")["undeclared"]
    condition = "special_categories_condition"  # asked for only with special categories
    assert set(missing) == set(FACTS) - {"purpose", "public_is_public", condition}
    special = replace(one, facts={"special_categories": ["race"]})
    assert condition in page_one(special, "private")["undeclared"]
    words = Page(html(one)).words
    assert f"Facts that nobody declared ({len(missing)}): title, intended_use" in words


def test_the_hash_on_page_one_is_that_of_the_file(tmp_path: Path) -> None:
    one = replace(full_card(), title="ünïcode \udc80")
    one.write(tmp_path / "privacy.json")
    assert hashlib.sha256((tmp_path / "privacy.json").read_bytes()).hexdigest() in html(one)


def test_necessity_is_measured_on_private_records_if_it_was() -> None:
    """Two noisy accuracies with an error each: that of their difference is √2 times as large."""
    compared = {
        "accuracy": 0.86, "accuracy_public": 0.85, "accuracy_error": 0.002, "value": 0.1, "error": 0.1,
        "loss_public": 0.4, "kept": True,
    }  # fmt: skip
    gain = gain_over_public(
        {"public_validation": 0.1, "only_public": 0.9}, {"compared_with_public": compared}
    )
    assert gain is not None and gain.value == pytest.approx(1.0)
    low, high = gain.interval or (0, 0)
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(2) * 0.2)
    assert gain.verdict == "The private records helped." and "on the private records" in str(gain)
    given_up = gain_over_public({}, {"compared_with_public": {**compared, "kept": False}})
    assert given_up is not None and "public records alone was returned" in given_up.verdict
    assert gain.levels(50) == "86\u202f% correct with private records, 85\u202f% from 50 public records alone"
    losses = {"value": 0.02, "error": 0.02, "loss_public": 0.4, "loss": "square"}
    gain = gain_over_public({}, {"compared_with_public": losses})
    assert gain is not None and gain.value == pytest.approx(5.0) and "cannot tell" in gain.verdict
    assert gain_over_public({}, {}) is None
    assert "was not measured" in Page(html(card("dp_sgd"))).words


def test_a_model_without_a_guarantee_has_no_box_to_vouch_for() -> None:
    words = Page(html(card("non_private"))).words
    assert "by signing, you accept" not in words and "Decision" in words


def test_special_categories_are_looked_for_among_the_columns() -> None:
    data = {**full_card().data, "columns": ["age", "race"]}
    one = replace(full_card(), data=data, facts={"special_categories": ["race", "religion"]})
    words = Page(html(one)).words
    assert "reads these special categories of data: race." in words
    assert "no column of the model: religion." in words
    assert "Special categories read: race; Art. 9(2) condition: not declared." in words
    facts = {**one.facts, "special_categories_condition": "explicit consent"}
    assert "race; Art. 9(2) condition: explicit consent." in Page(html(replace(one, facts=facts))).words
