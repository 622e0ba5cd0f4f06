"""Networks behind scikit-learn's interface."""

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.deep.networks import blobs, mlp, vector
from torch import nn

from sidelight.deep import MajorityVote, PrivateNetClassifier, PrivateNetRegressor
from sidelight.errors import InputError, PrivacyConditionError, UnboundedSensitivity
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.privacy.ledger import Ledger

NAMES = np.array(["cat", "dog", "owl"])


def named(n: int, seed: int) -> tuple[Any, Any]:
    x, y = blobs(n, seed)
    return x.numpy(), NAMES[y.numpy()]


def line(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.clip(100 + 10 * x[:, 0], 70, 130)


PRIVATE, PUBLIC, TEST = named(600, 1), named(60, 2), named(300, 3)


def classifier(**options: Any) -> PrivateNetClassifier:
    """All records in every step: the noise of such plans has a closed form, and tests are quick."""
    chosen = {"epsilon": 4, "delta": 1e-4, "expected_batch_size": None, "epochs": 20, "random_state": 1}
    chosen |= options
    return PrivateNetClassifier(mlp(), **{"epsilon": 1.0, **chosen})


def test_a_classifier_learns_its_labels_within_the_budget() -> None:
    model = classifier(optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    model.fit(*PRIVATE, X_public=PUBLIC[0], y_public=PUBLIC[1])
    assert model.classes_.tolist() == ["cat", "dog", "owl"] and model.score(*TEST) > 0.9
    assert model.privacy_.epsilon <= 4
    assert len(model.history_) == 20 and model.n_features_in_ == 4
    chances = model.predict_proba(TEST[0])
    np.testing.assert_allclose(chances.sum(1), 1)
    assert (model.classes_[chances.argmax(1)] == model.predict(TEST[0])).all()


def test_without_public_records_it_is_dp_sgd_and_classes_are_declared() -> None:
    with pytest.raises(InputError, match="classes"):
        classifier().fit(*PRIVATE)
    assert classifier(classes=NAMES).fit(*PRIVATE).privacy_.details["chosen"] == "dp_sgd"


def test_the_model_that_was_passed_stays_as_it_was() -> None:
    model = classifier(classes=NAMES, steps=2, epochs=None)
    before = vector(model.model)
    first = model.fit(*PRIVATE).model_
    assert torch.equal(vector(model.model), before) and not torch.equal(vector(first), before)
    assert torch.equal(vector(model.fit(*PRIVATE).model_), vector(first)), "every fit begins anew"


def test_parameters_are_read_set_and_cloned() -> None:
    model = classifier(method=dp_sgd(clip_norm=0.5), classes=NAMES)
    twin = clone(model)
    assert set(twin.get_params()) == set(model.get_params()) and twin.method == model.method
    assert twin.model is not model.model and torch.equal(vector(twin.model), vector(model.model))
    twin.set_params(epsilon=1.5, steps=2, epochs=None)
    assert twin.fit(*PRIVATE).privacy_.epsilon <= 1.5 and model.epsilon == 4
    assert is_classifier(model) and is_regressor(PrivateNetRegressor(mlp(), epsilon=1.0))


def test_it_ends_a_pipeline_and_is_pickled_without_private_records() -> None:
    whole = make_pipeline(
        FunctionTransformer(lambda x: x / 2), classifier(classes=NAMES, steps=2, epochs=None)
    )
    assert whole.fit(*PRIVATE).predict(TEST[0]).shape == (300,)
    fitted = whole[-1]
    data = pickle.dumps(fitted)
    rows = (PRIVATE[0] / 2).astype(np.float32)
    assert not any(row.tobytes() in data for row in rows), "a fitted model holds private records"
    assert (pickle.loads(data).predict(TEST[0]) == fitted.predict(TEST[0])).all()


def test_a_regressor_predicts_in_the_units_of_the_target() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    model = PrivateNetRegressor(
        net, epsilon=8, delta=1e-4, expected_batch_size=None, epochs=40, random_state=1,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
    )  # fmt: skip
    x, y = line(800, 1)
    with pytest.raises(UnboundedSensitivity, match="target_bounds"):
        model.fit(x, y)
    model.set_params(target_bounds=(70, 130)).fit(x, y, *line(40, 2))
    test = line(300, 3)
    assert model.score(*test) > 0.8 and 80 < model.predict(test[0]).mean() < 120


@pytest.mark.usefixtures("same_noise")
def test_records_that_cannot_be_used_take_part_in_nothing() -> None:
    """A missing value, an unknown label and text among numbers are all the same: no record."""
    x, y = PRIVATE[0].copy(), PRIVATE[1].copy()
    x[0, 1], y[1], x[2, 0] = np.nan, "bat", np.inf
    options = {
        "classes": NAMES,
        "steps": 3,
        "epochs": None,
        "expected_batch_size": None,
        "method": dope_sgd(),
    }
    found = vector(classifier(**options).fit(x, y, *PUBLIC).model_)
    x[:3] = np.nan
    other = vector(classifier(**options).fit(x, PRIVATE[1], *PUBLIC).model_)
    torch.testing.assert_close(found, other)
    spoiled = line(100, 1)
    spoiled[1][:3] = np.nan
    net = PrivateNetRegressor(
        nn.Linear(2, 1),
        epsilon=1.0,
        target_bounds=(70, 130),
        steps=2,
        epochs=None,
        expected_batch_size=None,
        delta=1e-4,
    )
    assert np.isfinite(net.fit(*spoiled).predict(line(5, 2)[0])).all()


def test_a_vote_gives_its_shares_as_probabilities() -> None:
    model = classifier(method=dp_sgd(finish=MajorityVote(4)), classes=NAMES, steps=8, epochs=None)
    chances = model.fit(*PRIVATE).predict_proba(TEST[0])
    assert set(np.unique(chances)) <= {0, 0.25, 0.5, 0.75, 1} and (chances.sum(1) == 1).all()
    assert (chances.max(1) == chances[np.arange(300), np.searchsorted(NAMES, model.predict(TEST[0]))]).all()


def test_images_are_taken_as_they_are_and_a_ledger_pays() -> None:
    ledger = Ledger.in_memory()
    ledger.register("images", relation="add-or-remove-one", epsilon=3, delta=1e-4)
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 1, 6, 6)), rng.integers(0, 2, 60)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    model = PrivateNetClassifier(
        net,
        epsilon=2,
        delta=1e-4,
        steps=2,
        epochs=None,
        classes=[0, 1],
        ledger=ledger,
        expected_batch_size=20,
    )
    assert model.fit(x, y).predict(x[:5]).shape == (5,) and len(ledger.charges("images")) == 1
    file = io.BytesIO()
    torch.save(model.model_.state_dict(), file)


