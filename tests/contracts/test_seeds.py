"""A seed that is used again: two fits that differ in anything share neither noise nor batches."""

import warnings
from typing import Any

import numpy as np
import pytest

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.errors import NotPrivateWarning
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.privacy import events
from sidelight.privacy.contract import SEED_WARNING
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import SEED_ASSUMPTION, Noise
from sidelight.privacy.release import BoundedSum, perturbed_solution, release, release_on_grid

AR = "add-or-remove-one"
RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (60, 3))
Y = (X[:, 0] > 0).astype(int)
X_PUBLIC, Y_PUBLIC = X[:10] * 0.9, Y[:10]


class Nothing:
    def charge(self, event: Any) -> None: ...


class Overheard(Noise):
    """Tells which noise and which batches were drawn, from every source that was made."""

    drawn: list[Any] = []  # noqa: RUF012

    def normal(self, size: Any, *, std: float = 1.0, dtype: Any = np.float64) -> Any:
        values = super().normal(size, std=std, dtype=dtype)
        self.drawn.append(np.asarray(values / std, dtype=np.float64).reshape(-1))
        return values


@pytest.fixture
def overheard(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(Overheard, "drawn", found)
    monkeypatch.setattr("sidelight.estimators.linear.Noise", Overheard)
    return found


def draws(found: list[Any], estimator: Any, *data: Any) -> set[float]:
    found.clear()
    estimator.fit(*data)
    return set(np.concatenate(found).round(12).tolist())


def classifier(method: Any, **options: Any) -> PrivateClassifier:
    chosen: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "bounds": (-1, 1),
        "classes": (0, 1),
        "random_state": 3,
    }
    return PrivateClassifier(method, **({"epsilon": 1.0, **chosen | options}))


METHODS = ["dp_sgd", "output_perturbation", "objective_perturbation", "rsgd_ar", "pnsgd", "amp", "dp_agd"]


@pytest.mark.parametrize("method", METHODS)
def test_two_fits_that_differ_share_no_noise(method: str, overheard: list[Any]) -> None:
    loss = {"loss": "logistic"}
    first = draws(overheard, classifier(method, **loss), X, Y)
    moved, other_label = X.copy(), Y.copy()
    moved[7, 1] = 0.123
    other_label[3] = 1 - Y[3]
    others = {
        "another budget": (classifier(method, **loss, epsilon=2.0), X, Y),
        "another delta": (classifier(method, **loss, delta=1e-6), X, Y),
        "another regularization": (classifier(method, **loss, regularization=0.01), X, Y),
        "another bound": (classifier(method, **loss, max_norm=0.5), X, Y),
        "another record": (classifier(method, **loss), moved, Y),
        "another label": (classifier(method, **loss), X, other_label),
        "a record less": (classifier(method, **loss), X[:-1], Y[:-1]),
        "public records": (classifier(method, **loss), X, Y, X_PUBLIC, Y_PUBLIC),
    }
    for what, (estimator, *data) in others.items():
        assert not first & draws(overheard, estimator, *data), f"{what} has the noise of the first fit"
    assert first == draws(overheard, classifier(method, **loss), X, Y), "the same fit is the same again"


def test_noise_scales_do_not_give_the_noiseless_model() -> None:
    """With shared noise w + s·z, two models and their known scales s are two equations for w and z."""
    found = []
    for epsilon in (1.0, 2.0, 4.0):
        model = classifier(dp_sgd(steps=1, clip_norm=1.0, step_size=0.5), epsilon=epsilon).fit(X, Y)
        (event,) = events.elementary(model.privacy_.plan)
        found.append((model.coef_.ravel(), event.noise_multiplier))
    (a, s), (b, t), (c, u) = found
    one, other = (a - b) / (s - t), (b - c) / (t - u)  # both z, if it was shared
    assert np.linalg.norm(one - other) > 0.01 * np.linalg.norm(one)


def test_fits_that_a_ledger_charged_apart_share_no_noise(overheard: list[Any]) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation=AR, epsilon=50, delta=1e-4)
    found = [
        draws(overheard, classifier(dp_sgd(steps=3), relation=AR, ledger=ledger, dataset="people"), X, Y)
        for _ in range(2)
    ]
    assert not found[0] & found[1]


def test_members_of_a_family_of_seeds_are_apart() -> None:
    assert not set(Noise(1).normal(100)) & set(Noise(11).normal(100)) & set(Noise(0).normal(100))


def _released(value: Any, std: float = 1.0, **options: Any) -> Any:
    total = BoundedSum(np.asarray(value, dtype=float), sensitivity=1.0, relation=AR)
    event = options.pop("event", events.gaussian(std))
    return release(total, std=std, event=event, account=Nothing(), noise=Noise(7)).numpy() - value


