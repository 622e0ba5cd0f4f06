"""The paid comparison: bounded by one record, inside the budget, and right where it matters."""

import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from tests.contracts.neighbors import assert_bounded, largest_move
from tests.contracts.replay import Nothing
from tests.methods.convex_tools import task_of
from tests.private_values import value_of

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.data.persons import PersonRows, Persons
from sidelight.data.rows import PrivateRows
from sidelight.errors import PrivacyWarning
from sidelight.losses import get_loss
from sidelight.methods import paid_comparison, public_alone
from sidelight.methods.baselines import Majority
from sidelight.methods.paid_comparison import PaidComparison
from sidelight.oracles.linear import loss_sums
from sidelight.privacy import conversions, events
from sidelight.privacy.noise import Noise

RELATIONS = ("add-or-remove-one", "replace-one")
W = np.array([[3.0, -2.0, 1.0]])
V = np.array([[-1.0, 4.0, 0.5]])
HOSTILE = [
    ((1e300, -1e300, 1.0), 1.0), ((np.nan, 0.0, 1.0), -1.0), ((np.inf, 1.0, 1.0), 1.0),
    ((9.0, -9.0, 1.0), -1.0), ((-9.0, 9.0, 1.0), 1.0), ((0.0, 0.0, 0.0), 1.0), ((1.0, 1.0, 1.0), np.nan),
    ((1.0, 0.0, 1.0), 7.0),
]  # fmt: skip


def records(seed: int = 0, n: int = 12):
    rng = np.random.default_rng(seed)
    return [(tuple(rng.normal(size=3)), float(rng.choice([-1.0, 1.0]))) for _ in range(n)]


def rows_of(chosen, loss) -> PrivateRows:
    X, y = (np.array(part, dtype=float) for part in zip(*chosen, strict=True))
    return PrivateRows(X, y, max_norm=1.0, admits=loss.admits)


def question(kind: str, loss, relation: str, bound: float):
    if kind == "losses":
        return lambda chosen: loss_sums.clipped_losses(
            rows_of(chosen, loss), 5 * W, loss=loss, bound=bound, relation=relation
        )
    counted = 0.5 if kind == "right predictions" else 0.0
    return lambda chosen: loss_sums.loss_differences(
        rows_of(chosen, loss), 5 * W, 5 * V, loss=loss, bound=bound, relation=relation, counted=counted
    )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", ["losses", "differences", "right predictions"])
@pytest.mark.parametrize("name", ["logistic", "square"])
def test_one_record_moves_a_sum_of_losses_at_most_by_its_sensitivity(kind, name, relation) -> None:
    loss = get_loss(name)
    moved = assert_bounded(question(kind, loss, relation, 0.7), records(), HOSTILE, relation=relation)
    assert moved > 0.3  # the test can fail


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", ["losses", "right predictions"])
def test_one_person_moves_a_sum_of_losses_at_most_by_its_sensitivity(kind: str, relation: str) -> None:
    """With several rows, of which any may be hostile: a person counts with the mean over the usable ones."""
    loss = get_loss("logistic")

    def summed(people):
        chosen = [row for rows in people for row in rows]
        X, y = (np.array(part, dtype=float) for part in zip(*chosen, strict=True))
        codes = np.repeat(np.arange(len(people)), [len(rows) for rows in people])
        rows = PersonRows(X, y, persons=Persons(codes, len(people)), max_norm=1.0, admits=loss.admits)
        if kind == "losses":
            return loss_sums.clipped_losses(rows, 5 * W, loss=loss, bound=0.7, relation=relation)
        return loss_sums.loss_differences(
            rows, 5 * W, 5 * V, loss=loss, bound=0.7, relation=relation, counted=0.5
        )

    people = [[one, one, one] for one in records(n=5)]
    strangers = [[one] * 4 for one in HOSTILE] + [HOSTILE]
    assert assert_bounded(summed, people, strangers, relation=relation) > 0.3


@pytest.mark.parametrize("classes", [2, 3])
def test_right_predictions_of_both_models_are_counted(classes: int) -> None:
    loss = get_loss("logistic") if classes == 2 else get_loss("softmax", classes=3)
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, loss.outputs, 3))
    labels = (-1.0, 1.0) if classes == 2 else (0.0, 1.0, 2.0)
    chosen = [(tuple(rng.normal(size=3)), labels[k % classes]) for k in range(60)]
    rows = rows_of(chosen, loss)
    total = loss_sums.loss_differences(
        rows, first, second, loss=loss, bound=0.7, relation="replace-one", counted=0.5
    )
    X, y = (np.array(part) for part in zip(*chosen, strict=True))
    for k, weights in enumerate((first, second)):
        z = X @ weights.T
        guess = np.where(z[:, 0] > 0, 1, -1) if classes == 2 else z.argmax(axis=1)
        assert value_of(total)[1 + k] == pytest.approx(0.5 * (guess == y).sum())
    assert total.sensitivity == pytest.approx(np.hypot(1.4, 0.5 * np.sqrt(2)))


