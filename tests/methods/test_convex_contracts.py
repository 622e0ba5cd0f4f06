"""What every convex method promises."""

import dataclasses
import json
import warnings

import numpy as np
import pytest
from tests.methods.convex_tools import Account, accuracy, rows_of, task_of

from sidelight.errors import BudgetExceeded, NotPrivateWarning
from sidelight.methods.baselines import majority, non_private, only_public
from sidelight.methods.dp_agd import agd_avg, dp_agd
from sidelight.methods.objective_perturbation import amp, objective_perturbation
from sidelight.methods.output_perturbation import output_perturbation
from sidelight.methods.pnsgd import pnsgd
from sidelight.methods.rsgd_ar import nsgd, rsgd_ar
from sidelight.methods.task import Fitted, Method
from sidelight.privacy import accountants, events
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise

PRIVATE = {
    "rsgd_ar": rsgd_ar(),
    "rsgd_ar-paper": rsgd_ar(accounting="paper"),
    "nsgd": nsgd(),
    "output_perturbation": output_perturbation(),
    "output_perturbation-paper": output_perturbation(accounting="paper"),
    "objective_perturbation": objective_perturbation(),
    "objective_perturbation-kst": objective_perturbation(accounting="kst"),
    "amp": amp(),
    "amp-paper": amp(accounting="paper"),
    "dp_agd": dp_agd(splits=10),
    "dp_agd-gumbel": dp_agd(splits=10, selection="gumbel"),
    "agd_avg": agd_avg(dp_agd(splits=10)),
    "pnsgd": pnsgd(),
    "pnsgd-paper": pnsgd(accounting="paper"),
    "majority": majority(labels="private"),
}
FREE = {"only_public": only_public(), "majority-public": majority()}
EVERY = PRIVATE | FREE | {"non_private": non_private()}
PAIRS = [(name, relation) for name, m in PRIVATE.items() for relation in m.relations]


def run(method: Method, task, account=None, seed: int = 0) -> Fitted:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        return method.run(task, method.plan(task), account=account or Account(), noise=Noise(seed))


@pytest.mark.parametrize("name", EVERY)
def test_is_a_method_and_frozen(name):
    method = EVERY[name]
    assert isinstance(method, Method)
    assert name.split("-")[0] == method.name
    assert method == dataclasses.replace(method)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.name = "other"


@pytest.mark.parametrize(("name", "relation"), PAIRS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
def test_plan_is_within_the_budget(name, relation, epsilon):
    task = task_of(relation=relation, n=500, epsilon=epsilon)
    plan = PRIVATE[name].plan(task)
    spent = accountants.epsilon(plan.event, delta=task.delta, relation=relation)
    assert spent <= epsilon * (1 + (1e-9 if plan.filtered else 0))
    events.from_json(json.loads(json.dumps(events.to_json(plan.event))))


@pytest.mark.parametrize("name", EVERY)
def test_plan_and_history_show_nothing_private(name):
    """Two datasets of one size, other values: the plan, its details and all but the outcome are the same."""
    method = EVERY[name]
    shown = []
    for seed in (0, 1):
        task = task_of(n=40, seed=seed, relation=method.relations[0])
        plan, fitted = method.plan(task), run(method, task)
        outcome = fitted.history if not plan.filtered else []  # a filtered run's steps are released values
        planned = (plan.event, json.dumps(dict(plan.details)), plan.assumptions)
        shown.append((*planned, json.dumps(outcome), fitted.notes))
    assert shown[0] == shown[1]


@pytest.mark.parametrize(("name", "relation"), PAIRS)
def test_ledger_equals_what_was_released(name, relation):
    method, account = PRIVATE[name], Account()
    task = task_of(n=60, relation=relation)
    plan = method.plan(task)
    method.run(task, plan, account=account, noise=Noise(0))
    if plan.filtered:
        assert sum(e.rho for e in account.events) <= plan.event.rho
    else:
        assert events.elementary(events.compose(*account.events)) == events.elementary(plan.event)


@pytest.mark.parametrize("name", PRIVATE)
def test_nothing_comes_out_when_the_account_refuses(name):
    method = PRIVATE[name]
    with pytest.raises(BudgetExceeded):
        run(method, task_of(n=40, relation=method.relations[0]), Account(refuse=True))


@pytest.mark.parametrize("name", ["rsgd_ar", "amp", "dp_agd", "pnsgd"])
def test_a_real_ledger_admits_the_run_once(name):
    method = PRIVATE[name]
    task = task_of(n=60, relation=method.relations[0])
    plan = method.plan(task)
    ledger = Ledger.in_memory()
    ledger.register("d", relation=task.relation, epsilon=1.05, delta=task.delta)
    about = {"relation": task.relation, "method": name, "covered_by_filter": plan.filtered}
    with ledger.begin("d", plan.event, **about) as account:
        method.run(task, plan, account=account, noise=Noise(0))
    with pytest.raises(BudgetExceeded):
        ledger.begin("d", plan.event, **about)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_model(name):
    method = EVERY[name]
    task = task_of(n=40, relation=method.relations[0])
    assert (run(method, task, seed=3).coef == run(method, task, seed=3).coef).all()


@pytest.mark.parametrize("name", EVERY)
def test_a_useless_record_changes_nothing_but_its_own_absence(name):
    """A row with NaN is a null record; the result stays finite and of its shape."""
    method = EVERY[name]
    X, y = rows_of(40, 4)
    X = X.copy()
    X[3] = np.nan
    fitted = run(method, task_of(X=X, y=y, relation=method.relations[0]))
    X[3] = 0.0
    clean = run(method, task_of(X=X, y=y, relation=method.relations[0]))
    assert np.isfinite(fitted.coef).all() and fitted.coef.shape == (1, 4)
    assert (fitted.coef == clean.coef).all()


@pytest.mark.parametrize("name", EVERY)
def test_one_record_is_enough(name):
    method = EVERY[name]
    fitted = run(method, task_of(n=1, relation=method.relations[0]))
    assert np.isfinite(fitted.coef).all()


@pytest.mark.parametrize("name", [n for n in EVERY if not n.startswith("majority")])
def test_learns_separable_data(name):
    method = EVERY[name]
    task = task_of(n=3000, n_public=60, epsilon=8.0, relation=method.relations[0])
    assert accuracy(run(method, task).coef, *rows_of(1000, 4, 77)) > 0.88


@pytest.mark.parametrize("name", ["rsgd_ar", "nsgd", "output_perturbation", "dp_agd", "pnsgd", "only_public"])
def test_learns_three_classes(name):
    method = EVERY[name]
    task = task_of("softmax", n=3000, n_public=60, epsilon=8.0, relation=method.relations[0])
    fitted = run(method, task)
    assert fitted.coef.shape == (3, 4)
    assert accuracy(fitted.coef, *rows_of(1000, 4, 77, kind="multiclass")) > 0.8


@pytest.mark.parametrize("name", [n for n in EVERY if not n.startswith("majority")])
def test_learns_a_regression(name):
    method = EVERY[name]
    task = task_of("square", n=3000, n_public=60, epsilon=8.0, relation=method.relations[0])
    X, y = rows_of(1000, 4, 77, kind="regression")
    assert np.mean((X @ run(method, task).coef[0] - y) ** 2) < 0.35 * np.mean(y**2)
