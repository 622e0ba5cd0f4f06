"""Bad input gets a clear error, or a documented treatment, and no message quotes a private value."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sidelight.data.inputs import check_targets
from sidelight.errors import InputError, PrivacyWarning, SidelightError, UnboundedSensitivity
from sidelight.estimators import PrivateClassifier, PrivateRegressor, estimator_input
from sidelight.methods.declare import METHODS
from sidelight.privacy.ledger import Ledger

pandas = pytest.importorskip("pandas")
SECRET, WORD = 4711.25, "Wallenstein"  # a private number and a private text
N = 40
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 3))
X[0] = SECRET
Y = np.where(RNG.random(N) < 0.5, 0, 1)
X_PUBLIC, Y_PUBLIC = RNG.uniform(-1, 1, (12, 3)), np.arange(12) % 2
TARGETS = np.where(np.arange(N) == 0, SECRET, X[:, 1])

CLASSIFIER = {"method": "dp_sgd", "bounds": (-1, 1), "classes": [0, 1], "random_state": 0}
REGRESSOR = {"method": "dp_sgd", "bounds": (-1, 1), "target_bounds": (-1, 1), "random_state": 0}


def classify(*data: Any, **changes: Any) -> Callable[[], Any]:
    return lambda: PrivateClassifier(**{"epsilon": 1.0, **{**CLASSIFIER, **changes}}).fit(*(data or (X, Y)))


def regress(*data: Any, **changes: Any) -> Callable[[], Any]:
    return lambda: PrivateRegressor(**{"epsilon": 1.0, **{**REGRESSOR, **changes}}).fit(
        *(data or (X, TARGETS))
    )


def text_frame() -> Any:
    frame = pandas.DataFrame(X, columns=["age", "hours", "town"])
    frame["town"] = WORD
    return frame


def named(columns: list[str], rows: Any = X_PUBLIC) -> Any:
    return pandas.DataFrame(rows, columns=columns)


PRIVATE_FRAME = named(["a", "b", "c"], X)
SPOILT = np.vstack([X_PUBLIC[:-1], [[np.nan, 0, 0]]])

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # private table
    "1-D X": (classify(X[:, 0], Y), InputError, "expected 2D X.*got 1 dimension.*Reshape your data"),
    "0-D X": (classify(SECRET, Y), InputError, "got 0 dimension"),
    "3-D X": (classify(X[:, :, None], Y), InputError, "got 3 dimension"),
    "ragged X": (classify([[SECRET, 1.0], [2.0]], [0, 1]), InputError, "not all of one length"),
    "no rows": (classify(X[:0], Y[:0]), InputError, "0 sample"),
    "no columns": (classify(X[:, :0], Y), InputError, "0 feature"),
    "text among rows": (classify([[WORD], 3], [0, 1]), InputError, "not all of one length"),
    "text column": (
        classify(text_frame(), Y, text_frame()[:12], Y_PUBLIC),
        InputError,
        "a frame that is read by a schema has its bounds there",
    ),
    # private targets
    "short y": (classify(X, Y[:-1]), InputError, "one target for each row"),
    "no y": (classify(X, None), InputError, "requires y to be passed"),
    "2-D y": (classify(X, X), InputError, "y should be a 1d array, got an array of 2 dimension"),
    "sparse y": (classify(X, sp.csr_array(X)), InputError, "not a sparse matrix"),
    # public table
    "other columns": (classify(X, Y, X_PUBLIC[:, :2], Y_PUBLIC), InputError, "X has 3 features, X_public 2"),
    "unknown column": (
        classify(PRIVATE_FRAME, Y, named(["a", "b", "d"]), Y_PUBLIC),
        InputError,
        "Missing: 'c'; unknown: 'd'",
    ),
    "other order": (
        classify(PRIVATE_FRAME, Y, named(["b", "a", "c"]), Y_PUBLIC),
        InputError,
        "in the same order",
    ),
    "unknown public class": (
        classify(X, Y, X_PUBLIC, np.arange(12) % 3),
        InputError,
        "y_public holds labels that are not in classes: 2",
    ),
    "public NaN": (classify(X, Y, SPOILT, Y_PUBLIC), InputError, "X_public must be finite"),
    "public infinite target": (
        regress(X, TARGETS, X_PUBLIC, np.where(Y_PUBLIC, 1, np.inf)),
        InputError,
        "public targets must be finite",
    ),
    "y_public alone": (classify(X, Y, None, Y_PUBLIC), InputError, "X_public, which is missing"),
    "public text": (classify(X, Y, X_PUBLIC.astype(str), Y_PUBLIC), InputError, "X_public must be real"),
    "public lengths": (classify(X, Y, X_PUBLIC, Y_PUBLIC[1:]), InputError, "y_public has 11 targets"),
    "empty public set, needed": (
        classify(X, Y, X_PUBLIC[:0], Y_PUBLIC[:0], method="only_public"),
        InputError,
        "only_public needs public records",
    ),
    "empty public set, for bounds": (
        classify(X, Y, X_PUBLIC[:0], Y_PUBLIC[:0], bounds=None),
        UnboundedSensitivity,
        "Pass bounds=",
    ),
    # classes
    "one class": (classify(classes=[0]), InputError, "at least 2 classes, and classes has 1 class"),
    "one public class": (
        classify(X, Y, X_PUBLIC, np.zeros(12), classes=None),
        InputError,
        "y_public has 1 class",
    ),
    "three classes, two-class loss": (
        classify(classes=[0, 1, 2], loss="huber"),
        InputError,
        "Only binary classification is supported by the huber loss",
    ),
    "continuous classes": (classify(classes=[0.5, 1.5]), InputError, "Unknown label type"),
    "NaN among classes": (classify(classes=[0, np.nan]), InputError, "contains NaN"),
    "nested classes": (classify(classes=[[0, 1]]), InputError, "classes must be a list of labels"),
    # budget
    **{
        f"epsilon={value}": (classify(epsilon=value), InputError, "'epsilon' parameter")
        for value in (0, -1.0, float("nan"), "much", None)
    },
    "epsilon=inf": (classify(epsilon=float("inf")), InputError, "epsilon"),
    **{
        f"delta={value}": (classify(delta=value), InputError, "'delta' parameter")
        for value in (0, 1, -0.1, 1.5, float("nan"), "small")
    },
    # declarations
    "bounds upside down": (classify(bounds=(1, -1)), InputError, "lower bounds must not exceed upper"),
    "three bounds": (classify(bounds=(0, 1, 2)), InputError, "bounds must be a pair"),
    "text bounds": (classify(bounds=("low", "high")), InputError, "bounds must be a pair"),
    "bounds for other features": (classify(bounds=([0, 0], [1, 1])), InputError, "one for each of 3"),
    "infinite bounds": (classify(bounds=(-np.inf, 1)), InputError, "finite"),
    "target bounds upside down": (regress(target_bounds=(1, 0)), InputError, "low < high"),
    "three target bounds": (regress(target_bounds=(0, 1, 2)), InputError, "must be a pair"),
    "max_norm=0": (classify(max_norm=0), InputError, "'max_norm' parameter"),
    "negative regularization": (classify(regularization=-1), InputError, "'regularization' parameter"),
    "unknown method": (classify(method="dp_sdg"), InputError, "Did you mean 'dp_sgd'"),
    "a function as method": (classify(method=METHODS["dp_sgd"]), InputError, "dp_sgd is a function: call it"),
    "unknown loss": (classify(loss="hnge"), InputError, "'loss' parameter"),
    "unknown relation": (classify(relation="swap"), InputError, "'relation' parameter"),
    "unknown assumption": (classify(assume_public=("labels",)), InputError, "accepts classes, bounds"),
    "assumption as text": (classify(assume_public="classes"), InputError, "'assume_public' parameter"),
    "seed of another kind": (classify(random_state=0.5), InputError, "'random_state' parameter"),
    "dataset without ledger": (classify(dataset="people"), InputError, "ledger"),
    "sparse around the middle": (
        classify(sp.csr_array(X), Y, center="middle"),
        InputError,
        "a sparse X keeps its zeros",
    ),
}


def refusal(attempt: Callable[[], Any], kind: type[Exception], message: str | None) -> None:
    """The contract: this error, with this message, and nothing private in what a user gets to see."""
    with pytest.raises(kind, match=message) as caught:
        attempt()
    assert isinstance(caught.value, SidelightError)
    chain: BaseException | None = caught.value
    while chain is not None:  # the error, and what a traceback prints above it
        assert not leaks(str(chain)), "a message quotes a private value"
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


def leaks(text: str) -> bool:
    return any(secret in text for secret in (WORD, "4711", "4.711"))


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_clearly(case: str) -> None:
    refusal(*REFUSED[case])


@pytest.mark.parametrize("case", ["1-D X"])
def test_contract_catches_messages_that_quote_values(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without our own checks, scikit-learn's message would show the private value."""
    monkeypatch.setattr(estimator_input, "private_table", lambda X, advice="": X)
    attempt, kind, _ = REFUSED[case]
    with pytest.raises(AssertionError, match="quotes"):
        refusal(attempt, kind, None)


