"""A planted fault for every face: a recipe whose plan costs more than the budget that it was given.

`python -O -m tests.contracts.over_budget` checks them where no assert is executed.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sidelight import PrivateClassifier
from sidelight.errors import PrivacyConditionError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.part_kinds import Setting
from sidelight.methods.parts import ConstantNoise
from sidelight.privacy import events
from sidelight.privacy.ledger import Ledger


@dataclass(frozen=True)
class TooLittle(ConstantNoise):
    """Plans a tenth of the noise that the budget asks for."""

    def plan(self, setting: Setting) -> Any:
        _, filtered, details = super().plan(setting)
        return events.repeat(setting.sampler.event(setting.n, 0.1), setting.steps), filtered, details


FAULTY = dp_sgd(clip_norm=1.0, steps=5).with_parts(noise=TooLittle())


def _book() -> Ledger:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=1e6, delta=1e-5)
    return ledger


def _estimator(ledger: Ledger) -> None:
    X, y = np.zeros((40, 2)), np.repeat([0, 1], 20)
    model = PrivateClassifier(
        FAULTY, epsilon=1.0, delta=1e-5, bounds=(-1, 1), classes=(0, 1), ledger=ledger, dataset="people",
        relation="add-or-remove-one",
    )  # fmt: skip
    model.fit(X, y)


def _table(ledger: Ledger) -> None:
    import pandas as pd

    from sidelight.tables import fit_tables

    table = pd.DataFrame({"a": np.linspace(0, 1, 40), "label": np.repeat([0, 1], 20)})
    fit_tables(table, table[::2], target="label", method=FAULTY, epsilon=1.0, ledger=ledger)


def _trainer(ledger: Ledger) -> None:
    import torch
    from tests.deep.networks import blobs, loss, mlp

    from sidelight.deep import Trainer

    torch.manual_seed(0)
    Trainer(
        mlp(), loss, method=FAULTY, epsilon=1.0, delta=1e-5, expected_batch_size=10, steps=5, ledger=ledger,
        dataset="people",
    ).fit(blobs(40, 1))  # fmt: skip


def _private_step(ledger: Ledger) -> None:
    from tests.deep.networks import blobs, loss, mlp

    from sidelight.deep import PrivateStep

    step = PrivateStep(
        mlp(), loss, method=FAULTY, epsilon=1.0, delta=1e-5, steps=5, n_private=40, expected_batch_size=10,
        ledger=ledger, dataset="people", own_sampling=True,
    )  # fmt: skip
    step(blobs(10, 1))


FACES: dict[str, Callable[[Ledger], None]] = {
    "PrivateClassifier": _estimator,
    "fit_tables": _table,
    "Trainer": _trainer,
    "PrivateStep": _private_step,
}


def fault_of(face: Callable[[Ledger], None]) -> str | None:
    """What went wrong; None if the plan was refused and nothing was charged."""
    ledger = _book()
    try:
        face(ledger)
    except PrivacyConditionError as error:
        if "more than the 1 it was given" not in str(error):
            return f"refused for another reason: {error}"
        return "the plan was charged and then refused" if ledger.charges("people") else None
    return "a plan above its budget was run"


def main() -> None:
    if sys.flags.optimize < 1:
        raise SystemExit("run this with python -O")
    faults = {name: fault for name, face in FACES.items() if (fault := fault_of(face))}
    if faults:
        raise SystemExit(f"under python -O: {faults}")
    print("refused", *FACES)


if __name__ == "__main__":
    main()
