"""What scikit-learn does around a fit with private records is warned of, and stands in the statement."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, OneHotEncoder
from tests.estimator_tools import SCORE, X_PUBLIC, X_TEST, Y_TEST, X, Y, classifier

from sidelight.errors import NotPrivateWarning
from sidelight.estimators import PrivateRegressor


def regressor() -> PrivateRegressor:
    return PrivateRegressor(
        "output_perturbation", epsilon=1.0, bounds=(-1, 1), target_bounds=(-3, 3), random_state=0
    )


def encoder() -> Any:
    return ColumnTransformer(
        [
            ("job", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), [0]),
            ("rest", "passthrough", [1, 2]),
        ]
    )


AROUND = {
    "a scaler in a pipeline": (
        lambda: make_pipeline(MinMaxScaler(), classifier()).fit(X, Y),
        r"'minmaxscaler' \(MinMaxScaler\) of a pipeline was fitted.*FrozenEstimator",
    ),
    "an encoder in a pipeline": (
        lambda: make_pipeline(encoder(), classifier()).fit(np.round(X), Y),
        r"\(ColumnTransformer\) of a pipeline was fitted to the private records",
    ),
    "a scaler in a union": (
        lambda: make_pipeline(FeatureUnion([("scale", MinMaxScaler())]), classifier()).fit(X, Y),
        r"\(FeatureUnion\) of a pipeline",
    ),
    "fit_predict of a pipeline in a pipeline": (
        lambda: make_pipeline(Normalizer(), make_pipeline(MinMaxScaler(), classifier())).fit(X, Y),
        r"\(MinMaxScaler\) of a pipeline",
    ),
    "a grid search": (
        lambda: GridSearchCV(classifier(), {"max_norm": [1, 2]}, cv=2).fit(X, Y),
        "scores, and choices made by them, are covered by no budget.*sidelight compare.*ledger=",
    ),
    "cross_val_score": (lambda: cross_val_score(classifier(), X, Y, cv=2), "scores on private records"),
    "cross_validate": (lambda: cross_validate(regressor(), X, SCORE, cv=2), "scores on private records"),
    "calibration": (
        lambda: CalibratedClassifierCV(classifier(), cv=2).fit(X, Y),
        "sklearn.calibration works with the private records around this fit",
    ),
    "targets that are scaled": (
        lambda: TransformedTargetRegressor(regressor(), transformer=MinMaxScaler()).fit(X, SCORE),
        "sklearn.compose._target works with the private records",
    ),
    "a score on the fitted records": (
        lambda: classifier().fit(X, Y).score(X, Y),
        "a score on the private records is a release",
    ),
    "a score on some of them": (
        lambda: regressor().fit(X, SCORE).score(X[:100], SCORE[:100]),
        "a score on the private records is a release",
    ),
    "a score on as many": (
        lambda: classifier().fit(X, Y).score(X.copy(), Y),
        r"as many records as were fitted \(1,500\): if they are the private ones",
    ),
}


@pytest.mark.parametrize("case", AROUND)
def test_what_no_budget_covers_is_warned_of(case: str) -> None:
    run, message = AROUND[case]
    with pytest.warns(NotPrivateWarning, match=message) as caught:
        run()
    ours = [one for one in caught if one.category is NotPrivateWarning]
    assert all(one.filename == __file__ for one in ours), "the warning points at the user's own line"


def test_a_warning_names_the_line_that_was_written_by_the_user() -> None:
    model = classifier().fit(X, Y)
    for call in (lambda: make_pipeline(MinMaxScaler(), classifier()).fit(X, Y), lambda: model.score(X, Y)):
        with pytest.warns(NotPrivateWarning) as caught:
            call()
        assert caught[0].lineno == call.__code__.co_firstlineno


def test_the_statement_says_what_was_around_the_fit() -> None:
    with pytest.warns(NotPrivateWarning):
        fitted = make_pipeline(MinMaxScaler(), classifier()).fit(X, Y)
    assert any("MinMaxScaler" in line for line in fitted[-1].privacy_.assumptions)
    assert not any("MinMaxScaler" in line for line in classifier().fit(X, Y).privacy_.assumptions)


def test_what_learns_nothing_from_private_records_is_not_warned_of() -> None:
    frozen = FrozenEstimator(MinMaxScaler().fit(X_PUBLIC))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotPrivateWarning)
        warnings.filterwarnings("ignore", "a seed", NotPrivateWarning)  # these fits are repeatable
        for steps in (
            [],
            [FunctionTransformer(lambda Z: Z / 2)],
            [Normalizer(), "passthrough", frozen],
            [ColumnTransformer([("all", frozen, [0, 1, 2, 3, 4])])],
        ):
            named = [(f"step{i}", step) for i, step in enumerate(steps)]
            pipe = Pipeline([*named, ("fit", classifier())]).fit(X, Y)
            assert pipe.score(X_TEST, Y_TEST) > 0.5
        model = classifier().fit(X[:700], Y[:700])
        model.score(X[700:], Y[700:])  # the same array, other rows of it


def test_a_fitted_model_carries_no_trace_of_the_container() -> None:
    """What `score` remembers is outside of the model: a pickle holds nothing of it."""
    model = classifier().fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotPrivateWarning)
        again.score(X, Y)
    assert vars(model).keys() == vars(again).keys()


def test_no_warning_depends_on_what_the_records_are() -> None:
    """Two tables of one size and type, other contents: the same warnings, word for word."""
    heard = []
    for table, labels in ((X, Y), (np.full_like(X, np.nan), np.full_like(Y, "no"))):
        with pytest.warns(NotPrivateWarning) as caught:
            model = make_pipeline(FunctionTransformer(), classifier(health_check=False)).fit(table, labels)[
                -1
            ]
            model.score(np.zeros_like(table), labels)
        heard.append([str(one.message) for one in caught])
    assert heard[0] == heard[1]


def test_networks_warn_as_well() -> None:
    torch = pytest.importorskip("torch")
    from sidelight.deep import PrivateNetClassifier

    torch.manual_seed(0)
    net = PrivateNetClassifier(
        torch.nn.Linear(5, 2), epsilon=1.0, classes=["no", "yes"], delta=1e-5, steps=1, epochs=None
    )
    with pytest.warns(NotPrivateWarning, match="MinMaxScaler"):
        fitted = make_pipeline(MinMaxScaler(), net).fit(X, Y)
    assert any("MinMaxScaler" in line for line in fitted[-1].privacy_.assumptions)
    with pytest.warns(NotPrivateWarning, match="score"):
        net.fit(X, Y).score(X, Y)
    with pytest.warns(NotPrivateWarning, match="scores"):
        cross_val_score(net, X, Y, cv=2)


def test_a_warning_in_a_script_points_at_the_script(tmp_path: Path) -> None:
    """There the user's frame is the last one."""
    script = tmp_path / "script.py"
    script.write_text(
        "from sidelight import PrivateClassifier\n"
        "import numpy as np\n"
        "fit = PrivateClassifier('dp_sgd', epsilon=1, delta=0.1, bounds=(-1, 1), classes=[0, 1]).fit\n"
        "fit(np.zeros((50, 2)), np.zeros(50))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert f"{script}:4: PrivacyWarning: delta = 0.1 is at least 1/n" in done.stderr
