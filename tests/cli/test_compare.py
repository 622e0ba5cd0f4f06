"""`sidelight compare`, `sidelight.compare`, and the comparison that they and the demonstration stand on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

import sidelight  # noqa: E402
from sidelight.comparison import rehearsals  # noqa: E402
from sidelight.comparison.stages import Comparison, Stage, Trial, trials  # noqa: E402
from sidelight.errors import InputError, SidelightError  # noqa: E402

FEW = ("only_public", "only_private", "non_private")


def table(rows: int, *, seed: int = 0, regression: bool = False) -> Any:
    """Mixed columns, of which two matter."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, rows)
    town = rng.choice(["here", "there", "elsewhere"], rows)
    noise = rng.normal(size=rows)
    pull = (age - 48) / 12 + np.where(town == "here", 1.5, -0.7)
    frame = pd.DataFrame({"age": age, "town": town, "noise": noise})
    if regression:
        return frame.assign(sales=100 + 10 * pull + 4 * rng.normal(size=rows))
    return frame.assign(bought=np.where(pull + 0.7 * rng.normal(size=rows) > 0, "yes", "no"))


@pytest.fixture
def public(tmp_path: Path) -> Path:
    path = tmp_path / "public.csv"
    table(120).to_csv(path, index=False)
    return path


# ---------------------------------------------------------------------------------------------------
# the rehearsal


def test_it_tells_about_what_a_real_fit_reaches() -> None:
    """Truth within the range that is told, on data that the rehearsal never sees."""
    from sidelight.tables import fit_tables

    private, test = table(4000, seed=1), table(4000, seed=2)
    covered = []
    for seed in (0, 10, 20, 30):  # an interval of 95 % may miss one of four, seldom two
        shown = table(160, seed=seed)
        found = sidelight.compare(
            shown, rows=4000, target="bought", epsilon=(0.5,), methods=("auto", "only_public")
        )
        real = fit_tables(private, shown, target="bought", epsilon=0.5, validation=0.0, random_state=0)
        accuracy = float(np.mean(np.asarray(real.predict(test)) == test["bought"].to_numpy()))
        ends = found.comparison.range("auto", 0.5)
        assert ends is not None and ends[1] - ends[0] < 0.25
        covered.append(ends[0] <= accuracy <= ends[1])
    assert sum(covered) >= 3
    assert accuracy > 0.75  # so that there was something to tell


def test_noise_shows() -> None:
    """A hundred private rows at a tiny ε teach nothing; many at a large one do."""
    cells = [
        sidelight.compare(table(120), rows=rows, target="bought", epsilon=(at,), methods=("only_private",))
        for rows, at in ((100, 0.01), (5000, 2.0))
    ]
    (poor, _), (good, _) = (one.comparison.of("only_private", one.comparison.epsilons[0]) for one in cells)
    assert good > poor + 0.1


def test_a_regression_is_scored_by_r_squared() -> None:
    found = sidelight.compare(
        table(120, regression=True), rows=3000, target="sales", epsilon=(2.0,), methods=FEW
    )
    assert found.task == "regression" and found.comparison.score == "R²"
    score = found.comparison.of("non_private", 2.0)
    assert score is not None and 0.3 < score[0] < 1


