"""Whole fits of estimators, recorded, and replayed on neighbors with the released values of the first."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sidelight.audit.replay as promises
from sidelight.audit.tape import Tape, listening

Fit = Callable[[Any, Any], Any]  # private records and targets → a fitted estimator


@dataclass
class Recorded:
    tape: Tape
    model: Any
    outside: dict[str, Any]


def recorded(fit: Fit, data: tuple[Any, Any], new: Any, *, like: Recorded | None = None) -> Recorded:
    """The fit, and everything that leaves it; `new` are rows to predict."""
    with (
        listening(like=None if like is None else like.tape) as tape,
        warnings.catch_warnings(record=True) as w,
    ):
        warnings.simplefilter("always")
        model = fit(*data)
    outside = {
        "predictions": model.predict(new),
        "coef": model.coef_,
        "history": model.history_,
        "statement": model.privacy_.to_dict(),
        "scale": getattr(model, "probability_scale_", None),
        "warnings": [str(one.message) for one in w],
    }
    return Recorded(tape, model, outside)


def check(
    fit: Fit, base: tuple[Any, Any], others: Sequence[tuple[Any, Any]], new: Any
) -> tuple[Recorded, float]:
    """No neighbor moves a sum by more than its sensitivity, or anything else at all; and the largest move."""
    run, moved = recorded(fit, base, new), 0.0
    for data in others:
        other = recorded(fit, data, new, like=run)
        assert len(other.tape.calls) == len(run.tape.calls), "the number of releases depends on a record"
        found = promises.within_sensitivity(run.tape, other.tape)
        assert not found, "; ".join(map(str, found))
        found = promises.nothing_outside(run.outside, other.outside)
        assert not found, "; ".join(map(str, found))
        moved = max(moved, promises.largest_share(run.tape, other.tape))
    return run, moved
