"""Every method by its name: it trains a network, or says before any charge, in one line, that it does not."""

import warnings
from typing import Any

import pytest
from tests.deep.networks import blobs, loss, mlp

from sidelight.deep import PrivateNetClassifier, PrivateStep, Trainer
from sidelight.errors import BudgetExceeded, InputError, NotPrivateWarning
from sidelight.methods.declare import DECLARATIONS, METHODS, get_method
from sidelight.privacy.ledger import Ledger

PRIVATE, PUBLIC = blobs(80, 1), blobs(30, 2)
NO_STEPS = ("auto", "only_public", "non_private")
PLAN: dict[str, Any] = {"epsilon": 2, "delta": 1e-4, "expected_batch_size": 20, "steps": 2}
# sgd_adv has a default relation of its own; both are tried.
RELATIONS = ("add-or-remove-one", "replace-one")


def ledger_of(relation: Any) -> Ledger:
    ledger = Ledger.in_memory()
    ledger.register("people", relation=relation, epsilon=5, delta=1e-4)
    return ledger


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", METHODS)
def test_trainer_takes_a_method_or_refuses_it_by_name(name: str, relation: Any) -> None:
    ledger = ledger_of(relation)
    trainer = Trainer(mlp(), loss, method=name, relation=relation, ledger=ledger, progress=False, **PLAN)
    if not DECLARATIONS[name].networks:
        with pytest.raises(InputError, match=f"^{name} is for linear models. Networks take: ") as error:
            trainer.fit(PRIVATE, PUBLIC)
        assert "\n" not in str(error.value) and not ledger.charges("people")
    elif name == "non_private":
        with pytest.warns(NotPrivateWarning), pytest.raises(BudgetExceeded):
            trainer.fit(PRIVATE, PUBLIC)
    elif name == "ppsgd" and relation == "replace-one":
        with pytest.raises(ValueError, match="accounting='tcdp'"):
            trainer.fit(PRIVATE, PUBLIC)
        assert not ledger.charges("people")
    else:
        assert trainer.fit(PRIVATE, PUBLIC).privacy_.epsilon <= 2.0001


@pytest.mark.parametrize("name", METHODS)
def test_a_step_takes_a_method_or_refuses_it_by_name(name: str) -> None:
    def make() -> PrivateStep:
        return PrivateStep(mlp(), loss, method=get_method(name), n_private=80, **PLAN)  # type: ignore[arg-type]

    if DECLARATIONS[name].networks and name not in NO_STEPS:
        step = make()
        drawn = step.sample()
        step.step(blobs(80 if drawn is None else len(drawn), 1), PUBLIC)
        return
    with pytest.raises(InputError, match=rf"^{name} is for linear|recipe of steps.*; {name} takes none"):
        make()


def test_a_step_takes_the_name_of_a_method_too() -> None:
    step = PrivateStep(mlp(), loss, method="dope_sgd", n_private=80, **PLAN)
    step.step(blobs(len(step.sample()), 1), PUBLIC)  # type: ignore[arg-type]
    assert step.privacy_.method == "dope_sgd"
    with pytest.raises(InputError, match="'dope'"):
        PrivateStep(mlp(), loss, method="dope", n_private=80, **PLAN)


@pytest.mark.parametrize("name", [name for name in METHODS if not DECLARATIONS[name].networks])
def test_an_estimator_refuses_what_a_trainer_refuses(name: str) -> None:
    ledger = ledger_of("add-or-remove-one")
    with warnings.catch_warnings():
        model = PrivateNetClassifier(
            mlp(), epsilon=1.0, method=name, classes=[0, 1, 2], ledger=ledger, steps=2, epochs=None
        )
        with pytest.raises(InputError, match=f"^{name} is for linear models"):
            model.fit(PRIVATE[0].numpy(), PRIVATE[1].numpy())
    assert not ledger.charges("people")
