"""Public rows without labels: fits on neighboring tables, replayed with the values that were released."""

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from tests.contracts.test_guided_estimators import estimator, neighbors, table

from sidelight.audit import replay as promises
from sidelight.audit.subjects import ADD_REMOVE, REPLACE
from sidelight.audit.tape import Tape, listening
from sidelight.methods.public_whitening import Whitening
from sidelight.privacy.noise import Noise

pytestmark = pytest.mark.usefixtures("same_noise")

PROBLEMS = ("regression", "two classes", "three classes")


def fitted(
    problem: str, relation: str, labels: int, data: tuple[Any, Any], like: Tape | None = None
) -> tuple[Tape, Any, dict[str, Any]]:
    """A fit with 120 public rows, of which the first few have labels."""
    Xp, yp = table(120, 1, problem)
    yp[labels:] = np.nan
    declared = {"target_bounds": (-1.5, 1.5)} if problem == "regression" else {"classes": np.unique(data[1])}
    if problem != "regression":
        declared["classes"] = [0.0, 1.0, 2.0] if problem == "three classes" else [0.0, 1.0]
    with listening(like=like) as tape, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model = estimator(problem, relation).set_params(**declared).fit(*data, Xp, yp if labels else None)
    outside = {
        "predictions": model.predict(table(50, 2, problem)[0]),
        "coef": model.coef_,
        "history": model.history_,
        "statement": model.privacy_.to_dict(),
        "warnings": [str(one.message) for one in heard],
    }
    return tape, model, outside


def check(problem: str, relation: str, labels: int) -> float:
    base, others = neighbors(problem, relation)
    run, _, outside = fitted(problem, relation, labels, base)
    moved = 0.0
    for data in others:
        other, _, seen = fitted(problem, relation, labels, data, like=run)
        found = [*promises.within_sensitivity(run, other), *promises.nothing_outside(outside, seen)]
        assert not found, "; ".join(map(str, found))
        moved = max(moved, promises.largest_share(run, other))
    return moved


@pytest.mark.parametrize("labels", [0, 60])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_fit_keeps_its_promises(problem: str, relation: str, labels: int) -> None:
    assert check(problem, relation, labels) > 0.1, "no neighbor moved anything"


def test_contract_catches_a_metric_of_private_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second moments of the private rows instead of the public ones: nothing is charged for them."""
    from sidelight.data import rows

    held: list[Any] = []
    bind = rows.PrivateRows.bind

    def remembered(self: Any, noise: Noise) -> None:
        held.append(self._contents.X)
        bind(self, noise)

    monkeypatch.setattr(rows.PrivateRows, "bind", remembered)
    monkeypatch.setattr(
        sys.modules["sidelight.methods.public_whitening"],
        "metric_of",
        lambda public, ridge, unit, span: Whitening.metric(
            held[-1] if held else public.every, ridge=ridge, unit=unit, span=span
        ),
    )
    with pytest.raises(AssertionError):
        check("two classes", REPLACE, 0)
