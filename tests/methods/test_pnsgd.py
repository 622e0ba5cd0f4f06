"""PNSGD: vectors L1 to L4, and the exact divergence of the last iterate where it is Gaussian."""

import math

import numpy as np
import pytest
from tests.methods.convex_tools import AR, Account, rows_of, task_of
from tests.privacy.vectors import vector

from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError, RelationError
from sidelight.losses import Logistic
from sidelight.methods.pnsgd import _steps, gdp_mu, iterate, noise_std, pnsgd, record_rdp
from sidelight.methods.smooth import ClippedSquare, smooth
from sidelight.methods.task import Task
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import conversions
from sidelight.privacy.noise import Noise


@pytest.mark.parametrize("name", ["L1", "L2", "L3"])
def test_noise_per_step(name):
    i, o, rtol = vector(name)
    shape = {"epsilon": i["epsilon"], "delta": i["delta"], "lipschitz": i["lipschitz"]}
    exact = noise_std(**shape, steps_after=i["n_public_last"])
    assert exact == pytest.approx(o["sigma_gdp"], rel=rtol)
    paper = noise_std(**shape, steps_after=i["n_public_last"], accounting="paper")
    assert paper == pytest.approx(o["sigma_rdp_simple"], rel=rtol)
    assert conversions.gdp_mu(i["epsilon"], i["delta"]) == pytest.approx(o["mu_gdp"], rel=rtol)
    mu = gdp_mu(lipschitz=i["lipschitz"], std=exact, steps_after=i["n_public_last"])
    assert mu == pytest.approx(o["mu_gdp"], rel=rtol)


def test_l4_rdp_of_a_record():
    i, o, rtol = vector("L4")
    shape = {"order": i["order"], "lipschitz": i["lipschitz"], "std": i["sigma"], "steps": i["n_total"]}
    assert [record_rdp(position=t, **shape) for t in i["t"]] == pytest.approx(o["rdp"], rel=rtol)


# ---------------------------------------------------------------------------------------------------
# neighbors: with all slopes at their bound the pass is affine in its noise, so its law is Gaussian


class Scripted:
    """Noise that is 1 at one step and 0 elsewhere, to read off the pass's coefficients."""

    def __init__(self, at: int | None) -> None:
        self.at, self.step = at, -1

    def normal(self, size, *, std=1.0):
        self.step += 1
        return np.full(size, float(self.step == self.at))


def true_mu(*, private, batch, public, record, lam, std, silent_public=False):
    """Shift of the mean over standard deviation, for one record replaced by its opposite."""
    loss = ClippedSquare(1.0, scale=0.05)
    X, y = np.ones((private, 1)), np.full(private, 1e6)
    other = y.copy()
    other[record] = -1e6
    held = RowSums(np.ones((public, 1)), np.full(public, 1e6), loss)
    steps = math.ceil(private / batch) + public

    def run(y, impulse=None):
        own = RowSums(X, y, loss)
        blocks = [np.arange(s, min(s + batch, private)) for s in range(0, private, batch)]
        plan = [(own, b, float(batch)) for b in blocks] + [(held, np.array([j]), 1.0) for j in range(public)]
        shape = {"start": np.zeros(1), "step_size": 0.5, "std": 1.0, "regularization": lam, "radius": np.inf}
        return float(iterate(iter(plan), Scripted(impulse), **shape)[0])

    noisy = range(steps - public if silent_public else steps)
    spread = std * math.sqrt(sum((run(y, t) - run(y)) ** 2 for t in noisy))
    return abs(run(y) - run(other)) / spread


CASES = [
    {"private": 6, "batch": 6, "public": 4, "record": 2, "lam": 0.0},  # one private step: attained
    {"private": 6, "batch": 2, "public": 4, "record": 5, "lam": 0.0},
    {"private": 6, "batch": 1, "public": 0, "record": 5, "lam": 0.1},
    {"private": 7, "batch": 3, "public": 9, "record": 0, "lam": 0.2},
]


def check_mu(**fault):
    ratios = []
    for case in CASES:
        declared = gdp_mu(lipschitz=1.0 / case["batch"], std=2.0, steps_after=case["public"])
        ratios.append(true_mu(std=2.0, **case, **fault) / declared)
        assert ratios[-1] <= 1 + 1e-9
    return ratios