def test_softmax_losses_are_bounded_too() -> None:
    loss = get_loss("softmax", classes=3)
    weights = np.random.default_rng(0).normal(size=(3, 3)) * 5
    chosen = [(x, float(k % 3)) for k, (x, _) in enumerate(records())]
    candidates = [*HOSTILE, ((1.0, 2.0, 3.0), 2.0), ((1.0, 2.0, 3.0), 3.0), ((1.0, 2.0, 3.0), 0.5)]

    def summed(some):
        return loss_sums.clipped_losses(
            rows_of(some, loss), weights, loss=loss, bound=1.1, relation="replace-one"
        )

    def compared(some):
        return loss_sums.loss_differences(
            rows_of(some, loss), weights, -weights, loss=loss, bound=1.1, relation="replace-one", counted=0.4
        )

    assert_bounded(summed, chosen, candidates, relation="replace-one")
    assert_bounded(compared, chosen, candidates, relation="replace-one")


def test_contract_catches_a_loss_that_is_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_sums.np, "clip", lambda values, *_: values)
    loss = get_loss("logistic")
    assert largest_move(question("losses", loss, "replace-one", 0.7), records(), HOSTILE) > 0.7


def data(n: int, seed: int, *, flipped: bool = False):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 5))
    y = X[:, 0] + 0.6 * X[:, 1] + rng.normal(0, 0.4, n) > 0
    return X, (~y if flipped else y)


def test_both_releases_are_in_the_plan_and_within_the_budget() -> None:
    X, y = data(5000, 0)
    Xp, yp = data(100, 1)
    model = PrivateClassifier(epsilon=1.0, delta=1e-6, random_state=0).fit(X, y, Xp, yp)
    released = [line["released"] for line in model.history_ if "released" in line]
    assert "mean loss of the public model" in released
    assert "gain over public rows alone" in released
    assert model.privacy_.epsilon <= 1.0
    plain = PrivateClassifier(epsilon=1.0, delta=1e-6, random_state=0, compare_with_public=False)
    plain.fit(X, y, Xp, yp)
    more = sum(events.elementary(model.privacy_.plan).values())
    assert more == sum(events.elementary(plain.privacy_.plan).values()) + 2


@pytest.mark.parametrize("seed", range(3))
def test_private_records_overrule_public_ones_with_wrong_labels(seed: int) -> None:
    X, y = data(8000, seed)
    Xp, yp = data(200, 10 + seed, flipped=True)
    Xt, yt = data(4000, 20 + seed)
    with pytest.warns(PrivacyWarning, match="disagree"):
        model = PrivateClassifier(epsilon=1.0, random_state=seed).fit(X, y, Xp, yp)
    assert model.score(Xt, yt) > 0.8


