"""Products of two numbers: functions of one record, chosen on public rows, as many as the noise allows."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sidelight.data.features import FeaturePlan
from sidelight.data.interactions import with_interactions
from sidelight.data.schema import Column, Schema, TargetColumn
from sidelight.errors import InputError
from sidelight.tables import TableModel, fit_tables

TARGET = TargetColumn("y", "classification", classes=("no", "yes"))
NUMBERS = {name: Column("number", (0.0, 8.0), (2.0, 4.0, 6.0)) for name in ("a", "b", "c")}


def crossed(n: int, seed: int = 0, columns: int = 3) -> pd.DataFrame:
    """Yes where the first two numbers are on the same side of their middle: no line tells."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.uniform(0, 8, (n, columns)), columns=list("abcdefghijklmnop"[:columns]))
    return frame.assign(y=np.where((frame.a > 4) == (frame.b > 4), "yes", "no"))


def chosen(public: pd.DataFrame | None, **changes: object) -> tuple[tuple[str, str], ...]:
    schema = Schema.learn(crossed(400) if public is None else public, "y")
    common = {
        "method": "auto",
        "n": 20_000,
        "epsilon": 1.0,
        "delta": 1e-6,
        "relation": "replace-one",
    }
    found = with_interactions(
        schema, public, None if public is None else public.y.to_numpy(), **{**common, **changes}
    )  # type: ignore[arg-type]
    assert found.interactions is not None
    return found.interactions


def test_a_product_is_a_function_of_one_record() -> None:
    plan = FeaturePlan(Schema(TARGET, NUMBERS, interactions=(("a", "b"), ("a", "c"))))
    frame = pd.DataFrame({"a": [0.0, 8.0, 4.0, 99.0, None], "b": [8.0, 8.0, 1.0, 3.0, 1.0], "c": [1.0] * 5})
    whole = plan.encode(frame)
    assert plan.names[-2:] == ["a × b", "a × c"]
    np.testing.assert_allclose(whole[:, -2], [-1, 1, 0, -0.25, 0], atol=1e-6)  # clipped; missing is 0
    for k in range(len(frame)):
        np.testing.assert_array_equal(plan.encode(frame[k : k + 1])[0], whole[k])
    limits = plan.bounds()
    assert (np.abs(whole) <= np.maximum(-limits.lower, limits.upper)).all()


def test_the_effect_of_one_number_may_depend_on_another() -> None:
    private, public, test = crossed(6000, 1), crossed(120, 2), crossed(2000, 3)
    model = fit_tables(private, public, target="y", epsilon=1.0, delta=1e-6, random_state=0)
    assert np.mean(model.predict(test) == test.y) > 0.9
    plain = Schema.learn(public, "y")
    plain = Schema(plain.target, plain.columns, interactions=())
    model = fit_tables(
        private, public, schema=plain, method="precision_weighting", epsilon=1.0, delta=1e-6, random_state=0
    )
    assert np.mean(model.predict(test) == test.y) < 0.6


def test_of_too_many_the_planted_one_is_among_the_first() -> None:
    found = chosen(crossed(400, columns=16))
    assert len(found) == 75 and found[0] == ("a", "b")


def test_noise_and_missing_public_rows_leave_none() -> None:
    assert len(chosen(crossed(400))) == 3
    assert chosen(crossed(400), epsilon=0.01) == () and chosen(crossed(400), n=40) == ()
    assert chosen(None) == () and chosen(crossed(19)) == ()
    assert chosen(crossed(400), method="only_public") == ()


def test_half_the_room_goes_to_half_the_pairs() -> None:
    """The limit is one of noise: the stronger it is, the fewer products there are."""
    counts = [
        len(chosen(crossed(400, columns=12), epsilon=epsilon, n=8_000)) for epsilon in (0.1, 0.2, 0.3, 1.0)
    ]
    assert counts == sorted(counts) and counts[0] == 0 < counts[1] < counts[-1] == 66


def test_a_schema_file_and_a_model_folder_keep_them(tmp_path: Path) -> None:
    schema = Schema(TARGET, NUMBERS, interactions=(("a", "c"),))
    schema.write(tmp_path / "schema.json")
    assert Schema.read(tmp_path / "schema.json") == schema
    assert "interactions" not in Schema(TARGET, NUMBERS).to_dict()
    model = fit_tables(crossed(3000, 1), crossed(400), schema=schema, epsilon=1.0, random_state=0)
    model.save(tmp_path / "model")
    again = TableModel.load(tmp_path / "model")
    assert again.schema.interactions == (("a", "c"),)
    np.testing.assert_array_equal(again.predict(crossed(50, 9)), model.predict(crossed(50, 9)))


@pytest.mark.parametrize(
    "pairs", [[["a", "a"]], [["a"]], [["a", "z"]], [["a", "b"], ["b", "a"]], "a", [["a", "s"]], [[1, 2]]]
)
def test_a_pair_that_is_none_is_refused_in_one_line(pairs: object) -> None:
    columns = {**NUMBERS, "s": Column("category", categories=("x", "y"))}
    declared = Schema(TARGET, columns).to_dict() | {"interactions": pairs}
    with pytest.raises(InputError, match="interactions"):
        Schema.from_dict(json.loads(json.dumps(declared)))


def test_an_estimator_on_a_frame_has_the_model_of_fit_tables() -> None:
    from sidelight import PrivateClassifier

    private, public, test = (
        frame.assign(d=np.where(frame.c > 4, "left", "right"))
        for frame in (crossed(6000, 1), crossed(120, 2), crossed(2000, 3))
    )
    told = fit_tables(private, public, target="y", epsilon=1.0, delta=1e-6, validation=0.0, random_state=0)
    model = PrivateClassifier(epsilon=1.0, delta=1e-6, random_state=0)
    model.fit(private.drop(columns="y"), private.y, public.drop(columns="y"), public.y)
    assert model.schema_ is not None and told.schema.interactions
    assert model.schema_.interactions == told.schema.interactions
    assert model.privacy_.details["features"] == told.privacy_.details["features"]
    assert np.mean(model.predict(test.drop(columns="y")) == test.y) > 0.9
    noisy = PrivateClassifier(epsilon=0.01, delta=1e-6, random_state=0)
    noisy.fit(private.drop(columns="y"), private.y, public.drop(columns="y"), public.y)
    assert noisy.schema_ is not None and noisy.schema_.interactions == ()


def test_a_declared_schema_keeps_its_products_in_an_estimator(tmp_path: Path) -> None:
    from sidelight import PrivateRegressor

    private, public = crossed(3000, 1), crossed(60, 2)
    target = TargetColumn("y", "regression", bounds=(0.0, 1.0))
    for declared, kept in (((("a", "c"),), (("a", "c"),)), ((), ()), (None, 3)):
        model = PrivateRegressor(
            epsilon=1.0, schema=Schema(target, NUMBERS, interactions=declared), random_state=0
        )
        y, y_public = ((frame.y == "yes").astype(float) for frame in (private, public))
        model.fit(private[["a", "b", "c"]], y, public[["a", "b", "c"]], y_public)
        assert model.schema_ is not None
        found = model.schema_.interactions
        assert found == kept or len(found or ()) == kept
        model.save(tmp_path / "model", overwrite=True)
        assert PrivateRegressor.load(tmp_path / "model").schema_.interactions == found  # type: ignore[union-attr]
