"""A method is one file: whoever lists methods finds it once it is imported, with nothing else touched."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.contracts.cases import cases

import sidelight.methods
from sidelight.audit import suite as catalog
from sidelight.audit.suite import SuitePlan, subjects
from sidelight.cli.terminal import METHOD_NAMES
from sidelight.errors import InputError
from sidelight.methods.declare import DECLARATIONS, GROUPS, METHODS, get_method, method
from sidelight.report.guarantee import source_of

TOY = '''
"""One noisy mean of the rows, times their targets."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sidelight.methods.declare import method
from sidelight.methods.parts import Flat
from sidelight.methods.task import Fitted, Plan, check_method
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.privacy import accountants, events
from sidelight.privacy.release import release


@dataclass(frozen=True)
class Toy:
    factor: float = 1.0
    name: ClassVar[str] = "toy"
    relations: ClassVar[tuple[str, ...]] = ("replace-one", "add-or-remove-one")
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def plan(self, task):
        check_method(self, task)
        z = accountants.noise_multiplier(epsilon=task.epsilon, delta=task.delta, relation=task.relation)
        return Plan(events.gaussian(z), state={"z": z})

    def run(self, task, plan, *, account, noise):
        oracle = LinearOracle(task.rows, task.loss)
        total = oracle.clipped_sum(np.zeros(task.dimension), clip=Flat(1.0), relation=task.relation)
        std = plan.state["z"] * total.sensitivity
        noisy = release(total, std=std, event=plan.event, account=account, noise=noise)
        return Fitted(-self.factor * noisy.numpy().reshape(task.loss.outputs, task.p))


@method(
    group="gradient method",
    paper="nobody, 2026",
    wins="in tests",
    loses="elsewhere",
    variants={"twice": {"factor": 2.0}},
)
def toy(*, factor: float = 1.0) -> Toy:
    """One noisy gradient.

    Guarantee: that of one Gaussian. Departs: it has no paper to depart from.
    """
    return Toy(factor)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new file beside those of the project."""
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(sidelight.methods, "__path__", [*sidelight.methods.__path__, str(tmp_path)])
    importlib.import_module("sidelight.methods.toy")
    yield
    forget("toy")
    sys.modules.pop("sidelight.methods.toy", None)
    vars(sidelight.methods).pop("toy", None)


def forget(name: str) -> None:
    DECLARATIONS.pop(name), METHODS.pop(name)


@pytest.mark.usefixtures("toy")
def test_a_method_is_one_file(run: Any) -> None:  # noqa: F811
    assert get_method("toy").name == "toy"
    assert " toy " in run("methods").out and "nobody, 2026" in run("methods", "toy").out
    source = source_of("toy")
    assert source is not None and source.departs == ("it has no paper to depart from",)
    assert {"toy", "toy, twice"} <= set(catalog.linear())
    audited = {(one.name, one.claim.relation) for one in subjects(SuitePlan(["toy", "toy, twice"]))}
    assert len(audited) == 4
    tried = {(case.name, case.relation, case.loss) for case in cases() if case.name.startswith("toy")}
    assert tried == {
        (name, r, "logistic") for name in ("toy", "toy-twice") for r in get_method("toy").relations
    }


@pytest.mark.usefixtures("toy")
def test_a_method_that_is_one_file_is_audited(run: Any) -> None:  # noqa: F811
    out = run("audit", "toy", "--kind", "replay").out
    assert "toy" in out and "passed" in out


def test_a_method_without_its_file_is_gone() -> None:
    assert "toy" not in METHODS
    with pytest.raises(InputError, match="'toy'"):
        get_method("toy")


def declared(**changes: Any) -> Any:
    return method(**{"group": "baseline", "paper": "p", "wins": "w", "loses": "l", **changes})


def test_a_method_of_ones_own_is_registered_when_its_module_is_imported() -> None:
    def mine() -> Any:
        return METHODS["dp_sgd"](steps=2)

    try:
        assert declared(losses=("logistic",))(mine) is mine
        assert get_method("mine").steps == 2  # type: ignore[attr-defined]
        assert DECLARATIONS["mine"].loss == "logistic" and list(METHODS) == list(DECLARATIONS)
    finally:
        forget("mine")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group": "other"}, "group must be one of chosen for you"),
        ({"losses": ("hnge",)}, "losses must be some of hinge"),
        ({"losses": ()}, "losses must be some of hinge"),
    ],
)
def test_a_wrong_declaration_is_refused(changes: dict[str, Any], words: str) -> None:
    def wrong() -> None: ...

    with pytest.raises(InputError, match=words):
        declared(**changes)(wrong)
    assert "wrong" not in METHODS


def test_a_name_that_is_taken_is_refused() -> None:
    def dp_sgd() -> None: ...

    with pytest.raises(InputError, match="already"):
        declared()(dp_sgd)


def test_methods_are_listed_by_group() -> None:
    groups = [one.group for one in DECLARATIONS.values()]
    assert groups == sorted(groups, key=GROUPS.index)


def test_shells_complete_the_names_of_all_methods() -> None:
    ours = [name for name, one in DECLARATIONS.items() if one.make.__module__.startswith("sidelight.")]
    assert list(METHOD_NAMES) == ours


@pytest.mark.parametrize("name", METHODS)
def test_every_example_can_be_made_and_has_the_name_of_its_method(name: str) -> None:
    for make in DECLARATIONS[name].examples().values():
        assert make().name == name
