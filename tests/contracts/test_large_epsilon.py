"""A budget that protects little is warned of once, by every face, and only where something is released."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.deep.networks import blobs, loss, mlp
from tests.federated.fleet import run, server_of

from sidelight import PrivateClassifier
from sidelight.deep import PrivateStep, Trainer
from sidelight.errors import PrivacyWarning
from sidelight.methods import dp_sgd, only_public
from sidelight.tables import fit_tables

METHOD = dp_sgd(clip_norm=1.0, steps=5)


def _estimator(epsilon: float, method: Any = METHOD) -> None:
    X, y = np.linspace(-1, 1, 80).reshape(40, 2), np.repeat([0, 1], 20)
    PrivateClassifier(method, epsilon=epsilon, delta=1e-5).fit(X, y, X_public=X.copy(), y_public=y)


def _table(epsilon: float, method: Any = METHOD) -> None:
    import pandas as pd

    table = pd.DataFrame({"a": np.linspace(0, 1, 40), "label": np.repeat([0, 1], 20)})
    fit_tables(table, table[::2], target="label", method=method, epsilon=epsilon)


def _trainer(epsilon: float, method: Any = METHOD) -> None:
    options = {} if method is not METHOD else {"expected_batch_size": 10, "steps": 5}
    trainer = Trainer(mlp(), loss, method=method, epsilon=epsilon, delta=1e-5, progress=False, **options)
    trainer.fit(blobs(40, 1), blobs(40, 2))


def _private_step(epsilon: float) -> None:
    step = PrivateStep(
        mlp(), loss, method=METHOD, epsilon=epsilon, delta=1e-5, steps=2, n_private=40,
        expected_batch_size=10, own_sampling=True,
    )  # fmt: skip
    for seed in (1, 2):
        step(blobs(10, seed))
    assert step.privacy_.epsilon == pytest.approx(epsilon, rel=0.01)


def _open_ended(epsilon: float) -> None:
    noise = 0.5 if epsilon > 9 else 4.0  # how many steps there will be, nobody knows
    step = PrivateStep(
        mlp(), loss, method=METHOD, noise_multiplier=noise, delta=1e-5, n_private=40, expected_batch_size=10,
        own_sampling=True,
    )  # fmt: skip
    for seed in range(4):
        step(blobs(10, seed))
        found = step.privacy_.epsilon
    assert found > 10 if epsilon > 9 else found < 9


def _federated(epsilon: float) -> None:
    run(server_of(METHOD, epsilon=epsilon))


FACES: dict[str, Callable[[float], None]] = {
    "estimator": _estimator, "fit_tables": _table, "Trainer": _trainer, "PrivateStep": _private_step,
    "PrivateStep without a plan": _open_ended, "FederatedServer": _federated,
}  # fmt: skip


def _warned(work: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    of_ours = [one for one in caught if issubclass(one.category, PrivacyWarning)]
    assert all(one.filename == __file__ or "tests" in one.filename for one in of_ours)
    return [str(one.message) for one in of_ours if "protects little" in str(one.message)]


@pytest.mark.parametrize("face", FACES.values(), ids=FACES.keys())
def test_large_epsilon_is_warned_of_once_by_every_face(face: Callable[[float], None]) -> None:
    assert len(_warned(lambda: face(10.0))) == 1
    assert not _warned(lambda: face(2.0))


@pytest.mark.parametrize("face", [_estimator, _table, _trainer])
@pytest.mark.parametrize("method", [only_public(), "non_private"], ids=["only_public", "non_private"])
def test_what_releases_nothing_private_or_promises_nothing_is_not_warned_of(face: Any, method: Any) -> None:
    assert not _warned(lambda: face(20.0, method))
