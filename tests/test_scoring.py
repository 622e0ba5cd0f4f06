"""Scores: right numbers, and intervals that cover what they say they cover."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from sidelight.scoring import (
    calibration_error,
    classification_scores,
    log_interval,
    regression_scores,
    wilson,
)

RNG = np.random.default_rng(0)


def world(n: int, seed: int = 0, *, sharpness: float = 2.0) -> tuple[Any, Any]:
    """True probabilities of "yes", and labels drawn by them."""
    rng = np.random.default_rng(seed)
    chance = 1 / (1 + np.exp(-sharpness * rng.normal(size=n)))
    return chance, np.where(rng.random(n) < chance, "yes", "no")


def scored(chance: Any, truth: Any) -> dict[str, Any]:
    guess = np.where(chance > 0.5, "yes", "no")
    return classification_scores(truth, guess, np.stack([1 - chance, chance], axis=1), ["no", "yes"])


def test_two_classes_have_the_numbers_of_scikit_learn() -> None:
    chance, truth = world(500)
    found = scored(chance, truth)
    guess = np.where(chance > 0.5, "yes", "no")
    values = {name: measure["value"] for name, measure in found["measures"].items()}
    assert values["accuracy"] == pytest.approx(metrics.accuracy_score(truth, guess))
    assert values["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(truth, guess))
    assert values["auc"] == pytest.approx(metrics.roc_auc_score(truth == "yes", chance))
    assert values["log_loss"] == pytest.approx(metrics.log_loss(truth == "yes", chance))
    assert found["confusion"]["counts"] == metrics.confusion_matrix(truth, guess).tolist()
    commonest, count = max(zip(*np.unique(truth, return_counts=True), strict=True), key=lambda one: one[1])
    assert found["majority"]["label"] == commonest
    assert found["majority"]["value"] == pytest.approx(count / 500)


def test_many_classes_have_the_numbers_of_scikit_learn() -> None:
    chances = RNG.dirichlet(np.ones(4), size=300)
    truth = np.array([RNG.choice(4, p=row) for row in chances])
    found = classification_scores(truth, chances.argmax(axis=1), chances, range(4))["measures"]
    auc = metrics.roc_auc_score(truth, chances, multi_class="ovr", average="macro")
    assert found["auc"]["value"] == pytest.approx(auc)
    assert found["log_loss"]["value"] == pytest.approx(metrics.log_loss(truth, chances))


def test_numbers_are_scored_in_the_units_of_the_target() -> None:
    truth = RNG.normal(1000, 50, 400)
    guess = truth + RNG.normal(0, 20, 400)
    found = regression_scores(truth, guess)["measures"]
    assert found["root_mean_squared_error"]["value"] == pytest.approx(
        math.sqrt(metrics.mean_squared_error(truth, guess))
    )
    assert found["mean_absolute_error"]["value"] == pytest.approx(metrics.mean_absolute_error(truth, guess))
    assert found["r_squared"]["value"] == pytest.approx(metrics.r2_score(truth, guess))


@pytest.mark.parametrize("rows", [30, 120])
@pytest.mark.parametrize("sharpness", [1.0, 12.0])
def test_intervals_cover(rows: int, sharpness: float) -> None:
    """Nine of ten times at least, where 95 % is claimed; also where nearly every row is right."""
    chance, truth = world(200_000, 5, sharpness=sharpness)
    whole = scored(chance, truth)["measures"]
    covered: dict[str, list[bool]] = {}
    for k in range(150):
        some = np.random.default_rng(k).integers(len(chance), size=rows)
        for name, found in scored(chance[some], truth[some])["measures"].items():
            if "low" in found:
                inside = found["low"] <= whole[name]["value"] <= found["high"]
                covered.setdefault(name, []).append(inside)
    shares = {name: float(np.mean(found)) for name, found in covered.items()}
    assert set(shares) == {"accuracy", "balanced_accuracy", "auc", "log_loss"}
    assert min(shares.values()) >= 0.9, shares


def test_errors_of_numbers_cover() -> None:
    covered = []
    for k in range(200):
        rng = np.random.default_rng(k)
        truth = rng.normal(size=40)
        found = regression_scores(truth, truth + 0.5 * rng.normal(size=40))["measures"]
        ends = found["root_mean_squared_error"], found["r_squared"]
        covered.append([e["low"] <= t <= e["high"] for e, t in zip(ends, (0.5, 0.75), strict=True)])
    assert np.mean(covered, axis=0).min() >= 0.88


def test_all_rows_right_is_no_certainty() -> None:
    chance = np.where(np.arange(40) % 2, 0.99, 0.01)
    found = scored(chance, np.where(np.arange(40) % 2, "yes", "no"))["measures"]
    assert found["accuracy"]["value"] == found["auc"]["value"] == 1.0
    assert found["accuracy"]["low"] < 0.93 and found["auc"]["low"] < 0.95
    assert found["balanced_accuracy"]["low"] < 0.95
    assert found["log_loss"]["high"] > 2 * found["log_loss"]["value"]


def test_a_planted_miscalibration_is_seen_and_true_probabilities_are_not_blamed() -> None:
    chance, truth = world(3000)
    honest = scored(chance, truth)["measures"]["calibration_error"]
    assert honest["value"] <= honest["by_chance"]
    squeezed = 0.5 + (chance - 0.5) / 3
    wrong = scored(squeezed, truth)["measures"]["calibration_error"]
    assert wrong["value"] > 3 * wrong["by_chance"]
    assert calibration_error(np.full(100, 0.3), np.arange(100) < 30) == pytest.approx(0.0)


def test_reliability_has_every_row_once() -> None:
    chance, truth = world(400)
    rows = scored(chance, truth)["reliability"]
    assert sum(row["rows"] for row in rows) == 400 and len(rows) == 10
    assert all(row["low"] <= row["observed"] <= row["high"] for row in rows)
    assert [row["predicted"] for row in rows] == sorted(row["predicted"] for row in rows)


def test_every_interval_contains_its_estimate() -> None:
    """At a share of 0 or 1 the ends of Wilson's interval were off by rounding."""
    for rows in (*range(1, 200), 0.3, 7.7, 1e6):
        for share in (0.0, 1.0, 1 / 3, 1e-17, 1 - 1e-16):
            low, high = wilson(share, rows)
            assert 0 <= low <= share <= high <= 1
    rng = np.random.default_rng(0)
    for rows in (2, 3, 40):
        for chance in (np.full(rows, 1e-9), np.full(rows, 0.9), np.full(rows, 0.5), rng.random(rows)):
            truth = np.where(np.arange(rows) % 2, "yes", "no")
            for labels in (truth, np.full(rows, "no"), np.full(rows, "yes")):
                for measure in scored(chance, labels)["measures"].values():
                    assert measure.get("low", 0) <= measure["value"] <= measure.get("high", math.inf)
        for guess in (np.arange(rows), np.arange(rows) + 1e-9, np.zeros(rows), rng.normal(size=rows)):
            for measure in regression_scores(np.arange(rows), guess)["measures"].values():
                assert measure["low"] <= measure["value"] <= measure["high"]


def test_one_class_or_one_row_is_no_error() -> None:
    alone = classification_scores(np.array(["no"]), np.array(["no"]), np.array([[0.9, 0.1]]), ["no", "yes"])
    assert set(alone["measures"]) == {"accuracy", "log_loss", "calibration_error"}
    assert (
        regression_scores(np.array([1.0]), np.array([2.0]))["measures"]["mean_absolute_error"]["value"] == 1
    )
    constant = regression_scores(np.ones(5), np.ones(5))["measures"]
    assert "r_squared" not in constant
    assert wilson(0.5, 0) == (0.0, 1.0) and log_interval(np.zeros(3)) == (0.0, math.inf)