def test_the_last_iterate_is_as_private_as_declared():
    ratios = check_mu()
    assert ratios[0] == pytest.approx(1.0)  # and the bound is attained


def test_contract_catches_public_steps_without_noise():
    with pytest.raises(AssertionError):
        check_mu(silent_public=True)


def test_one_record_moves_the_pass_at_most_by_its_own_step():
    """Convex steps do not expand: with the same noise, two worlds stay within 2ηL/b."""
    rng = np.random.default_rng(0)
    X, y = rows_of(12, 3)
    other_X = X.copy()
    other_X[4] *= -1 / np.linalg.norm(X[4])
    public = RowSums(*rows_of(5, 3, 9), Logistic())

    def run(X, seed):
        own = RowSums(X, y, Logistic())
        plan = [(own, np.arange(s, s + 4), 4.0) for s in (0, 4, 8)]
        plan += [(public, np.array([j]), 1.0) for j in range(5)]
        shape = {"start": np.zeros(3), "step_size": 8.0, "std": 1.0, "regularization": 0.0, "radius": 10.0}
        return iterate(iter(plan), Noise(seed), **shape)

    for seed in rng.integers(0, 1000, 20):
        assert np.linalg.norm(run(X, int(seed)) - run(other_X, int(seed))) <= 2 * 8.0 / 4


# ---------------------------------------------------------------------------------------------------
# the method


def test_every_private_record_is_used_once_and_public_ones_last():
    task = task_of(n=23, n_public=3)
    problem = smooth(task, method="m", regularization=0.0)
    steps = list(_steps(task, problem, 5, Noise(0)))
    assert [len(s[1]) for s in steps] == [5, 5, 5, 5, 3, 1, 1, 1]
    assert sorted(np.concatenate([s[1] for s in steps[:5]])) == list(range(23))
    assert [s[2] for s in steps] == [5.0] * 5 + [1.0] * 3  # also for the smaller batch
    assert steps[0][0] is not steps[-1][0]


def test_noise_falls_with_public_records_and_batches():
    def std(n_public, batch):
        return pnsgd(batch_size=batch).plan(task_of(n=100, n_public=n_public)).state["std"]

    assert std(0, 1) == pytest.approx(2 * std(3, 1))
    assert std(3, 1) == pytest.approx(10 * std(3, 10))
    method = pnsgd()
    assert not method.needs_public
    empty = task_of(n=100)
    empty = Task(empty.rows, PublicRows.empty(4), empty.loss, 1.0, 1e-6, "replace-one")
    assert method.run(empty, method.plan(empty), account=Account(), noise=Noise(0)).coef.shape == (1, 4)


def test_paper_accounting_draws_more_noise_for_the_same_budget():
    exact, paper = (pnsgd(accounting=a, batch_size=5).plan(task_of(n=100)) for a in ("exact", "paper"))
    assert paper.state["std"] > 1.2 * exact.state["std"]


def test_the_result_stays_in_its_ball():
    task = task_of(n=100, epsilon=0.05)
    method = pnsgd(radius=0.3, step_size=8.0)
    coef = method.run(task, method.plan(task), account=Account(), noise=Noise(0)).coef
    assert np.linalg.norm(coef) <= 0.3 * (1 + 1e-12)


def test_hinge_is_refused():
    with pytest.raises(AssumptionError, match="huber"):
        pnsgd().plan(task_of("hinge"))


@pytest.mark.parametrize("finish", ["mean", "ema", "vote", "checkpoints"])
def test_ensembles_are_refused(finish):
    with pytest.raises(AssumptionError, match="iterate"):
        pnsgd(finish=finish).plan(task_of())


def test_a_step_that_is_no_contraction_is_refused():
    pnsgd(step_size=8.0).plan(task_of())
    with pytest.raises(AssumptionError, match="2/beta"):
        pnsgd(step_size=8.1).plan(task_of())


def test_other_relations_and_batches_are_refused():
    with pytest.raises(RelationError):
        pnsgd().plan(task_of(relation=AR))
    with pytest.raises(InputError, match="batch_size"):
        pnsgd(batch_size=1000).plan(task_of())


def test_nothing_is_drawn_when_the_account_refuses():
    task, noise = task_of(n=30), Noise(1)
    before = noise.get_state()
    method = pnsgd()
    with pytest.raises(Exception, match="refused"):
        method.run(task, method.plan(task), account=Account(refuse=True), noise=noise)
    assert noise.get_state() == before
