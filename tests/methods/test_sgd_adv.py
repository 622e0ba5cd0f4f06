import math
from dataclasses import replace

import pytest
from tests.methods.bench import setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.data.rows import UnreadRows
from sidelight.errors import PrivacyConditionError
from sidelight.methods.dp_sgd import AdvancedComposition, sgd_adv, step_budget
from sidelight.privacy import accountants, conversions


def test_the_budget_of_a_step() -> None:
    inputs, outputs, rtol = vector("M1")
    found = step_budget(epsilon=inputs["epsilon"], delta=inputs["delta"], steps=inputs["T"], q=inputs["q"])
    expected = [outputs[key] for key in ("eps0", "delta0", "eps_in", "delta_in")]
    assert found == pytest.approx(expected, rel=rtol)
    sigma = 1 / conversions.gdp_mu(found[2], found[3])
    assert sigma == pytest.approx(outputs["sigma_over_sensitivity"], rel=rtol)
    # The classical formula asks for more, and is unproved at an inner ε above 1, as here.
    assert outputs["sigma_classical"] > sigma and found[2] > 1


def test_the_multiplier_is_that_of_the_vector() -> None:
    inputs, outputs, rtol = vector("M1")
    where = setting(2, batch=10.0)
    where = replace(
        where, problem=replace(where.problem, rows=UnreadRows(1000, 2, max_norm=1.0)), steps=inputs["T"],
        epsilon=inputs["epsilon"], delta=inputs["delta"],
    )  # fmt: skip
    assert AdvancedComposition().multiplier(where) == pytest.approx(
        outputs["sigma_over_sensitivity"], rel=rtol
    )


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
def test_its_noise_is_more_than_enough(relation: str) -> None:
    task = replace(scene().task(relation), rows=UnreadRows(2500, 4, max_norm=1.0))  # type: ignore[arg-type]
    plan = sgd_adv().plan(task)
    assert plan.details["steps"] == round(2500 * task.epsilon / 500)
    assert plan.details["expected_batch_size"] == 50
    assert accountants.epsilon(plan.event, delta=task.delta, relation=task.relation, accountant="rdp") < 3
    least = accountants.noise_multiplier(
        epsilon=task.epsilon, delta=task.delta, sampling_probability=0.02, steps=15, relation=ADD_REMOVE
    )
    assert plan.details["noise_multiplier"] > 1.2 * least


def test_a_rate_that_the_theorem_cannot_take_is_refused() -> None:
    with pytest.raises(PrivacyConditionError, match="larger batches"):
        step_budget(epsilon=1.0, delta=0.9, steps=1, q=0.1)
    assert math.isfinite(step_budget(epsilon=1.0, delta=1e-5, steps=1, q=1.0)[2])
