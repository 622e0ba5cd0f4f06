"""RSGD-AR and NSGD: vectors E1 to E6, and how far one record can move the result."""

import numpy as np
import pytest
import scipy.sparse as sp
from tests.methods.convex_tools import AR, RO, Account, computed, rows_of, saturated, task_of
from tests.privacy.vectors import vector

from sidelight.errors import AssumptionError, InputError, PrivacyWarning, RelationError
from sidelight.losses import Huber, Logistic, Softmax
from sidelight.methods.rsgd_ar import (
    descend,
    mixture_std,
    nsgd,
    renyi_epsilon,
    rsgd_ar,
    schedule,
    sensitivities,
)
from sidelight.methods.smooth import ClippedSquare
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.noise import Noise


def recursion(i, **changed):
    given = {
        "batch_sizes": i["batch_sizes"], "epochs": i["T"], "step_size": i["eta0"], "average_every": i["tau"],
        "data_bound": i["R"], "smoothness": i["L"], "strong_convexity": i["mu"],
    }  # fmt: skip
    return sensitivities(**(given | changed))


@pytest.mark.parametrize("name", ["E1", "E2", "E3", "E4", "E5"])
def test_sensitivities_and_epsilon(name):
    i, o, rtol = vector(name)
    deltas = recursion(i)
    assert deltas == pytest.approx(o["Delta"], rel=rtol)
    assert deltas.max() == pytest.approx(o["Delta_max"], rel=rtol)
    shares = np.array(i["batch_sizes"]) / sum(i["batch_sizes"])
    assert shares == pytest.approx(o["weights"], rel=rtol)
    event = events.MixtureOfSensitivities(i["sigma"] / deltas, shares)
    exact = accountants.epsilon(event, delta=i["delta"], relation=RO)
    assert exact == pytest.approx(o["eps_exact"], rel=rtol)
    paper = renyi_epsilon(deltas, shares, std=i["sigma"], delta=i["delta"])
    assert paper == pytest.approx(o["eps_rdp_improved"], rel=rtol)
    classic = renyi_epsilon(deltas, shares, std=i["sigma"], delta=i["delta"], conversion="classic")
    assert classic == pytest.approx(o["eps_rdp_classic"], rel=rtol)
    worst = conversions.gaussian_epsilon(i["delta"], deltas.max() / i["sigma"])
    assert worst == pytest.approx(o["eps_nsgd"], rel=rtol)


def test_e6_mixture_curve():
    i, o, rtol = vector("E6")
    like, _, _ = vector(i["like"])
    deltas = recursion(like)
    event = events.MixtureOfSensitivities(i["sigma"] / deltas, np.full(4, 0.25))
    for epsilon, delta in zip(i["epsilon"], o["delta"], strict=True):
        assert accountants.delta(event, epsilon=float(epsilon), relation=RO) == pytest.approx(delta, rel=rtol)
    assert accountants.rdp(event, orders=[8], relation=RO)[0] == pytest.approx(o["rdp_order8"], rel=rtol)


def test_mixture_std_is_the_least_that_meets_the_budget():
    i, o, _ = vector("E5")
    deltas, shares = recursion(i), np.array(o["weights"])
    std = mixture_std(deltas, shares, epsilon=o["eps_exact"], delta=i["delta"])
    assert std == pytest.approx(i["sigma"], rel=1e-6)


# ---------------------------------------------------------------------------------------------------
# neighbors

PLANS = [
    {"epochs": 4, "step_size": 0.5, "average_every": 2},
    {"epochs": 3, "step_size": 1.5, "average_every": None},
    {"epochs": 5, "step_size": 0.9, "average_every": 2},
]