BAD: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "outputs": ({"classes": [*NAMES, "yak"]}, *PRIVATE, "4 output"),
    "width": ({"classes": NAMES}, PRIVATE[0][:, :3], PRIVATE[1], "does not take records of shape"),
    "one dimension": ({"classes": NAMES}, PRIVATE[0][:, 0], PRIVATE[1], "two dimensions"),
    "text": ({"classes": NAMES}, PRIVATE[1][:, None], PRIVATE[1], "records of shape"),
    "lengths": ({"classes": NAMES}, PRIVATE[0], PRIVATE[1][:9], "one target for each row"),
    "epsilon": ({"classes": NAMES, "epsilon": -1}, *PRIVATE, "epsilon must be a positive"),
    "both": ({"classes": NAMES, "steps": 3}, *PRIVATE, "not both"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    options, x, y, match = BAD[name]
    with pytest.raises(InputError, match=match):
        classifier(**options).fit(x, y)


def test_bad_public_records_and_new_records_are_named() -> None:
    for shown, match in (
        ((PUBLIC[0][:, :2], PUBLIC[1]), "shape"),
        ((PUBLIC[0] * np.nan, PUBLIC[1]), "finite"),
        ((PUBLIC[0], np.full(60, "bat")), "not in classes"),
        ((PUBLIC[0], None), "go together"),
    ):
        with pytest.raises(InputError, match=match):
            classifier(classes=NAMES).fit(*PRIVATE, *shown)
    model = classifier(classes=NAMES, steps=1, epochs=None).fit(*PRIVATE)
    with pytest.raises(InputError, match="in fit"):
        model.predict(TEST[0][:, :3])
    with pytest.raises(InputError, match="finite"):
        model.predict(TEST[0] * np.nan)


def test_parameters_of_the_method_are_reached_by_nested_names() -> None:
    model = PrivateNetClassifier(mlp(), epsilon=1.0, method="dope_sgd")
    assert model.set_params(method__clip_norm=0.5, epsilon=3.0) is model
    assert model.epsilon == 3.0 and model.method.name == "dope_sgd"
    assert model.get_params()["method__clip__clip_norm"] == 0.5
    copy = clone(model)
    assert copy.get_params()["method__clip__clip_norm"] == 0.5
    copy.set_params(method__clip__clip_norm=0.7)
    assert model.get_params()["method__clip__clip_norm"] == 0.5
    with pytest.raises(InputError, match="'clip_nrom'"):
        model.set_params(method__clip_nrom=1.0)


def test_auto_is_the_default_and_takes_public_records_where_there_are_any() -> None:
    X, y = blobs(60, 0)
    few: dict[str, Any] = {"epsilon": 3.0, "steps": 2, "epochs": None, "expected_batch_size": 20}
    alone = PrivateNetClassifier(mlp(), classes=[0, 1, 2], random_state=0, **{"epsilon": 1.0, **few}).fit(
        X.numpy(), y.numpy()
    )
    assert alone.privacy_.method == "auto" and alone.privacy_.relation == "add-or-remove-one"
    assert alone.privacy_.details["chosen"] == "dp_sgd"
    guided = PrivateNetClassifier(mlp(), random_state=0, **{"epsilon": 1.0, **few})
    guided.fit(X.numpy(), y.numpy(), X.numpy() + 1, y.numpy())
    assert guided.privacy_.method == "auto" and guided.privacy_.details["public_records"] == 60


def test_what_is_no_secret_may_be_read_off_the_private_records_and_is_said() -> None:
    X, y = blobs(60, 0)
    few: dict[str, Any] = {"epsilon": 3.0, "steps": 2, "epochs": None, "random_state": 0}
    model = PrivateNetClassifier(mlp(), assume_public=("classes",), **{"epsilon": 1.0, **few}).fit(
        X.numpy(), y.numpy()
    )
    assert model.classes_.tolist() == [0, 1, 2]
    assert any("classes were read off the private" in line for line in model.privacy_.assumptions)
    regressor = PrivateNetRegressor(
        torch.nn.Linear(X.shape[1], 1), assume_public=("target_bounds",), **{"epsilon": 1.0, **few}
    ).fit(X.numpy(), y.numpy() * 4.0)
    assert any("target bounds were read off" in line for line in regressor.privacy_.assumptions)
    with pytest.raises(InputError, match="'bounds'"):
        PrivateNetClassifier(mlp(), assume_public=("bounds",), **{"epsilon": 1.0, **few}).fit(
            X.numpy(), y.numpy()
        )
    with pytest.raises(InputError, match="classes"):
        PrivateNetClassifier(mlp(), **{"epsilon": 1.0, **few}).fit(X.numpy(), y.numpy())


def test_validation_is_not_taken_from_the_array_of_the_private_records() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    everything = PRIVATE[0].astype(np.float32)
    held = torch.utils.data.TensorDataset(torch.from_numpy(everything[500:]), torch.zeros(100).long())
    model = classifier(classes=NAMES, validation=held, ledger=ledger)
    with pytest.raises(PrivacyConditionError, match="without noise"):
        model.fit(everything[:500], PRIVATE[1][:500])
    assert not ledger.charges("people")