def test_parts_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row makes data, guides and judges at once; every row judges once a repeat."""
    from sidelight.augment import synthesis as augment

    frame, sources = table(60), []
    make = augment.synthesize

    def spy(source: Any, rows: int, *, random_state: int, target: str) -> Any:
        sources.append(set(source.index))
        return make(source, rows, random_state=random_state, target=target)

    monkeypatch.setattr(augment, "synthesize", spy)
    seen: list[Stage] = []
    found = rehearsals._Plan(*_planned(frame))
    for stage in found.stages(1):
        seen.append(stage)
    judges = [set(stage.ids.tolist()) for stage in seen]
    assert sorted(i for part in judges for i in part) == list(range(60))
    for stage, source, judge in zip(seen, sources, judges, strict=True):
        guide = set(stage.X_public.index)
        assert not source & judge and not source & guide and not guide & judge
        assert len(source) + len(judge) + len(guide) == 60
        assert set(stage.y_test) == set(stage.y_public) == {"no", "yes"}
        assert len(stage.y_rest) == len(source) + len(guide)
        assert len(stage.y) == 300 and len(stage.y_synthetic) == rehearsals.SYNTHETIC_TEST_ROWS


def _planned(frame: Any) -> tuple[Any, ...]:
    frame, schema = rehearsals._public(frame, "bought", None, None)
    return frame, schema, 300, 1e-5, None, None, 0


def test_many_rows_are_rehearsed_with_fewer_at_the_same_noise() -> None:
    """n·μ is what a mean sees."""
    from sidelight.privacy.conversions import gdp_mu

    frame, schema = rehearsals._public(table(60), "bought", None, None)
    plan = rehearsals._Plan(frame, schema, 40_000, 1e-6, None, None, 0)
    stage = next(plan.stages(1))
    model = plan.estimator("auto", 0.5, stage)
    assert plan.rehearsed == rehearsals.MOST_ROWS
    assert gdp_mu(model.epsilon, 1e-6) * plan.rehearsed == pytest.approx(gdp_mu(0.5, 1e-6) * 40_000, rel=1e-3)
    huge = rehearsals._Plan(frame, schema, 10**9, 1e-6, None, None, 0)
    assert huge.estimator("auto", 2.0, stage).epsilon <= 500


def test_products_of_numbers_are_those_of_a_fit_to_the_private_table() -> None:
    """A target that no sum of effects tells; as many as ε and the true number of rows allow."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(-1, 1, (160, 2)), columns=["a", "b"])
    frame = frame.assign(bought=np.where(frame.a * frame.b > 0, "yes", "no"))
    found = sidelight.compare(
        frame,
        rows=20_000,
        target="bought",
        epsilon=(0.02, 2.0),
        delta=1e-5,
        methods=("non_private", "only_public"),
    )
    crossed, plain = found.comparison.of("non_private", 2.0), found.comparison.of("only_public", 2.0)
    assert crossed is not None and plain is not None and crossed[0] > 0.8 > 0.65 > plain[0]
    plan = rehearsals._Plan(*rehearsals._public(frame, "bought", None, None), 20_000, 1e-6, None, None, 0)
    stage = next(plan.stages(1))
    for epsilon, products in ((0.02, ()), (2.0, (("a", "b"),))):
        assert plan.estimator("auto", epsilon, stage).schema.interactions == products
    assert plan.estimator("only_public", 2.0, stage).schema.interactions == ()


def test_it_is_repeatable_and_told_of_each_fit() -> None:
    told: list[tuple[str, float, int, int]] = []

    def progress(found: Comparison, method: str, at: float, done: int, total: int) -> None:
        told.append((method, at, done, total))

    one, two = (
        sidelight.compare(
            table(60), rows=200, target="bought", epsilon=(0.5, 1), methods=("only_private", "only_public"),
            random_state=seed, progress=progress,
        ).to_dict()
        for seed in (5, 5)
    )  # fmt: skip
    assert one == two
    assert told[0] == ("only_private", 0.5, 0, 16) and told[1] == ("only_private", 1.0, 1, 16)
    assert [method for method, *_ in told].count("only_public") == 8  # once a round, not once an ε


def test_a_method_that_cannot_is_left_out_with_its_reason() -> None:
    found = sidelight.compare(
        table(60), rows=200, target="bought", epsilon=(1,), methods=("rsgd_ar", "only_public"),
        relation="add-or-remove-one",
    )  # fmt: skip
    assert found.comparison.of("rsgd_ar", 1.0) is None
    assert "replace-one" in found.comparison.refused["rsgd_ar"]
    assert found.comparison.best(1.0) == "only_public"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 0}, "rows is the number"),
        ({"rows": 2.5}, "rows is the number"),
        ({"epsilon": ()}, "epsilon must name"),
        ({"epsilon": (0,)}, "epsilon must be above 0"),
        ({"epsilon": (1, 1)}, "each once"),
        ({"methods": ("dp_sdg",)}, "Did you mean 'dp_sgd'"),
        ({"methods": ()}, "methods must name"),
        ({"repeats": 0}, "repeats"),
        ({"relation": "swap"}, "relation"),
        ({"target": "nobody"}, "nobody"),
        ({"target": None}, "target"),
        ({"loss": "hing"}, "no method could be rehearsed.*hing"),
    ],
)
def test_bad_arguments_are_told(change: dict[str, Any], words: str) -> None:
    given = {"rows": 100, "target": "bought"} | change
    with pytest.raises(SidelightError, match=words):
        sidelight.compare(table(40), **given)


def test_too_few_public_rows_of_a_class() -> None:
    frame = table(40)
    frame = pd.concat([frame[frame.bought == "no"], frame[frame.bought == "yes"].head(3)])
    with pytest.raises(InputError, match=r"at least 4.*'yes'"):
        sidelight.compare(frame, rows=100, target="bought")
    with pytest.raises(InputError, match="20 public"):
        sidelight.compare(table(19, regression=True), rows=100, target="sales")