def test_noise_of_a_seed_depends_on_what_it_hides() -> None:
    """The doors themselves: whoever makes a source by hand is protected as well."""
    here = _released(np.zeros(4))
    assert np.array_equal(here, _released(np.zeros(4)))
    assert not set(here) & set(_released(np.array([0.0, 0.0, 0.0, 1e-9])))
    assert not set(here) & set(_released(np.zeros(4), std=2.0) / 2)
    assert not set(here) & set(_released(np.zeros(4), event=events.poisson(0.5, 1.0)))
    grid = [
        release_on_grid(
            BoundedSum(np.full(4, v), sensitivity=1.0, relation=AR), rho=0.5, account=Nothing(),
            noise=Noise(7),
        ).numpy() - v
        for v in (0.0, 1.0)
    ]  # fmt: skip
    assert not set(grid[0]) & set(grid[1])
    solved = [
        perturbed_solution(
            lambda b: b, dimension=4, std=std, lipschitz=1.0, relation=AR, account=Nothing(), noise=Noise(7),
            event=events.ObjectivePerturbation(0.1, 1.0, 1),
        ).numpy() / std
        for std in (1.0, 2.0)
    ]  # fmt: skip
    assert not set(solved[0]) & set(solved[1])


def test_contract_catches_noise_of_the_seed_alone(overheard: list[Any]) -> None:
    from sidelight.audit.tape import same_noise

    with same_noise():
        first = draws(overheard, classifier("dp_sgd"), X, Y)
        assert first & draws(overheard, classifier("dp_sgd", epsilon=2.0), X, Y)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_seed_warns_and_is_in_the_statement(seed: int) -> None:
    with pytest.warns(NotPrivateWarning, match="fixes"):
        model = classifier("dp_sgd", random_state=seed).fit(X, Y)
    assert SEED_ASSUMPTION in model.privacy_.assumptions
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SEED_ASSUMPTION not in classifier("dp_sgd", random_state=None).fit(X, Y).privacy_.assumptions
        # No private record is used, so that there is nothing to remove the noise from.
        classifier("only_public").fit(X, Y, X_PUBLIC, Y_PUBLIC)


def test_a_seed_of_a_network_warns_too() -> None:
    pytest.importorskip("torch")
    from tests.deep.networks import blobs, loss, mlp

    from sidelight.deep import PrivateStep, Trainer

    options: dict[str, Any] = {"epsilon": 3, "delta": 1e-4, "expected_batch_size": 10, "steps": 2}
    with pytest.warns(NotPrivateWarning, match="fixes"):
        trainer = Trainer(mlp(), loss, random_state=1, **options).fit(blobs(40, 1))
    assert SEED_ASSUMPTION in trainer.privacy_.assumptions
    step = PrivateStep(mlp(), loss, random_state=1, n_private=40, **options)
    with pytest.warns(NotPrivateWarning, match="fixes"):
        step(blobs(len(step.sample()), 1))  # type: ignore[arg-type]
    assert SEED_ASSUMPTION in step.privacy_.assumptions


def test_networks_that_differ_share_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from tests.deep.networks import blobs, loss, mlp

    from sidelight.deep import Trainer

    found: list[Any] = []
    monkeypatch.setattr(Overheard, "drawn", found)
    monkeypatch.setattr("sidelight.deep.prepare.Noise", Overheard)
    factor = 1.0

    def scaled(outputs: Any, targets: Any) -> Any:
        return factor * loss(outputs, targets)

    def fit(**options: Any) -> set[float]:
        found.clear()
        data = options.pop("data", blobs(40, 1))
        chosen: dict[str, Any] = {
            "loss": scaled,
            "epsilon": 3,
            "delta": 1e-4,
            "expected_batch_size": 10,
            "steps": 2,
        }
        chosen |= options
        Trainer(
            options.pop("model", mlp()), random_state=1, **{k: v for k, v in chosen.items() if k != "model"}
        ).fit(data)
        return set(np.concatenate(found).round(12).tolist())

    first = fit()
    other = blobs(40, 1)
    other[0][5] += 0.5
    assert not first & fit(epsilon=4)
    assert not first & fit(model=mlp(2))
    assert not first & fit(data=other)
    assert not first & fit(augment=torch.sign)
    assert first == fit()
    factor = 2.0  # a captured variable
    assert not first & fit()


def test_a_regression_is_keyed_like_a_classification(overheard: list[Any]) -> None:
    options: dict[str, Any] = {"delta": 1e-5, "bounds": (-1, 1), "random_state": 3}
    found = [
        draws(
            overheard, PrivateRegressor("dp_sgd", target_bounds=(0, top), **{"epsilon": 1.0, **options}), X, Y
        )
        for top in (1, 2)
    ]
    assert not found[0] & found[1]


def test_the_warning_says_what_to_do() -> None:
    assert "use none" in SEED_WARNING and "\n" not in SEED_WARNING


def test_other_public_rows_without_labels_draw_other_noise(overheard: list[Any]) -> None:
    """Not even a method that has no use for them may share its noise between the two."""
    model = classifier(dp_sgd(steps=3, step_size=0.1), classes=[0, 1], random_state=3)
    other = X_PUBLIC.copy()
    other[-1, 0] /= 2
    first, again, second = (draws(overheard, model, X, Y, rows) for rows in (X_PUBLIC, X_PUBLIC, other))
    assert first == again and not first & second