def test_refusals_cost_nothing() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=1.0, delta=1e-5)
    for attempt in (
        classify(X, Y[:-1], ledger=ledger),
        classify(X, Y, X_PUBLIC, np.arange(12) % 3, ledger=ledger),
        classify(ledger=ledger, method="only_public"),
        classify(ledger=ledger, relation="replace-one"),
    ):
        with pytest.raises(SidelightError):
            attempt()
    assert ledger.charges("people") == []


# ---------------------------------------------------------------------------------------------------
# what is not refused, because an error would tell


@pytest.mark.parametrize("label", [np.nan, np.inf, -1, 7, 0.5])
def test_no_private_label_makes_a_fit_fail(label: float) -> None:
    labels = Y.astype(float)
    labels[3] = label
    model = classify(X, labels)()
    assert model.classes_.tolist() == [0, 1]
    everyone = classify(X, np.full(N, label))()
    assert everyone.privacy_.to_dict()["details"]["private_records"] == N


@pytest.mark.parametrize("n", [1, 2])
def test_few_records(n: int) -> None:
    for model in (classify(X[:n], Y[:n])(), regress(X[:n], TARGETS[:n])()):
        assert np.isfinite(model.coef_).all()


def test_more_features_than_records() -> None:
    wide = RNG.uniform(-1, 1, (10, 200))
    assert np.isfinite(classify(wide, Y[:10])().coef_).all()
    public = RNG.uniform(-1, 1, (4, 200)), np.array([0, 1, 0, 1])
    assert np.isfinite(classify(wide, Y[:10], *public, method="auto", bounds=None)().coef_).all()