# ---------------------------------------------------------------------------------------------------
# the comparison


def trial(method: str, points: Any, ids: Any = None, **more: Any) -> Trial:
    array = np.asarray(points, dtype=float)
    return Trial(method, 1.0, array, np.arange(len(array)) if ids is None else np.asarray(ids), **more)


def test_errors_are_of_judges_or_of_stages_whichever_is_larger() -> None:
    found = Comparison(("a", "b"), (1.0,))
    for points in ([1, 0, 1, 1], [1, 0, 1, 1]):  # the same judges again: no more is known
        found.add(trial("a", points))
    score = found.of("a", 1.0)
    assert score == (0.75, pytest.approx(np.std([1, 0, 1, 1], ddof=1) / 2))
    for start, level in ((0, 0.2), (4, 0.8)):  # stages that differ
        found.add(trial("b", [level] * 4, np.arange(4) + start))
    assert found.of("b", 1.0) == (0.5, pytest.approx(0.3))


def test_a_difference_is_paired() -> None:
    found = Comparison(("a", "b"), (1.0,))
    rng = np.random.default_rng(0)
    hard = (rng.random(400) < 0.5).astype(float)
    better = hard.copy()
    better[:20] = 1
    found.add(trial("a", better))
    found.add(trial("b", hard))
    gain = found.difference("a", "b", 1.0)
    assert gain is not None and gain[0] == pytest.approx((better - hard).mean())
    alone = found.of("a", 1.0)
    assert alone is not None and gain[1] < alone[1] / 2  # what both find hard cancels


def test_synthetic_rows_rank_and_both_kinds_of_rows_make_the_range() -> None:
    from sidelight import PrivateClassifier

    def make(method: str, epsilon: float, stage: Stage) -> Any:
        return PrivateClassifier(method, epsilon=epsilon, random_state=stage.seed)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = np.where(X[:, 0] > 0, "yes", "no")
    wrong = np.where(y[450:500] == "yes", "no", "yes")  # judges that no model pleases
    stage = Stage(X[:400], y[:400], X[400:450], y[400:450], X[450:500], wrong, np.arange(50), 0,
                  X_synthetic=X[500:], y_synthetic=y[500:])  # fmt: skip
    found = Comparison(("only_private",), (1.0,))
    for one in trials([stage], found.methods, found.epsilons, make):
        found.add(one)
    low, high = found.range("only_private", 1.0)  # type: ignore[misc]
    score = found.of("only_private", 1.0)
    assert score is not None and score[0] == high > 0.8 > 0.2 > low
    (row,) = found.rows()
    assert row["score"] == pytest.approx((low + high) / 2) and row["error"] == pytest.approx((high - low) / 2)
    assert (row["low"], row["high"], row["on_synthetic_rows"]) == (low, high, score[0])
    assert low <= row["on_real_rows"] < 0.2  # an interval is around it
    assert set(row["measures"]) >= {"accuracy", "auc", "log_loss"}
    assert row["measures"]["auc"][0] < 0.2 < 0.8 < row["measures"]["auc"][1]


def test_only_public_gets_every_public_row_but_the_judges() -> None:
    seen: list[tuple[str, int]] = []

    class Recorder:
        def fit(self, X: Any, y: Any, *, X_public: Any, y_public: Any) -> None:
            seen.append((self.method, len(y_public)))

        def predict(self, X: Any) -> Any:
            return np.zeros(len(X))

    def make(method: str, epsilon: float, stage: Stage) -> Any:
        one = Recorder()
        one.method = method  # type: ignore[attr-defined]
        return one

    X, y = np.zeros((40, 1)), np.ones(40)
    stage = Stage(X, y, X[:10], y[:10], X[:5], y[:5], np.arange(5), 0, X_synthetic=X, y_synthetic=y,
                  X_rest=X[:30], y_rest=y[:30])  # fmt: skip
    found = {one.method: one for one in trials([stage], ("only_public", "auto"), (1.0,), make)}
    assert seen == [("only_public", 30), ("auto", 10)]
    table = Comparison(("only_public", "auto"), (1.0,), "R²")
    for one in found.values():
        table.add(one)
    assert table.range("only_public", 1.0) == (0.0, 0.0)  # of real rows alone


# ---------------------------------------------------------------------------------------------------
# the command


