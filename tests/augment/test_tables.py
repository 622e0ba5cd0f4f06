"""Synthetic rows look like the public ones, column by column and together, and need no PyTorch."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from sidelight.augment.synthesis import synthesize  # noqa: E402
from sidelight.errors import InputError  # noqa: E402


def people(rows: int = 600, seed: int = 0) -> Any:
    """Numbers, a spike at zero, text, missing values, truth values, a date; `rich` follows age and job."""
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 12, rows).clip(17, 90)
    job = rng.choice(["clerk", "smith", "judge"], rows, p=[0.5, 0.3, 0.2])
    score = 0.08 * (age - 40) + 2.0 * (job == "judge") + rng.normal(0, 0.5, rows)
    frame = pd.DataFrame(
        {
            "age": age.round().astype(int),
            "job": job,
            "wage": np.exp(score / 2 + 8),
            "gain": np.where(rng.random(rows) < 0.9, 0, rng.integers(100, 9999, rows)),
            "grade": pd.array(rng.integers(1, 100, rows), dtype="Int64"),
            "town": pd.Categorical(rng.choice(["a", "b"], rows), categories=["a", "b", "c"]),
            "member": rng.random(rows) < 0.3,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 5, rows), unit="D"),
            "rich": np.where(score > 0.7, "yes", "no"),
        }
    )
    frame.loc[rng.random(rows) < 0.1, "wage"] = np.nan
    frame.loc[rng.random(rows) < 0.2, "grade"] = pd.NA
    frame.loc[rng.random(rows) < 0.1, "job"] = None
    return frame


def test_columns_types_and_values_are_of_the_same_kind() -> None:
    public = people()
    made = synthesize(public, 900, random_state=1, target="rich")
    assert len(made) == 900 and list(made.columns) == list(public.columns)
    assert (made.dtypes == public.dtypes).all() and list(made.index) == list(range(900))
    for name in ("job", "town", "member", "since", "rich"):
        assert set(made[name].dropna()) <= set(public[name].dropna())
    for name in ("age", "wage", "gain", "grade"):
        assert made[name].min() >= public[name].min() and made[name].max() <= public[name].max()


def test_marginals_are_kept_with_spikes_and_missing_values() -> None:
    public = people()
    made = synthesize(public, 4000, random_state=2, target="rich")
    for name in ("age", "wage", "grade"):
        spread = float(public[name].std())
        assert abs(float(made[name].mean()) - float(public[name].mean())) < 0.15 * spread
        assert abs(float(made[name].std()) / spread - 1) < 0.15
        assert abs(float(made[name].isna().mean() - public[name].isna().mean())) < 0.04
    assert abs((made["gain"] == 0).mean() - (public["gain"] == 0).mean()) < 0.04
    shares = made["job"].value_counts(normalize=True, dropna=False)
    assert (shares - public["job"].value_counts(normalize=True, dropna=False)).abs().max() < 0.04


def test_the_target_stays_tied_to_the_other_columns() -> None:
    public, fresh = people(600), people(4000, seed=9)
    made = synthesize(public, 4000, random_state=3, target="rich")

    def rule(frame: Any) -> Any:
        return (
            frame.assign(young=frame["age"] < 40)
            .groupby(["job", "young"])["rich"]
            .agg(lambda r: r.eq("yes").mean())
        )

    truth = rule(fresh)
    assert float(truth.max() - truth.min()) > 0.8  # there is something to keep
    assert float((rule(made) - truth).abs().max()) < 0.15
    numbers = ["age", "wage"]
    assert abs(made[numbers].corr().iloc[0, 1] - public[numbers].corr().iloc[0, 1]) < 0.08
    assert (
        made["rich"].value_counts(normalize=True) - public["rich"].value_counts(normalize=True)
    ).abs().max() < 0.04


def test_a_numeric_target_moves_with_the_others() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    public = pd.DataFrame({"x": x, "y": 3 * x + rng.normal(0, 0.3, 400)})
    made = synthesize(public, 2000, random_state=0, target="y")
    assert abs(np.corrcoef(made["x"], made["y"])[0, 1] - np.corrcoef(public["x"], public["y"])[0, 1]) < 0.02
    assert len(set(made["y"])) > 1500


def test_rows_are_new_and_the_seed_decides_them() -> None:
    public = people()
    one, same, other = (synthesize(public, 500, random_state=seed, target="rich") for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(one, same)
    assert not one.equals(other)
    known = set(map(tuple, public.astype(str).to_numpy()))
    assert np.mean([tuple(row) in known for row in one.astype(str).to_numpy()]) < 0.2


@pytest.mark.parametrize("target", [None, "mixed", "short", "truth", 5])
def test_every_type_of_column_is_kept(target: Any) -> None:
    rng, n = np.random.default_rng(0), 60
    public = pd.DataFrame(
        {
            "mixed": pd.Series(["a", 1, None] * 20, dtype=object),
            "truth": pd.array([True, None, False] * 20, dtype="boolean"),
            "short": pd.array(rng.random(n), dtype="Float32"),
            "byte": rng.integers(-100, 100, n).astype(np.int8),
            "long": rng.integers(2**62, 2**63 - 1, n),
            "text": pd.array(["x", "y", None] * 20, dtype="string"),
            "span": pd.to_timedelta(rng.integers(0, 9, n), unit="h"),
            "zone": pd.date_range("2020", periods=n, tz="UTC"),
            "same": 1,
            5: rng.random(n).astype(np.float32),
        }
    )
    made = synthesize(public, 100, random_state=0, target=target)
    assert (made.dtypes == public.dtypes).all() and list(made.columns) == list(public.columns)
    assert set(made["long"]) <= set(public["long"])  # too long for the arithmetic of floats


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_few_rows_in_and_out(rows: int) -> None:
    public = people(rows=3).head(max(rows, 1))
    made = synthesize(public, rows, random_state=0, target="rich")
    assert len(made) == rows and (made.dtypes == public.dtypes).all()


def test_an_empty_column_a_lone_class_and_a_missing_target() -> None:
    public = people(50).assign(nothing=np.nan)
    public.loc[0, "rich"] = "perhaps"
    public.loc[1, "rich"] = None
    made = synthesize(public, 3000, random_state=0, target="rich")
    assert made["nothing"].isna().all() and made["rich"].notna().all()
    lone = made[made["rich"] == "perhaps"]
    assert len(lone) and (lone["age"] == public.loc[0, "age"]).all()  # it has no neighbors to move along
    assert len(synthesize(public, 20, random_state=0)) == 20  # without a target all columns are alike


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: synthesize(f.to_numpy(), 5, random_state=0), "DataFrame"),
        (lambda f: synthesize(f, -1, random_state=0), "rows must be"),
        (lambda f: synthesize(f, 2.5, random_state=0), "rows must be"),
        (lambda f: synthesize(f, 5, random_state=0, target="income"), "no column 'income'"),
        (lambda f: synthesize(f.head(0), 5, random_state=0), "at least one public row"),
        (
            lambda f: synthesize(f.assign(rich=None), 5, random_state=0, target="rich"),
            "at least one public row",
        ),
        (lambda f: synthesize(f.assign(age=[*range(len(f) - 1), np.inf]), 5, random_state=0), "infinite"),
        (lambda f: synthesize(f.assign(job=[[1]] * len(f)), 5, random_state=0), "not single values"),
        (lambda f: synthesize(pd.concat([f, f], axis=1), 5, random_state=0), "same name"),
        (lambda f: synthesize(f, 5, random_state=0, neighbors=0), "neighbors"),
        (lambda f: synthesize(f, 5, random_state=0, swap=2.0), "swap"),
        (lambda f: synthesize(f, 5, random_state=-1), "random_state"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call(people(30))


def test_tables_need_no_torch() -> None:
    code = "import sys, sidelight.augment.synthesis as t; assert 'torch' not in sys.modules; t.synthesize"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
