import numpy as np
import pytest
from tests.contracts.replay import Nothing, SilentNoise
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.methods.coupling import PooledWeight, pooled_weight, sample_mechanism, sum_to_mean_weight


def test_the_pooled_weight() -> None:
    inputs, outputs, rtol = vector("P1")
    alpha = pooled_weight(n_public=inputs["n_pub"], n_private=inputs["n_priv"])
    assert alpha == pytest.approx(outputs["alpha_mean"], rel=rtol)
    same = sum_to_mean_weight(
        outputs["alpha_full_batch_sum"], public_batch=inputs["n_pub"], private_batch=inputs["n_priv"]
    )
    assert same == pytest.approx(alpha, rel=rtol)


def test_without_clipping_or_noise_it_is_the_pooled_mean() -> None:
    base = scene()
    task = base.task(ADD_REMOVE)
    recipe = sample_mechanism(clip_norm=10.0, steps=1, step_size=1.0)
    assert isinstance(recipe.mix, PooledWeight)
    fitted = recipe.run(task, recipe.plan(task), account=Nothing(), noise=SilentNoise(0))
    X, y = np.vstack([base.X, base.X_public]), np.concatenate([base.y, base.y_public])
    np.testing.assert_allclose(fitted.coef[0], (y[:, None] * X / 2).mean(axis=0), rtol=1e-9)


def test_the_report_has_the_weight() -> None:
    base = scene()
    plan = sample_mechanism(steps=1).plan(base.task(ADD_REMOVE))
    assert plan.details["weight"] == len(base.y_public) / (len(base.y) + len(base.y_public))
