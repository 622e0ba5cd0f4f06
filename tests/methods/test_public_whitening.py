from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.contracts import replay

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, Scene, scene
from sidelight.data.rows import PublicRows
from sidelight.errors import InputError
from sidelight.methods.public_whitening import Whitening, public_whitening
from sidelight.privacy import conversions, events


def whitened(base: Scene) -> tuple[Any, Any, Any]:
    """M (with its divisor), and the public and private rows as the loss sees them."""
    A = base.X_public.T @ base.X_public + np.eye(base.X.shape[1])
    values, vectors = np.linalg.eigh(A)
    M = vectors @ np.diag(values**-0.5) @ vectors.T
    if base.loss.name == "square":
        h = np.einsum("ij,ij->i", base.X_public @ np.linalg.inv(A), base.X_public)
        M = M / np.sqrt(h / (1 - h)).mean()
        return M, base.X_public @ M, base.X @ M
    rows = [Z @ M for Z in (base.X_public, base.X)]
    public, private = (Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in rows)
    return M, public, private


def reference(base: Scene, *, steps: int) -> tuple[Any, float, float]:
    """The box of METHODS 20, line by line and without noise: the model, C and η."""
    M, public, seen = whitened(base)
    (m, p), square = base.X.shape, base.loss.name == "square"
    clip = float(np.abs(base.y_public).mean()) if square else 1.0
    bounded = public / np.maximum(1, np.linalg.norm(public, axis=1, keepdims=True))
    top = np.linalg.eigvalsh(bounded.T @ bounded / len(bounded))[-1]
    mu = conversions.gdp_mu(base.epsilon, base.delta)
    k, cap = (2, 4) if square else (1, 16)
    # The rule's 64 is T.
    eta = 0.2 * min(m * mu / (k * steps * np.sqrt(p)), cap) / top
    u, v, kept = np.zeros(p), np.zeros(p), []
    for _ in range(steps):
        z = seen @ u
        slope = z - base.y if square else -base.y * (base.y * z < 1)
        g = slope[:, None] * seen
        g = g * np.minimum(1, clip / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1e-300))
        v = 0.8 * v + g.mean(axis=0)
        u = u - eta * v
        kept.append(u)
    return M @ np.mean(kept[-(steps // 2) :], axis=0), clip, eta


@pytest.mark.parametrize("loss", ["hinge", "square"])
@pytest.mark.parametrize("steps", [64, 10])
def test_it_is_the_box(loss: str, steps: int) -> None:
    base = scene(loss, n=300)
    task = base.task(REPLACE)
    recipe = public_whitening(steps=steps)
    plan = recipe.plan(task)
    fitted = recipe.run(task, plan, account=replay.Nothing(), noise=replay.SilentNoise(0))
    expected, clip, eta = reference(base, steps=steps)
    assert plan.details["step_size"] == pytest.approx(eta)
    np.testing.assert_allclose(fitted.coef[0], expected, rtol=1e-6, atol=1e-8)
    assert {entry["clip_norm"] for entry in fitted.history} == {clip}


def test_the_noise_is_that_of_the_box() -> None:
    """T Gaussians of std 2C√T/(mμ) on the mean: exact composition."""
    task = scene(n=300).task(REPLACE)
    tape = replay.record(public_whitening(steps=9), task)
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    assert tape.fitted is not None
    assert [entry["noise_std"] for entry in tape.fitted.history] == pytest.approx([2 * 3 / (300 * mu)] * 9)
    assert tape.plan.event == events.repeat(tape.charged[0], 9)


def test_the_task_decides_how_rows_are_scaled() -> None:
    classes, numbers = scene("hinge").task(REPLACE), scene("square").task(REPLACE)
    for task, unit in ((classes, True), (numbers, False)):
        where = public_whitening(steps=2).plan(task).state["setting"]
        assert Whitening().begin(where, None).unit_rows is unit
    where = public_whitening(steps=2, regression=True).plan(classes).state["setting"]
    assert Whitening(unit=False).begin(where, None).unit_rows is False


def test_square_loss_for_classes_clips_at_one() -> None:
    task = replace(scene("square").task(REPLACE), target_bound=None)
    assert public_whitening(steps=2).plan(task).details["clip_norm"] == 1.0


def test_sparse_public_rows_give_the_same_metric() -> None:
    X = scene().X_public
    for unit in (True, False):
        dense = Whitening().metric(X, unit=unit).matrix
        np.testing.assert_allclose(Whitening().metric(sp.csr_array(X), unit=unit).matrix, dense)


def test_one_public_row_is_enough_and_none_is_refused() -> None:
    task = scene(n_public=1).task(ADD_REMOVE)
    assert np.isfinite(replay.record(public_whitening(steps=3), task).fitted.coef).all()  # type: ignore[union-attr]
    with pytest.raises(InputError, match="public records"):
        public_whitening().plan(replace(task, public=PublicRows.empty(task.p)))
    with pytest.raises(InputError, match="ridge"):
        public_whitening(ridge=0.0).plan(task)