def worst_ratio(loss, X, y, sizes, plan, lam, *, normalize=False, seed=0):
    """The largest move of the result, over Δ_j, for a replaced record in each batch."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    batches = np.split(rng.permutation(len(y)), ends[:-1])

    def run(X, y):
        records = RowSums(X, y, loss)

        def gradient(w, j):
            g = records.gradient(w, batches[j]) / sizes[j]
            return g / max(np.linalg.norm(g), 1e-12) if normalize else g

        start = np.zeros(records.dimension)
        return descend(gradient, schedule(batches=len(sizes), **plan), start=start, regularization=lam)

    deltas = sensitivities(
        batch_sizes=sizes, data_bound=loss.lipschitz, smoothness=loss.smoothness + lam, strong_convexity=lam,
        **plan,
    )  # fmt: skip
    ratios = []
    for j, batch in enumerate(batches):
        other_X, other_y = X.copy(), y.copy()
        i = batch[rng.integers(len(batch))]
        other_X[i], other_y[i] = opposite(loss, X[i], y[i], rng)
        ratios.append(np.linalg.norm(run(X, y) - run(other_X, other_y)) / deltas[j])
    return max(ratios)


def opposite(loss, x, y, rng):
    """A record that pulls the other way, at full length."""
    x = x / np.linalg.norm(x)
    if loss.task == "multiclass":
        return -x, float(rng.integers(loss.classes))
    return (x, -y) if rng.random() < 0.5 else (-x, y)


def check_moves(**kwargs):
    for plan in PLANS:
        for seed in range(4):
            for loss in (Logistic(), Huber(0.5), ClippedSquare(1.0), Softmax(3)):
                X, y = rows_of(11, 3, seed, kind=loss.task)
                assert worst_ratio(loss, X, y, [4, 4, 3], plan, 0.01, seed=seed, **kwargs) <= 1 + 1e-9


def test_one_record_moves_the_result_at_most_by_its_sensitivity():
    check_moves()


def test_contract_catches_normalized_gradients():
    with pytest.raises(AssertionError):
        check_moves(normalize=True)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_saturated_records_attain_the_sensitivity(plan, lam):
    """All slopes at their bound: the problem is quadratic, and the bound is met with equality."""
    X = np.zeros((6, 2))
    X[:, 0] = 1.0
    y = np.full(6, 1e6)
    sizes = [2, 2, 2]
    batches = np.split(np.arange(6), [2, 4])
    loss = ClippedSquare(1.0, scale=0.05)
    deltas = sensitivities(
        batch_sizes=sizes, data_bound=1.0, smoothness=0.1 + lam, strong_convexity=lam, **plan
    )

    def run(y):
        records = RowSums(X, y, loss)
        return descend(
            lambda w, j: records.gradient(w, batches[j]) / 2,
            schedule(batches=3, **plan), start=np.zeros(2), regularization=lam,
        )  # fmt: skip

    for j in range(3):
        other = y.copy()
        other[2 * j] = -1e6
        assert np.linalg.norm(run(y) - run(other)) == pytest.approx(deltas[j], rel=1e-9)


def true_delta(deltas, sizes, std, epsilon):
    """δ(ε) when the batch of a record is drawn as a uniform permutation draws it."""
    shares = np.bincount(np.repeat(np.arange(len(sizes)), sizes)) / sum(sizes)
    return float(shares @ conversions.gaussian_delta(epsilon, deltas / std))


def check_budget(shares_of):
    sizes = [9, 2]
    deltas = sensitivities(
        batch_sizes=sizes, epochs=2, step_size=2.0, average_every=None,
        data_bound=1.0, smoothness=0.9, strong_convexity=0.0,
    )[::-1]  # fmt: skip  # the large batch is the sensitive one
    std = mixture_std(deltas, shares_of(sizes), epsilon=1.0, delta=1e-5)
    assert true_delta(deltas, sizes, std, 1.0) <= 1e-5 * (1 + 1e-9)


def test_unequal_batches_are_weighted_by_their_size():
    check_budget(lambda sizes: np.array(sizes) / sum(sizes))
    task = task_of(n=11)
    plan = rsgd_ar(batch_size=2).plan(task)
    counts = np.zeros(len(plan.event.probabilities))
    ends = np.cumsum(plan.state["sizes"])
    for place in range(11):
        counts[np.searchsorted(ends, place, side="right")] += 1
    assert plan.event.probabilities == pytest.approx(counts / 11)


def test_contract_catches_equal_weights_for_unequal_batches():
    with pytest.raises(AssertionError):
        check_budget(lambda sizes: np.full(len(sizes), 1 / len(sizes)))


# ---------------------------------------------------------------------------------------------------
# the methods


METHODS = [rsgd_ar(epochs=4, average_every=2, batch_size=3), nsgd(epochs=4, batch_size=3)]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_declared_sensitivity_covers_the_computed_result(method, monkeypatch):
    """The value that goes to release, on two neighbors, with the same permutation; and it is attained."""
    largest = 0.0
    for seed in range(3):
        value, limit = computed(method, saturated(8), monkeypatch, seed)
        for record in range(8):
            other, _ = computed(method, saturated(8, record), monkeypatch, seed)
            moved = np.linalg.norm(value - other)
            assert 0 < moved <= limit * (1 + 1e-9)
            largest = max(largest, moved)
    assert largest == pytest.approx(limit, rel=1e-9)


def test_only_rsgd_ar_shuffles(monkeypatch):
    X, y = rows_of(20, 3)
    task = task_of(X=X, y=y, p=3)
    shuffled, fixed = ({tuple(computed(m, task, monkeypatch, s)[0]) for s in range(5)} for m in METHODS)
    assert (len(shuffled), len(fixed)) == (5, 1)


def test_the_worst_batch_need_not_be_the_last():
    with pytest.warns(PrivacyWarning):  # steps that expand make the first batch the worst
        plan = nsgd(step_size=12.0, epochs=1, batch_size=3).plan(task_of(n=9))
    kappa = 12 * 0.251 - 1
    assert plan.state["sensitivity"] == pytest.approx(kappa**2 * 2 * 12.0 / 3)


def test_paper_accounting_never_needs_less_noise():
    for epsilon in (0.3, 1.0, 4.0):
        task = task_of(n=1000, epsilon=epsilon)
        exact, paper = (rsgd_ar(accounting=a).plan(task).state["std"] for a in ("exact", "paper"))
        assert exact < paper < 1.5 * exact
        assert nsgd().plan(task).state["std"] > 0


@pytest.mark.usefixtures("same_noise")
def test_sparse_rows_give_the_same_model():
    X, y = rows_of(60, 4)
    coefs = []
    for rows in (X, sp.csr_array(X)):
        task = task_of(X=rows, y=y)
        method = rsgd_ar()
        coefs.append(method.run(task, method.plan(task), account=Account(), noise=Noise(1)).coef)
    assert coefs[0] == pytest.approx(coefs[1])


def test_averages_are_where_the_paper_puts_them():
    fitted = rsgd_ar(epochs=5, average_every=2)
    task = task_of()
    history = fitted.run(task, fitted.plan(task), account=Account(), noise=Noise(1)).history
    assert [h["averaged"] for h in history[:5]] == [False, True, False, True, False]
    assert [h["step_size"] for h in history[:5]] == [0.5, 0.25, 0.5, 0.25, 0.5]


def test_what_the_proof_does_not_cover_is_refused():
    with pytest.raises(AssumptionError, match="huber"):
        rsgd_ar().plan(task_of("hinge"))
    with pytest.raises(RelationError):
        nsgd().plan(task_of(relation=AR))
    with pytest.raises(InputError, match="epochs"):
        rsgd_ar(epochs=0).plan(task_of())
    with pytest.raises(AssumptionError, match="overflows"), pytest.warns(PrivacyWarning):
        rsgd_ar(step_size=1e9, epochs=200).plan(task_of())


def test_a_step_size_beyond_contraction_is_warned_of():
    with pytest.warns(PrivacyWarning, match="2/L"):
        rsgd_ar(step_size=10.0).plan(task_of())