def test_the_table_and_what_it_is_worth(run: Any, public: Path) -> None:
    args = ("--target", "bought", "--rows", "2,000", "--epsilon", "0.5,2", "--methods", ",".join(FEW))
    outcome = run("compare", "--public", public, *args)
    assert outcome.code == 0 and outcome.err == ""
    for words in (
        "only_private",
        "ε = 0.5",
        "2,000 private and 120 public rows",
        "nothing was spent",
        "pessimistic",
    ):
        assert words in " ".join(outcome.out.split())
    assert "*" in outcome.out and " – " in outcome.out and "±" not in outcome.out and "▁" in outcome.out
    assert "\u202f% (always predicting 'no')" in outcome.out


def test_json_and_report(run: Any, public: Path, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    args = ("--target", "bought", "--rows", "500", "--epsilon", "1,0.5", "--methods", "only_private,rsgd_ar")
    outcome = run("compare", "--public", public, *args, "--out", page, "--json",
                  "--relation", "add-or-remove-one")  # fmt: skip
    rows = outcome.json["comparison"]
    assert [(row["method"], row["epsilon"]) for row in rows] == [("only_private", 0.5), ("only_private", 1.0)]
    assert rows[0]["low"] <= rows[0]["high"] and rows[0]["error"] > 0 and "rsgd_ar" in outcome.json["refused"]
    assert "only_private" in page.read_text() and outcome.json["report"] == str(page)


def test_a_card_of_a_rehearsal_says_that_nothing_was_spent() -> None:
    found = sidelight.compare(table(60), rows=200, target="bought", epsilon=(1,), methods=("only_public",))
    card = found.card()
    assert card.epsilon == 0 and card.method == "compare" and card.comparison == found.comparison.rows()
    json.dumps(card.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--rows", "100"), "--target is missing"),
        (("--target", "bought"), "--rows is missing"),
        (("--target", "bought", "--rows", "0"), "--rows: expected"),
        (("--target", "bought", "--rows", "many"), "--rows: expected"),
        (("--target", "bought", "--rows", "100", "--epsilon", "-1"), "--epsilon: expected"),
        (("--target", "bought", "--rows", "100", "--delta", "1"), "--delta: expected"),
        (("--target", "bought", "--rows", "100", "--relation", "swap"), "--relation: expected"),
        (("--target", "bought", "--rows", "100", "--methods", "dope"), "no method 'dope'"),
        (("--target", "bought", "--rows", "100", "--methods", "auto,auto"), "different names"),
        (("--target", "bought", "--rows", "100", "--loss", "hing"), "hing"),
        (("--target", "nobody", "--rows", "100"), "nobody"),
        (("--target", "bought", "--rows", "100", "--out", "no/such/x.html"), "there is no folder"),
        (("--target", "bought", "--rows", "100", "--schema", "none.json"), "none.json does not exist"),
    ],
)
def test_bad_usage_is_one_line(run: Any, public: Path, args: tuple[str, ...], words: str) -> None:
    run("compare", "--public", public, *args).is_one_line_error(2, words)


def test_a_public_table_that_is_not_there_or_empty(run: Any, tmp_path: Path) -> None:
    args = ("--target", "bought", "--rows", "100")
    run("compare", "--public", tmp_path / "none.csv", *args).is_one_line_error(2, "does not exist")
    (tmp_path / "empty.csv").write_text("")
    run("compare", "--public", tmp_path / "empty.csv", *args).is_one_line_error(2, "empty")


def test_columns_are_said_as_for_a_fit(run: Any, tmp_path: Path) -> None:
    """The error of a messy column names an option; the command has it."""
    path = tmp_path / "public.csv"
    messy = table(120).astype({"age": object}).assign(left=1)
    messy.loc[7, "age"] = "old"
    messy.to_csv(path, index=False)
    args = ("compare", "--public", path, "--target", "bought", "--rows", 900, "--epsilon", 1)
    args = (*args, "--methods", "only_public", "--json")
    run(*args).is_one_line_error(2, "--type age=number")
    found = run(*args, "--type", "age=number", "--ignore", "left")
    assert found.code == 0 and found.err == ""


def test_a_million_records_without_noise_can_be_rehearsed() -> None:
    """The ε with as much noise on a mean of fewer records grew beyond what can be calibrated."""
    assert rehearsals.scaled_epsilon(20.0, 1e-7, rows=10**9, rehearsed=5_000) == 500.0
    assert rehearsals.scaled_epsilon(550.0, 1e-7, rows=10**9, rehearsed=5_000) == 550.0
    assert rehearsals.scaled_epsilon(1.0, 1e-6, rows=700, rehearsed=700) == 1.0
