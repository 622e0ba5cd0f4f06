"""`sidelight account`: the right numbers, said safely; bad values answered in one line."""

import re
from typing import Any

import pytest

from sidelight.cli import account_command as account
from sidelight.cli import terminal
from sidelight.numbers import plain_down, plain_up

PLAN = ("--sampling-probability", "0.01", "--steps", "1000", "--delta", "1e-5")


def test_epsilon_by_pld_and_rdp(run: Any) -> None:
    # dp-accounting: 1.82824 by PLD on a grid of 2e-5. Opacus: 2.1014 by RDP, at other orders than ours.
    result = run("account", *PLAN, "--noise-multiplier", "1.0", "--json").json
    by_name = {a["name"]: a["epsilon"] for a in result["accountants"]}
    assert by_name["pld"] == pytest.approx(1.8282, abs=2e-3)
    assert 2.09 < by_name["rdp"] < 2.13
    assert result["epsilon"] == min(by_name.values())
    assert all(a["assumes"] for a in result["accountants"]) and result["assumptions"]


def test_calibrated_noise_keeps_the_budget(run: Any) -> None:
    result = run("account", *PLAN, "--epsilon", "2", "--json").json
    assert result["target_epsilon"] == 2.0
    again = run("account", *PLAN, "--noise-multiplier", result["noise_multiplier"], "--json").json
    assert 1.98 < again["epsilon"] <= 2.0


def test_printed_noise_is_enough(run: Any) -> None:
    """Copying the rounded number from the screen must not cost more than was asked for."""
    text = run("account", *PLAN, "--epsilon", "2").out
    found = re.search(r"noise multiplier ([0-9.]+) for", text)
    assert found
    again = run("account", *PLAN, "--noise-multiplier", found.group(1), "--json").json
    assert again["epsilon"] <= 2.0


def test_replace_one_is_fixed_size_and_costs_more(run: Any) -> None:
    add = run("account", *PLAN, "--noise-multiplier", "1", "--json").json
    replace = run("account", *PLAN, "--noise-multiplier", "1", "--relation", "replace-one", "--json").json
    assert replace["plan"]["sampling"] == "fixed-size"
    assert "2C" in " ".join(replace["assumptions"]) and "2C" not in " ".join(add["assumptions"])
    assert replace["epsilon"] >= add["epsilon"] - 1e-6


def test_full_batch_is_the_exact_gaussian(run: Any) -> None:
    result = run("account", "-q", "1", "-t", "1", "-d", "1e-5", "-s", "4", "--json").json
    # the root of δ_G(ε; 1/4) = 1e-5 in 40 digits
    assert result["epsilon"] == pytest.approx(0.92634150, abs=1e-7)
    assert "Every record takes part" in result["assumptions"][0]


@pytest.mark.parametrize("q", [0.01, 1 / 3, 0.123456789, 1e-4, 1.0])
def test_fixed_size_event_has_the_sampling_probability_asked_for(q: float) -> None:
    plan = account.TrainingPlan(q, 1, 1e-5, "replace-one")
    event: Any = plan.event(1.0)
    rate = getattr(event, "sample_size", 1) / getattr(event, "source_dataset_size", 1)
    assert rate == pytest.approx(q, rel=1e-15)


def test_screen_says_everything_that_json_says(run: Any) -> None:
    outcome = run("account", *PLAN, "--noise-multiplier", "1")
    assert outcome.code == 0 and outcome.err == ""
    for words in ("PLD", "RDP", "add-or-remove-one", "δ = 1e-05", "poisson", "q = 0.01", "1000 steps"):
        assert words in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--sampling-probability", "0", "from 1e-9 to 1"),
        ("--sampling-probability", "1.01", "from 1e-9 to 1"),
        ("--sampling-probability", "-0.1", "from 1e-9 to 1"),
        ("--sampling-probability", "one percent", "from 1e-9 to 1"),
        ("--sampling-probability", "nan", "from 1e-9 to 1"),
        ("--steps", "0", "whole number"),
        ("--steps", "1.5", "whole number"),
        ("--steps", "1000001", "whole number"),
        ("--steps", "inf", "whole number"),
        ("--delta", "0", "strictly between 0 and 1"),
        ("--delta", "1", "strictly between 0 and 1"),
        ("--delta", "1e-5%", "strictly between 0 and 1"),
        ("--noise-multiplier", "0", "from 0.02 to 1e6"),
        ("--noise-multiplier", "-1", "from 0.02 to 1e6"),
        ("--noise-multiplier", "inf", "from 0.02 to 1e6"),
        ("--relation", "user", "add-or-remove-one or replace-one"),
    ],
)
def test_bad_value_says_what_was_expected(run: Any, option: str, value: str, expected: str) -> None:
    given = dict(zip(PLAN[::2], PLAN[1::2], strict=True)) | {"--noise-multiplier": "1"} | {option: value}
    outcome = run("account", *(word for pair in given.items() for word in pair))
    outcome.is_one_line_error(2, f"{option}: expected", expected, repr(value))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (PLAN, "got neither"),
        ((*PLAN, "--epsilon", "1", "--noise-multiplier", "1"), "got both"),
        ((*PLAN[:4], "--epsilon", "1"), "--delta is missing"),
        ((*PLAN, "--epsilon"), "requires an argument"),
        ((*PLAN, "--epsilom", "1"), "--epsilon"),
        ((*PLAN, "--epsilon", "1", "stray"), "stray"),
        ((*PLAN, "--epsilon", "0"), "above 0 and at most 600"),
    ],
)
def test_bad_usage_is_one_line(run: Any, args: tuple[str, ...], words: str) -> None:
    run("account", *args).is_one_line_error(2, words)


@pytest.mark.parametrize("relation", terminal.RELATIONS)
@pytest.mark.parametrize(
    "plan", ["1e-9 1e6 1e-5 -s 0.02", "0.999 1e6 1e-5 -s 1e6", "1 1 1e-300 -s 0.02", "1 1e6 0.9 -e 600"]
)
def test_the_ends_of_the_ranges_are_answered(run: Any, plan: str, relation: str) -> None:
    q, steps, delta, *noise = plan.split()
    outcome = run("account", "-q", q, "-t", steps, "-d", delta, *noise, "--relation", relation, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["noise_multiplier"] > 0


def test_steps_may_be_written_in_powers_of_ten() -> None:
    assert terminal.count("1e6") == 1_000_000
    assert isinstance(terminal.count("1e6"), int)


def test_relations_of_the_options_are_those_of_the_package() -> None:
    from sidelight.privacy import events

    assert terminal.RELATIONS == events.RELATIONS


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [(1.0, "1", "1"), (0.1, "0.1", "0.1"), (1.828151, "1.8282", "1.8281"),
     (1.828111, "1.8282", "1.8281"), (9.999991, "10", "9.9999"),
     (1.23456e-7, "1.2346e-07", "1.2345e-07"), (float("inf"), "inf", "inf"), (0.0, "0", "0"),
     (123456.7, "1.2346e+05", "1.2345e+05")],
)  # fmt: skip
def test_numbers_are_rounded_to_the_safe_side(value: float, above: str, below: str) -> None:
    assert (plain_up(value), plain_down(value)) == (above, below)
    assert float(plain_up(value)) >= value >= float(plain_down(value))