def test_nothing_is_said_where_public_and_private_records_agree() -> None:
    X, y = data(8000, 0)
    Xp, yp = data(200, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        PrivateClassifier(epsilon=1.0).fit(X, y, Xp, yp)


def test_classes_with_a_square_loss_are_compared_by_their_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def heard(rows, **how):
        seen.append(how)
        return loss_sums.loss_differences(rows, **how)

    monkeypatch.setattr(paid_comparison, "loss_differences", heard)
    model = PrivateClassifier(epsilon=2.0, random_state=0, loss="square").fit(*data(5000, 0), *data(100, 1))
    assert seen[0]["loss"].name == "logistic"
    np.testing.assert_array_equal(seen[0]["second"], model.probability_scale_ * model._weights)


@pytest.mark.parametrize("seed", range(4))
def test_a_few_lucky_public_rows_raise_no_alarm(seed: int) -> None:
    """Classes that are nearly separable: in folds of 80 rows hardly one is wrong."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(6080, 5))
    y = X[:, 0] * X[:, 1] + 0.1 * X[:, 2] > 0.05 * rng.normal(size=6080)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        PrivateClassifier(epsilon=1.0, trees=False).fit(X[80:], y[80:], X[:80], y[:80])


@pytest.mark.parametrize("loss", ["logistic", "square"])
def test_the_public_model_is_returned_where_private_training_made_it_worse(
    monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    X, y = data(8000, 0)
    Xp, yp = data(400, 1)
    run = paid_comparison.PaidComparison.run

    def spoiled(self, task, plan, *, account, noise):
        class Worse:
            def run(self, *args, **kwargs):
                fitted = inner.run(*args, **kwargs)
                fitted.coef = -fitted.coef
                return fitted

        inner = self.method
        object.__setattr__(self, "method", Worse())
        try:
            return run(self, task, plan, account=account, noise=noise)
        finally:
            object.__setattr__(self, "method", inner)

    monkeypatch.setattr(paid_comparison.PaidComparison, "run", spoiled)
    model = PrivateClassifier(epsilon=1.0, random_state=0, loss=loss).fit(X, y, Xp, yp)
    assert [line["kept"] for line in model.history_ if "kept" in line] == [False]
    (scaled,) = [note for note in model.privacy_.details["notes"] if note.startswith("probabilities")]
    assert f"{model.probability_scale_:.3g}" in scaled and "private" not in scaled
    assert model.score(*data(4000, 2)) > 0.75


@pytest.mark.parametrize(("errors", "kept"), [(1.0, True), (-1.5, True), (-2.5, False)])
def test_private_training_is_given_up_only_if_it_is_clearly_worse(
    errors: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise alone is no reason: precision weighting is not expected to be worse than public rows alone."""
    honest = paid_comparison._Judge._means

    def told(judge, total, z):
        means, error = honest(judge, total, z)
        return (means if len(means) == 1 else np.array([errors * error, *means[1:]])), error

    monkeypatch.setattr(paid_comparison._Judge, "_means", told)
    model = PrivateClassifier(epsilon=1.0, random_state=0).fit(*data(5000, 0), *data(100, 1))
    assert [line["kept"] for line in model.history_ if "kept" in line] == [kept]
    which = "the private model" if kept else "the model of the public rows alone"
    assert model.privacy_.returned.startswith(f"{which}:")
    assert ("below" if errors > 0 else "above") in model.privacy_.returned


@pytest.mark.parametrize("loss", ["hinge", "huber"])
def test_margins_are_compared_by_their_probabilities(loss: str) -> None:
    model = PrivateClassifier(epsilon=2.0, random_state=0, loss=loss).fit(*data(5000, 0), *data(100, 1))
    found = model.privacy_.details["compared_with_public"]
    assert found["loss"] == "logistic" and 0.8 < found["accuracy"] <= 1
    assert model.privacy_.returned.startswith("the private model: on private records its mean log loss")


@pytest.mark.parametrize("relation", RELATIONS)
def test_persons_are_compared_too(relation: str) -> None:
    X, y = data(8000, 0)
    persons = np.repeat(np.arange(4000), 2)
    model = PrivateClassifier(epsilon=4.0, random_state=0, relation=relation)
    model.fit(X, y, *data(100, 1), persons=persons)
    found = model.privacy_.details["compared_with_public"]
    assert abs(found["accuracy"] - model.score(*data(6000, 5))) < 0.03 + 4 * found["accuracy_error"]
    assert model.privacy_.unit != "record" and model.privacy_.epsilon <= 4.0


@pytest.mark.parametrize("rows", [0, 9])
def test_without_public_rows_the_statement_says_that_nothing_was_compared(rows: int) -> None:
    X, y = data(5000, 0)
    bounds = {"bounds": (-1, 1), "classes": [False, True]}
    public = data(rows, 1) if rows else (None, None)
    model = PrivateClassifier(epsilon=1.0, random_state=0, **bounds).fit(X, y, *public)
    told = str(model.privacy_).splitlines()[0]
    assert "not compared with public rows alone" in told and "public rows" in told.split(": ", 2)[2]


def test_too_few_records_for_the_budget_are_not_asked() -> None:
    X, y = data(300, 0)
    Xp, yp = data(60, 1)
    model = PrivateRegressor(epsilon=0.5, random_state=0).fit(X, y.astype(float), Xp, yp.astype(float))
    assert not [line for line in model.history_ if line.get("released") == "gain over public rows alone"]


def test_the_method_inside_runs_with_the_budget_that_it_was_planned_with() -> None:
    asked = []

    class Asking(Majority):
        def run(self, task, plan, **how):
            asked.append((task.epsilon, events.elementary(plan.event)))
            return super().run(task, plan, **how)

    task = replace(task_of("logistic", n=4000, n_public=40), epsilon=1.0)
    method = PaidComparison(Asking(labels="private"))
    plan = method.plan(task)
    method.run(task, plan, account=Nothing(), noise=Noise(0))
    ((epsilon, planned),) = asked
    assert epsilon < 1.0
    assert planned == events.elementary(events.ApproximateDp(epsilon, 0.0))


def test_the_page_states_by_how_much_privacy_lets_a_loss_be_flattered() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    moved = [2 * norm.cdf(conversions.gdp_mu(epsilon, 1e-6) / 2) - 1 for epsilon in (0.1, 0.5, 1.0, 3.0)]
    points = [f"{100 * one:.1f}" for one in moved]
    assert f"| {points[0]} points | {' | '.join(points[1:])} |" in page
    losses = [f"{(2 + np.log(2)) * one:.2f}" for one in moved]
    assert f"(b = {2 + np.log(2):.2f}) | {' | '.join(losses)} |" in page


def test_the_page_states_how_many_records_it_takes_to_know_that_nothing_can_be_gained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    error = 1 / math.sqrt(paid_comparison._LARGER_SHARE) / conversions.gdp_mu(1.0, 1e-6)
    numbers = (public_alone.CERTAIN + 1) * error / public_alone._UNSEEN
    entropy = public_alone._ROOM * math.log(2)
    classes = (public_alone.CERTAIN + 1) * error * (2 + math.log(2)) / entropy
    assert f"about {round(numbers, -3):,.0f} for numbers, and {round(classes, -4):,.0f} for two" in page
