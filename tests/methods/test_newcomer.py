"""Somebody new writes the recipe of docs/recipes.md, with one slip: the answer is one clear line.

Nothing is charged for any of them: whatever can be refused is refused before the ledger is written.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sidelight import PrivateClassifier
from sidelight.audit import replay_neighbors
from sidelight.errors import BudgetExceeded, InputError
from sidelight.privacy.ledger import Ledger

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
RECIPE = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3))
y = X @ np.array([1.0, -1.0, 0.5]) > 0


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page's recipe with lines of it replaced, and more code below; the function `mine` of it."""

    def written(*slips: tuple[str, str], more: str = "") -> Any:
        text = RECIPE
        for right, wrong in slips:
            assert right in text, f"the page does not have {right!r}"
            text = text.replace(right, wrong)
        module = ModuleType("newcomer")
        monkeypatch.setitem(sys.modules, "newcomer", module)
        exec(compile(f"{text}\n{more}", "newcomer", "exec"), module.__dict__)
        return module

    return written


def fit(method: Any, ledger: Ledger | None = None) -> PrivateClassifier:
    public = {"X_public": X[:60], "y_public": y[:60]}
    model = PrivateClassifier(method=method, epsilon=1.0, delta=1e-6, random_state=0, ledger=ledger)
    return model.fit(X[60:], y[60:], **public)


def test_the_recipe_of_the_page_works(write: Any) -> None:
    assert fit(write().mine(steps=3)).privacy_.method == "mine"


BEGIN = 'return MedianClipState(setting.public("a median clip"))'
AT = "return Flat(max(self.clip_norm, 1e-3))"
LINES: dict[str, tuple[tuple[str, str], str]] = {
    "a clip that is a number": ((AT, "return self.clip_norm"), "fails on zeros (AttributeError"),
    "a clip that is forgotten": ((AT, "Flat(1.0)"), "fails on zeros (AttributeError"),
    "an infinite clip norm": ((AT, "return Flat(np.inf)"), "clip_norm must be a positive number"),
    "a state that is a class": (
        (BEGIN, "return MedianClipState"),
        "MedianClip.begin must return a ClipState",
    ),
    "a state that is forgotten": ((BEGIN, "pass"), "MedianClip.begin must return a ClipState, not None"),
    "a state that is a number": ((BEGIN, "return 1.0"), "MedianClip.begin must return a ClipState, not a fl"),
    "a state of nothing": (("State(ClipState)", "State"), "derive it from ClipState (sidelight.methods)"),
    "a rule of nothing": (("MedianClip(ClipRule)", "MedianClip"), "derive it from ClipRule"),
    "a name in kept that is not there": (('("clip_norm",)', '("norm",)'), "no attribute 'norm'"),
    "kept without its comma": (('("clip_norm",)', '("clip_norm")'), "no attribute 'c'"),
    "an argument that is left out": (
        ("metric: Metric, origin: Vector | None", "metric: Metric"),
        "takes 4",
    ),
    "a class for a part": (("MedianClip(),", "MedianClip,"), "MedianClip is a class: write MedianClip()"),
    "a number for a part": (("ConstantNoise(),", "1.1,"), "noise= takes a noise part, for instance Constant"),
    "a part in another's place": (("metric=Whitening", "metric=PublicGradient"), "is a part for origin="),
    "no steps": (("steps=steps", "steps=0"), "steps must be a whole number of at least 1, not 0"),
    "half a step": (("steps=steps", "steps=6.5"), "steps must be a whole number of at least 1, not 6.5"),
    "a momentum of 1": (("momentum=0.8", "momentum=1.0"), "momentum must be in [0, 1), not 1.0"),
    "a step size below 0": (("momentum=0.8", "step_size=-1"), "step_size must be a positive number, not -1"),
}


@pytest.mark.parametrize(("slip", "line"), LINES.values(), ids=LINES)
def test_a_slip_in_the_recipe_is_one_line_before_the_charge(
    slip: tuple[str, str], line: str, write: Any
) -> None:
    ledger = Ledger.in_memory()
    ledger.register("it", epsilon=9.0, delta=1e-3, relation="add-or-remove-one")
    with pytest.raises(InputError) as caught:
        fit(write(slip).mine(steps=3), ledger)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert not ledger.charges("it")