def test_constant_features_say_nothing() -> None:
    constant = X_PUBLIC.copy()
    constant[:, 1] = 3.0
    model = classify(X, Y, constant, Y_PUBLIC, bounds=None)()
    assert model.coef_[0, 1] == 0 and np.isfinite(model.coef_).all()
    moved = X.copy()
    moved[:, 1] = 99.0
    np.testing.assert_array_equal(model.decision_function(moved), model.decision_function(moved * [1, 0, 1]))
    declared = classify(bounds=((-1, 2, -1), (1, 2, 1)))()
    assert declared.coef_[0, 1] == 0


def test_private_records_of_one_class_are_nobodys_business() -> None:
    model = classify(X, np.zeros(N, dtype=int))()
    assert model.classes_.tolist() == [0, 1]


def test_empty_public_set_is_none() -> None:
    one, two = classify(X, Y, X_PUBLIC[:0], Y_PUBLIC[:0])(), classify(X, Y)()
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert one.privacy_.details["public_records"] == 0


def test_delta_from_one_over_n_warns() -> None:
    with pytest.warns(PrivacyWarning, match="0.025"):
        classify(delta=0.025)()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        classify(delta=0.0249)()


def test_column_vector_is_taken_with_a_warning() -> None:
    from sklearn.exceptions import DataConversionWarning

    with pytest.warns(DataConversionWarning):
        assert check_targets(Y[:, None], rows=N).shape == (N,)


# ---------------------------------------------------------------------------------------------------
# prediction


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.full((2, 3), np.nan), "contains NaN"),
        (np.full((2, 3), np.inf), "contains infinity"),
        (np.zeros(3), "Reshape your data"),
        (np.zeros((2, 4)), "X has 4 features, but PrivateClassifier is expecting 3"),
        (np.full((2, 3), "x"), "must be real numbers"),
    ],
)
def test_bad_tables_are_refused_in_prediction(table: Any, message: str) -> None:
    model = classify(X, Y)()
    for predict in (model.predict, model.decision_function, model.predict_proba):
        with pytest.raises(InputError, match=message):
            predict(table)


def test_private_rows_are_not_taken_for_public_ones() -> None:
    X, y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2
    frame = pandas.DataFrame(X, columns=list("abc"))
    for private, public in ((X, X), (X, X[:]), (frame, frame)):
        with pytest.raises(InputError, match="must not be X"):
            PrivateClassifier(epsilon=1.0).fit(private, y, X_public=public, y_public=y)
