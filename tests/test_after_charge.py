"""What a user's settings outside of sidelight (warning filters, umask, wrappers) may not do to a fit."""

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor

from sidelight import Ledger, PrivateClassifier, PrivateRegressor
from sidelight.data.coordinates import Coordinates
from sidelight.data.guide import PublicGuide
from sidelight.errors import InputError, PrivacyWarning, RecordsWarning
from sidelight.observers import FitProgress
from sidelight.privacy.observer import Observer
from sidelight.tables import fit_tables


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, X[:, 0] + 0.5 * X[:, 1] ** 2 + rng.normal(0, 0.1, n)


def table(n: int, seed: int) -> pd.DataFrame:
    X, y = rows(n, seed)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "t": np.where(y > 0.2, "yes", "no")})


# ---------------------------------------------------------------------------------------------------
# warnings that are errors


def test_a_warning_of_the_paid_comparison_does_not_end_the_run() -> None:
    X, y = rows(3_000, 0)
    Xp, yp = rows(200, 1)
    model = PrivateClassifier(epsilon=8.0, random_state=0)
    with pytest.warns(PrivacyWarning, match="disagree"), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "a seed|ε = ")
        model.fit(X, y > 0.2, Xp, yp < 0.2)
    assert np.isfinite(model.coef_).all()


@pytest.mark.filterwarnings("ignore:public and private records disagree")  # in some runs, by noise
def test_a_warning_of_the_health_check_does_not_end_the_run(tmp_path: Path) -> None:
    private, public = table(3_000, 0), table(200, 1)
    private["t"] = private["t"].str.upper() + "!"  # none of the classes
    book = Ledger.create(tmp_path / "book")
    book.register("d", relation="replace-one", epsilon=9.0, delta=1e-5)
    with pytest.warns(RecordsWarning, match="contributed nothing"), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "a seed|ε = ")
        model = fit_tables(private, public, target="t", epsilon=4.0, ledger=book, random_state=0)
    assert len(book.charges("d")) == 1
    assert model.privacy_.ledger is not None


# ---------------------------------------------------------------------------------------------------
# wrappers


def test_a_transformed_target_with_public_targets_is_refused_before_the_charge() -> None:
    X, y = rows(500, 0)
    wrapped = TransformedTargetRegressor(
        PrivateRegressor(epsilon=1.0, random_state=0), func=np.expm1, inverse_func=np.log1p
    )
    with pytest.raises(InputError, match="y_public"):
        wrapped.fit(X, y, X_public=X[:100] * 0.9, y_public=y[:100])


@pytest.mark.filterwarnings("ignore:.*works with the private records")
def test_a_transformed_target_with_declared_bounds_is_fitted() -> None:
    X, y = rows(2_000, 0)
    inner = PrivateRegressor(epsilon=4.0, bounds=(-1, 1), target_bounds=(-1.0, 4.0), random_state=0)
    wrapped = TransformedTargetRegressor(inner, func=np.expm1, inverse_func=np.log1p).fit(X, y)
    assert np.abs(wrapped.predict(X[:50]) - y[:50]).mean() < 0.5


# ---------------------------------------------------------------------------------------------------
# classes


def test_classes_may_be_declared_for_tables() -> None:
    private, public = table(2_000, 0), table(200, 1)
    model = fit_tables(
        private, public, target="t", classes=["maybe", "no", "yes"], epsilon=4.0, random_state=0
    )
    assert list(model.estimator.classes_) == ["maybe", "no", "yes"]
    assert model.predict_proba(private[:5]).shape == (5, 3)


@pytest.mark.parametrize("classes", [["no"], ["no", "no"], ["no", 1], "no", []])
def test_wrong_classes_are_refused_before_the_charge(classes: object) -> None:
    with pytest.raises(InputError, match="classes"):
        fit_tables(table(200, 0), table(100, 1), target="t", classes=classes, epsilon=1.0)  # type: ignore[arg-type]


def test_classes_of_a_regression_are_refused() -> None:
    with pytest.raises(InputError, match="classes"):
        fit_tables(
            table(200, 0), table(100, 1), target="a", task="regression", classes=["x", "y"], epsilon=1.0
        )


# ---------------------------------------------------------------------------------------------------
# progress, files, predictions


class Heard(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        self.said.append("start")

    def on_read(self, done: int, records: int) -> None:
        self.said.append("reading" if done < records else "read")

    def on_release(self) -> None:
        self.said.append("release")


def test_progress_says_reading_while_it_reads() -> None:
    heard = Heard()
    fit_tables(table(500, 0), table(100, 1), target="t", epsilon=1.0, random_state=0, observers=[heard])
    assert heard.said[:4] == ["start", "reading", "read", "release"]
    shown: list[str] = []

    class Shown(FitProgress):
        def show(self, text: str, *, total: int | None) -> None:
            shown.append(text)

    bar = Shown()
    bar.on_start(method="auto", epsilon=1.0, releases=3)
    bar.on_read(0, 10)
    bar.on_read(10, 10)
    assert ["reading" in text for text in shown] == [False, True, False]
    assert "training" in shown[-1]


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027, 0o000])
def test_files_of_a_model_have_the_modes_that_a_user_s_files_have(tmp_path: Path, umask: int) -> None:
    model = PrivateRegressor(epsilon=1.0, random_state=0).fit(*rows(200, 0), *rows(50, 1))
    before = os.umask(umask)
    try:
        model.save(tmp_path / "model")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o775 & ~umask
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {0o664 & ~umask}, modes


def test_a_prediction_asks_the_public_models_once(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows(500, 0)
    model = PrivateRegressor(epsilon=4.0, random_state=0).fit(X, y, *rows(100, 1))
    asked: list[int] = []
    honest = PublicGuide.of

    def counted(guide: PublicGuide, some: np.ndarray) -> object:
        asked.append(len(some))
        return honest(guide, some)

    monkeypatch.setattr(PublicGuide, "of", counted)
    found = model.predict(X[:10])
    assert asked == [10]
    assert np.isfinite(found).all()
    assert not hasattr(Coordinates, "offset")