PARTS = """
from sidelight.methods import (
    BatchRule, FinishRule, FinishState, MetricRule, MetricState, Mix, MixState, NoiseState, Origin, Start,
    StepRule,
)
class Mine(Mix):
    needs_public = needs_gradient = True
    def begin(self, setting, params, *, noise_multiplier, bound): return MineState()
class MineState(MixState):
    def mix(self, params, direction, public_gradient, *, step, step_size): return {value}
class Curt(Mine):
    def begin(self, setting, params): return MineState()
class Around(Origin):
    def at(self, public_gradient): return {value}
class There(Start):
    def __call__(self, setting): return {value}
class Ends(FinishRule):
    def begin(self, setting): return EndsState()
class EndsState(FinishState):
    def add(self, params): pass
    def result(self, start): return {value}
class Loud(ConstantNoise):
    def begin(self, setting): return LoudState()
class LoudState(NoiseState):
    def at(self, step): return {value}
class Untold(ConstantNoise):
    def plan(self, setting): return super().plan(setting)[0]
class Long(StepRule):
    def size(self, setting, *, noise_multiplier, momentum, metric): return {value}
class Many(BatchRule):
    def size(self, n): return {value}
class Turned(MetricRule):
    def begin(self, setting, params): return TurnedState()
class TurnedState(MetricState):
    def at(self, step, params, public_gradient): return {value}
class Whole:
    bound = 1.0
    def factors(self, norms): return {value}
class WholeState(MedianClipState):
    def at(self, step, params, metric, origin): return Whole()
class WholeClip(MedianClip):
    def begin(self, setting, params): return WholeState(setting.public("it"))
"""
ONE_EACH = "must return one number for each parameter"
OWN: dict[str, tuple[str, str, str, str]] = {
    "a mix of nothing": ("mix", "Mine", "None", f"MineState.mix {ONE_EACH}"),
    "a mix of two": ("mix", "Mine", "(direction, 1)", f"MineState.mix {ONE_EACH}"),
    "a short mix": ("mix", "Mine", "direction[:2]", f"MineState.mix {ONE_EACH}"),
    "an origin of 0": ("origin", "Around", "0.0", f"Around.at {ONE_EACH}"),
    "a short origin": ("origin", "Around", "public_gradient[:2]", f"Around.at {ONE_EACH}"),
    "a short start": ("start", "There", "np.ones(2)", "There must return 4 numbers"),
    "a list to start": ("start", "There", "[0.0] * 4", "fails on zeros"),
    "no start": ("start", "There", "None", "fails on zeros"),
    "no model": ("finish", "Ends", "None", f"EndsState.result {ONE_EACH}"),
    "half a model": ("finish", "Ends", "start[:2]", f"EndsState.result {ONE_EACH}"),
    "noise in words": ("noise", "Loud", "'1'", "a noise multiplier must be a number"),
    "less than no noise": ("noise", "Loud", "-1.0", "a noise multiplier must be a number"),
    "an event alone": ("noise", "Untold", "None", "Untold.plan must return (event, whether"),
    "a step in words": ("step", "Long", "'0.1'", "Long.size must be a positive number, not '0.1'"),
    "no step size": ("step", "Long", "None", "Long.size must be a positive number, not None"),
    "no records": ("batch", "Many", "0", "expected_batch_size must be a positive number, not 0"),
    "records in words": ("batch", "Many", "'64'", "expected_batch_size must be a positive number, not '64'"),
    "a matrix": ("metric", "Turned", "np.eye(4)", "not ndarray"),
    "one factor": ("clip", "WholeClip", "1.0", f"Whole.factors {ONE_EACH}"),
    "a factor too few": ("clip", "WholeClip", "norms[1:]", f"Whole.factors {ONE_EACH}"),
    "a mix without keywords": ("mix", "Curt", "None", "unexpected keyword"),
}


@pytest.mark.parametrize(("place", "name", "value", "line"), OWN.values(), ids=OWN)
def test_what_a_part_of_ones_own_returns_is_checked_before_the_charge(
    place: str, name: str, value: str, line: str, write: Any
) -> None:
    module, ledger = write(more=PARTS.replace("{value}", value)), Ledger.in_memory()
    ledger.register("it", epsilon=9.0, delta=1e-3, relation="add-or-remove-one")
    with pytest.raises(InputError) as caught:
        fit(module.mine(steps=3).with_parts(**{place: getattr(module, name)()}), ledger)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert not ledger.charges("it")


def test_less_noise_than_was_planned_is_refused_by_the_account(write: Any) -> None:
    module = write(more=PARTS.replace("{value}", "0.5"))
    with pytest.raises(BudgetExceeded, match="released"):
        fit(module.mine(steps=3).with_parts(noise=module.Loud()))


def test_what_is_no_method_is_refused_in_one_line(write: Any) -> None:
    module = write()
    for given, line in (
        (module.mine, "mine is a function: call it, method=mine()"),
        (module.Recipe, "Recipe is a class"),
        (module.MedianClip(), "MedianClip is a part: a recipe with clip=MedianClip(...) is a method"),
        (7, "method must be a name or a method such as dp_sgd(); not 7"),
        ("dpsgd", "there is no method 'dpsgd'. Did you mean 'dp_sgd'?"),
    ):
        for call in (fit, replay_neighbors):
            with pytest.raises(InputError) as caught:
                call(given)
            assert line in str(caught.value)


def test_a_part_for_linear_models_is_named_by_a_network(write: Any) -> None:
    torch = pytest.importorskip("torch")
    from sidelight import Trainer

    loss = torch.nn.CrossEntropyLoss(reduction="none")
    trainer = Trainer(torch.nn.Linear(3, 2), loss, method=write().mine(steps=2), epsilon=1.0, progress=False)
    with pytest.raises(InputError, match="Whitening"):
        trainer.fit((torch.zeros(20, 3), torch.zeros(20, dtype=torch.long)))
