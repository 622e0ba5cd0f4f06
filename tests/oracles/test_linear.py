"""The linear oracle against materialized gradients, its neighbors, and its worst numerical case."""

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.contracts.neighbors import assert_bounded, rows_with_score, value_of
from tests.oracles import reference
from tests.oracles.reference import CLIPS, LOSSES, METRICS, P, make_data, make_metric

from sidelight.clipping import Diagonal, Features, Projection, ThinFeatures
from sidelight.data.persons import PersonRows, Persons
from sidelight.data.rows import PrivateRows, contents
from sidelight.errors import InputError
from sidelight.losses import Hinge, Huber, Logistic, Loss, Softmax, Square
from sidelight.methods.parts import Automatic, Flat
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.person_oracle import PersonOracle
from sidelight.oracles.linear.row_lengths import Geometry, plain
from sidelight.oracles.linear.row_sums import Block

ADD, REPLACE = "add-or-remove-one", "replace-one"


def total(
    X: Any, y: np.ndarray, loss: Loss, params: np.ndarray, indices: Any = None, **options: Any
) -> np.ndarray:
    oracle = LinearOracle(PrivateRows(X, y, max_norm=1.0), loss)
    return value_of(oracle.clipped_sum(params, indices, relation=ADD, **options))


# ---------------------------------------------------------------------------------------------------
# the right sum


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
@pytest.mark.parametrize("kind", ["float64", "float32", "csr64", "csr32"])
def test_sum_equals_that_of_materialized_gradients(loss: Loss, kind: str) -> None:
    rng = np.random.default_rng(1)
    X, y = make_data(loss, 50, rng)
    X[np.abs(X) < 0.2] = 0
    X = X.astype(np.float32 if "32" in kind else np.float64)
    rows = sp.csr_matrix(X) if "csr" in kind else X
    dimension = P * loss.outputs
    params, origin = rng.standard_normal(dimension), 0.3 * rng.standard_normal(dimension)
    for name, clip, o in itertools.product(METRICS, CLIPS, (None, origin)):
        metric = make_metric(name, dimension, rng)
        vectors = reference.contributions(loss, X, y, params, origin=o, metric=metric)
        for indices in (None, np.array([3, 4, 17]), np.array([40, 2])):
            chosen = vectors if indices is None else vectors[indices]
            got = total(rows, y, loss, params, indices, clip=clip, origin=o, metric=metric)
            np.testing.assert_allclose(got, reference.clipped_sum(chosen, clip), rtol=1e-10, atol=1e-12)


def test_parameters_may_be_a_matrix_and_gradients_are_in_its_order() -> None:
    loss, rng = Softmax(3), np.random.default_rng(0)
    X, y = make_data(loss, 9, rng)
    W = rng.standard_normal((3, P))
    step, oracle = 1e-6, LinearOracle(PrivateRows(X, y, max_norm=1.0), loss)
    got = value_of(oracle.clipped_sum(W, clip=Flat(100.0), relation=ADD)).reshape(3, P)
    moved = W.copy()
    moved[2, 1] += step
    rise = (loss.value(X @ moved.T, y) - loss.value(X @ W.T, y)).sum() / step
    assert got[2, 1] == pytest.approx(rise, rel=1e-4)


def test_a_metric_is_measured_once_and_partly_if_need_be() -> None:
    """What a feature metric remembers from one batch is right for the next, and another metric forgets it."""
    loss, rng = Logistic(), np.random.default_rng(3)
    X, y = make_data(loss, 40, rng)
    oracle = LinearOracle(PrivateRows(X, y, max_norm=1.0), loss)
    params = rng.standard_normal(P)
    metrics = [Features(rng.standard_normal((4, P))), Features(3 * rng.standard_normal((4, P)))]
    for metric, indices in itertools.product(metrics, ([1, 2, 3], [2, 3, 30], None, [0, 39])):
        vectors = reference.contributions(loss, X, y, params, metric=metric)
        chosen = vectors if indices is None else vectors[indices]
        got = oracle.clipped_sum(params, indices, clip=Flat(0.2), metric=metric, relation=ADD)
        np.testing.assert_allclose(value_of(got), reference.clipped_sum(chosen, Flat(0.2)), rtol=1e-10)


@pytest.mark.parametrize("rows", [np.zeros((0, P)), sp.csr_matrix((0, P))], ids=["dense", "csr"])
def test_empty_batch_is_zero(rows: Any) -> None:
    for loss, name in itertools.product(LOSSES, METRICS):
        dimension = P * loss.outputs
        metric = make_metric(name, dimension, np.random.default_rng(0))
        expected = (
            np.zeros(len(metric.apply(np.zeros(dimension)))) if metric is not None else np.zeros(dimension)
        )
        got = total(
            rows,
            np.zeros(0),
            loss,
            np.ones(dimension),
            clip=Flat(1.0),
            origin=np.ones(dimension),
            metric=metric,
        )
        np.testing.assert_array_equal(got, expected)
    X, y = make_data(Logistic(), 5, np.random.default_rng(0))
    np.testing.assert_array_equal(
        total(X, y, Logistic(), np.ones(P), np.array([], dtype=int), clip=Flat(1.0)), np.zeros(P)
    )


def test_many_blocks_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, rng = Softmax(3), np.random.default_rng(5)
    X, y = make_data(loss, 101, rng)
    params = rng.standard_normal(3 * P)
    whole = total(X, y, loss, params, clip=Flat(0.3), origin=params / 9)
    monkeypatch.setattr("sidelight.data.rows.BLOCK", 7 * P)
    monkeypatch.setattr("sidelight.oracles.linear.row_sums.BLOCK", 7 * P)
    for rows, indices in itertools.product((X, sp.csr_array(X)), (None, np.arange(101))):
        split = total(rows, y, loss, params, indices, clip=Flat(0.3), origin=params / 9)
        np.testing.assert_allclose(split, whole, rtol=1e-12)


# ---------------------------------------------------------------------------------------------------
# the sensitivity


def bad_records(loss: Loss, rng: np.random.Generator) -> list[tuple[np.ndarray, float]]:
    """Records that an adversary would choose, among them some that are not records at all."""
    X, y = make_data(loss, 4, rng)
    label = float(y[0])
    wrong = np.nan if loss.task == "regression" else 7.0
    hostile = [np.full(P, np.nan), np.r_[np.inf, np.zeros(P - 1)], np.full(P, 1e300), np.zeros(P), -50 * X[0]]
    return [*zip(X, y, strict=True), *((x, label) for x in hostile), (X[1], wrong), (X[1], np.nan)]


def as_sum(loss: Loss, relation: str, sparse: bool = False, dtype: Any = np.float64, **options: Any) -> Any:
    def make(records: list[tuple[np.ndarray, float]]) -> Any:
        X = np.array([x for x, _ in records]).reshape(-1, P)
        with np.errstate(over="ignore"):
            X = X.astype(dtype)
        y = np.array([label for _, label in records])
        rows = PrivateRows(sp.csr_matrix(X) if sparse else X, y, max_norm=1.0)
        return LinearOracle(rows, loss).clipped_sum(relation=relation, **options)

    return make


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
def test_neighboring_data_moves_the_sum_at_most_by_its_sensitivity(loss: Loss, relation: str) -> None:
    rng = np.random.default_rng(7)
    dimension, nearest = P * loss.outputs, 0.0
    for name, clip, offset in itertools.product(METRICS, CLIPS, (None, 0.2, 30.0)):
        records = list(zip(*make_data(loss, 3, rng), strict=True))
        params = 3 * rng.standard_normal(dimension)
        origin = None if offset is None else offset * rng.standard_normal(dimension)
        make = as_sum(
            loss,
            relation,
            bool(rng.integers(2)),
            [np.float32, np.float64][rng.integers(2)],
            params=params,
            clip=clip,
            origin=origin,
            metric=make_metric(name, dimension, rng),
        )
        candidates = [*bad_records(loss, rng), (-records[0][0], records[0][1])]
        declared = make(records).sensitivity
        assert declared == clip.bound * (1 if relation == ADD else 2)
        nearest = max(nearest, assert_bounded(make, records, candidates, relation=relation) / declared)
    assert nearest > 0.9  # the contract is near what it forbids, so it is a test


def test_first_record_of_an_empty_dataset_moves_the_sum_within_bounds() -> None:
    make = as_sum(Logistic(), ADD, params=np.ones(P), clip=Flat(0.5), origin=np.full(P, 9.0))
    candidates = bad_records(Logistic(), np.random.default_rng(0))
    assert 0.49 < assert_bounded(make, [], candidates, relation=ADD) <= 0.5


ORIGIN = np.array([2.0, 0, 0, 0, 0, 0])


def broken(fault: str, loss: Loss = Logistic()) -> Any:  # noqa: B008
    """Sums with a planted fault, of the kinds found in published code. They declare sensitivity 1."""
    metric = Diagonal(np.linspace(1, 4, P))

    def make(records: list[tuple[np.ndarray, float]]) -> np.ndarray:
        X, y = np.array([x for x, _ in records]).reshape(-1, P), np.array([label for _, label in records])
        vectors = reference.contributions(
            loss, X, y, np.ones(P), origin=ORIGIN if "origin" in fault else None
        )
        match fault:
            case "origin inside the sum":
                return reference.clipped_sum(vectors, Flat(1.0)) + len(records) * ORIGIN
            case "transform after clipping":
                return metric.apply(reference.clipped_sum(10 * vectors, Flat(1.0)))
            case "realised batch size":
                return reference.clipped_sum(10 * vectors, Flat(1.0)) / max(1, len(records)) * 5
            case "non-finite row leaks":
                return reference.clipped_sum(vectors, Flat(1.0))
        raise KeyError(fault)

    return make


@pytest.mark.parametrize(
    "fault",
    ["origin inside the sum", "transform after clipping", "realised batch size", "non-finite row leaks"],
)
def test_contract_catches_(fault: str) -> None:
    rng = np.random.default_rng(0)
    records = list(zip(*make_data(Logistic(), 5, rng), strict=True))
    candidates = [(-x, label) for x, label in records]
    if "non-finite" in fault:
        candidates = [(np.full(P, np.nan), 1.0)]
    with pytest.raises(AssertionError, match="moved"):
        assert_bounded(broken(fault), records, candidates, relation=ADD, sensitivity=1.0)


def without_metric(self: Geometry, block: Block, slopes: np.ndarray, least: Any) -> np.ndarray:
    """The fault: norms of the gradients themselves, though it is M·gradient that is summed."""
    return np.asarray(plain(block, slopes))


def without_origin(self: Geometry, block: Block, slopes: np.ndarray, least: Any) -> np.ndarray:
    """The fault: norms around zero, though it is gradient − origin that is summed."""
    return np.asarray(self._lengths(block, slopes))


def origin_kept(self: Geometry, weighted: np.ndarray, mass: float) -> np.ndarray:
    """The fault: what was clipped around the origin is summed around zero."""
    return weighted.reshape(-1)


@pytest.mark.parametrize(
    ("method", "fault"), [("norms", without_metric), ("norms", without_origin), ("total", origin_kept)]
)
def test_contract_catches_a_fault_in_the_oracle(
    method: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = make_data(Square(), 3, np.random.default_rng(7))
    records = list(zip(X, y, strict=True))
    near = 0.9 * reference.contributions(Square(), X, y, np.ones(P))[0]
    far = np.full(P, 9.0)
    metric = Diagonal(far) if fault is without_metric else None
    origin = {without_metric: None, without_origin: far, origin_kept: near}[fault]
    options = {"params": np.ones(P), "clip": Automatic(1.0, 0.0), "origin": origin, "metric": metric}
    assert_bounded(as_sum(Square(), ADD, **options), records, records, relation=ADD)
    monkeypatch.setattr(Geometry, method, fault)
    with pytest.raises(AssertionError, match="moved"):
        assert_bounded(as_sum(Square(), ADD, **options), records, records, relation=ADD)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
def test_nan_row_changes_nothing_else(loss: Loss) -> None:
    """A record that is not usable contributes exactly zero after the origin is subtracted."""
    rng = np.random.default_rng(2)
    X, y = make_data(loss, 6, rng)
    dimension = P * loss.outputs
    options = {"clip": Flat(0.4), "origin": rng.standard_normal(dimension)}
    without = total(X, y, loss, np.ones(dimension), **options)
    for x, label in bad_records(loss, rng)[4:]:
        if np.isfinite(x).all() and x.any() and np.isfinite(label) and label != 7.0:
            continue  # long, but a record
        both = total(np.vstack([X, x]), np.r_[y, label], loss, np.ones(dimension), **options)
        np.testing.assert_allclose(both, without, rtol=0, atol=1e-15)


def test_contract_catches_a_null_record_that_counts_as_a_zero_gradient() -> None:
    X, _ = make_data(Logistic(), 2, np.random.default_rng(2))
    oracle = LinearOracle(
        PrivateRows(np.vstack([X, np.full(P, np.nan)]), np.ones(3), max_norm=1.0), Logistic()
    )
    oracle._ignored = None  # the fault: clip(0 − o) instead of nothing
    options: dict[str, Any] = {"clip": Flat(0.4), "origin": np.ones(P)}
    got = value_of(oracle.clipped_sum(np.ones(P), relation=ADD, **options))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(got, total(X, np.ones(2), Logistic(), np.ones(P), **options), atol=1e-15)


def test_overflowing_slopes_are_dropped() -> None:
    X, y = np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2)
    got = total(X, y, Square(), np.array([1e200, 1.0]), clip=Flat(1.0), origin=np.array([0.5, 0.0]))
    np.testing.assert_allclose(got, clipped([-0.5, 2.0]), rtol=1e-13)
    assert not total(X, y, Square(), np.array([np.nan, np.nan]), clip=Flat(1.0), origin=np.ones(2)).any()


def clipped(v: list[float]) -> np.ndarray:
    return np.array(v) / max(1.0, float(np.linalg.norm(v)))


@pytest.mark.parametrize("indices", [[1, 1], [0, -5], [5], [[0, 1]], [0.5]], ids=str)
def test_indices_that_are_not_distinct_records_are_refused(indices: Any) -> None:
    X, y = make_data(Logistic(), 5, np.random.default_rng(0))
    with pytest.raises(InputError, match="indices"):
        total(X, y, Logistic(), np.ones(P), np.array(indices), clip=Flat(1.0))


def test_shapes_that_do_not_fit_are_refused() -> None:
    X, y = make_data(Logistic(), 5, np.random.default_rng(0))
    for options in (
        {"origin": np.ones(P + 1)},
        {"origin": np.full(P, np.nan)},
        {"metric": Diagonal(np.ones(2))},
        {"metric": Features(np.ones((2, P + 1)))},
        {"metric": Projection(np.ones((P - 1, 2)))},
    ):
        with pytest.raises(InputError):
            total(X, y, Logistic(), np.ones(P), clip=Flat(1.0), **options)
    with pytest.raises(InputError, match="6 parameters"):
        total(X, y, Logistic(), np.ones(5), clip=Flat(1.0))


# ---------------------------------------------------------------------------------------------------
# losses, memory, secrecy


@pytest.mark.parametrize("relation", [ADD])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
def test_clipped_losses_are_monotone_and_bounded(loss: Loss, relation: str) -> None:
    rng = np.random.default_rng(8)
    X, y = make_data(loss, 20, rng)
    candidates = rng.standard_normal((4, P * loss.outputs)) * 4
    records = bad_records(loss, rng)
    X, y = np.vstack([X, [x for x, _ in records]]), np.r_[y, [label for _, label in records]]
    oracle = LinearOracle(PrivateRows(X, y, max_norm=1.0), loss)
    scores = value_of(oracle.clipped_losses(candidates, bound=0.6, relation=relation))
    for i in range(len(X)):
        rest = np.delete(np.arange(len(X)), i)
        fewer = value_of(oracle.clipped_losses(candidates, rest, bound=0.6, relation=relation))
        assert ((scores - fewer >= -1e-12) & (scores - fewer <= 0.6 + 1e-12)).all()
    z = X[:20] @ candidates[0].reshape(loss.outputs, P).T
    expected = np.minimum(loss.value(z if loss.outputs > 1 else z[:, 0], y[:20].astype(int)), 0.6)
    if loss.task != "regression":
        got = value_of(oracle.clipped_losses(candidates, np.arange(20), bound=0.6, relation=relation))[0]
        assert got == pytest.approx(expected.sum())


@pytest.mark.parametrize("loss", [Logistic(), Softmax(10)], ids=lambda v: v.name)
def test_a_full_batch_needs_little_memory_beside_the_rows(loss: Loss) -> None:
    rng = np.random.default_rng(0)
    X, y = make_data(loss, 32_561, rng, p=123)
    tracemalloc.start()
    try:
        oracle = LinearOracle(PrivateRows(X, y, max_norm=1.0), loss)
        metric = Features(rng.standard_normal((123, 123)) / 20)
        params = np.zeros(oracle.dimension)
        for _ in range(2):
            oracle.clipped_sum(params, clip=Flat(1.0), origin=params + 0.01, metric=metric, relation=ADD)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.shares_memory(contents(oracle_rows(X, y)).X, X)
    assert peak < 0.25 * X.nbytes


def oracle_rows(X: np.ndarray, y: np.ndarray) -> PrivateRows:
    return PrivateRows(X, y, max_norm=1.0)


def test_the_answer_does_not_show_itself() -> None:
    X, y = make_data(Logistic(), 5, np.random.default_rng(0))
    answer = LinearOracle(PrivateRows(X, y, max_norm=1.0), Logistic()).clipped_sum(
        np.zeros(P), clip=Flat(1.0), relation=REPLACE
    )
    assert repr(answer) == "BoundedSum(private, sensitivity=2, relation='replace-one')"


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("bad", [5.0, -25.0, 0.5, 1e300])
def test_a_target_that_the_loss_does_not_know_adds_nothing_where_nothing_is_clipped(
    bad: float, unit: bool
) -> None:
    """The bound of a loss, which makes clipping unnecessary, holds for the targets that it admits alone."""
    rng = np.random.default_rng(5)
    X, y = make_data(Logistic(), 30, rng)
    metric = Features(np.eye(P)) if unit else None
    params, spoiled = 0.1 * rng.standard_normal(P), y.copy()
    spoiled[4] = bad

    def sums(targets: np.ndarray) -> np.ndarray:
        rows = PrivateRows(X, targets, max_norm=1.0)  # nobody said which targets are admitted
        oracle = LinearOracle(rows, Logistic(), unit_under=metric)
        assert oracle._never_clips(Flat(1.0), metric, params)
        return value_of(oracle.clipped_sum(params, clip=Flat(1.0), metric=metric, relation=ADD))

    without = y.copy()
    without[4] = np.nan
    np.testing.assert_array_equal(sums(spoiled), sums(without))
    assert np.linalg.norm(sums(spoiled) - sums(y)) <= 1.0


def test_the_way_a_sum_is_formed_depends_on_weights_and_on_no_record() -> None:
    """A record whose product overflows made every other one go through the clip, which rounds otherwise."""
    X, y = make_data(Logistic(), 8, np.random.default_rng(6))
    oracle = LinearOracle(PrivateRows(X, y, max_norm=1.0), Logistic())
    assert oracle._never_clips(Flat(1.0), None, np.full(P, 1e99))
    for weight in (1e101, 1e308, np.inf, np.nan):
        assert not oracle._never_clips(Flat(1.0), None, np.full(P, weight))
        found = value_of(oracle.clipped_sum(np.full(P, weight), clip=Flat(1.0), relation=ADD))
        assert np.isfinite(found).all()


class Stretch:
    """A metric of a user's own: M g = 100·g."""

    def apply(self, vector: Any) -> Any:
        return 100 * vector

    lift = apply

    def absolute(self) -> "Stretch":
        return self


class StretchedDiagonal(Diagonal):
    """One that stretches more than its scale says."""

    def apply(self, vector: Any) -> Any:
        return 100 * vector


def test_a_metric_whose_norms_are_not_known_is_refused() -> None:
    """Clipped by the norms without it, a contribution would be 100 times as long as the bound."""
    X, y = make_data(Logistic(), 20, np.random.default_rng(0))
    for metric in (Stretch(), StretchedDiagonal(np.ones(P))):
        with pytest.raises(InputError, match=f"not {type(metric).__name__}"):
            total(X, y, Logistic(), np.zeros(P), clip=Flat(0.1), metric=metric)


# ---------------------------------------------------------------------------------------------------
# the last bit of a record, in which other rows of its block have a say


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.outputs == 1], ids=lambda v: v.name)
def test_the_last_bit_of_a_score_decides_about_no_whole_contribution(loss: Loss) -> None:
    """BLAS rounds scores by their place in a block. A jump in the slope turned that into 181 clip bounds."""
    kinks = np.array([0.0, 0.5, 1.0, 1.5])
    z, y = np.repeat(kinks, 2), np.ones(2 * len(kinks))
    nearly = z + np.where(np.arange(len(z)) % 2, 1, -1) * 4e-15
    for function in (loss.slope, loss.curvature):
        assert np.abs(function(nearly, y) - function(z, y)).max() < 1e-7


def test_the_last_bit_of_a_score_does_not_turn_a_normalized_slope() -> None:
    """Of a sure record p − 1 is 0 or an ulp: its direction, normalized, was that of rounding."""
    z = np.zeros((2000, 3))
    z[:, 0] = np.linspace(36, 38, 2000)
    slopes = [Softmax(3).slope(near, np.zeros(2000, dtype=np.intp)) for near in (z, z * (1 + 4e-16))]
    unit = [slope / np.linalg.norm(slope, axis=1, keepdims=True) for slope in slopes]
    expected = np.array([-2, 1, 1]) / np.sqrt(6)
    assert np.abs(np.array(unit) - expected).max() < 1e-9


def moved_by_null_records(
    loss: Loss, score: float, *, persons: bool, unit: bool = False, **options: Any
) -> float:
    """How far a normalized sum moves when null records come first, and others move on in their blocks."""
    w, X = rows_with_score(score, n=1500)
    sums = []
    for nulls in (0, 1, 3):
        table = np.vstack([np.zeros((nulls, len(w))), X])
        given = {"unit_under": options["metric"] if unit else None}
        if persons:
            codes = Persons(np.arange(len(table)), len(table))
            rows = PersonRows(table, np.ones(len(table)), max_norm=3.0, persons=codes)
            oracle: LinearOracle = PersonOracle(rows, loss, **given)
        else:
            oracle = LinearOracle(PrivateRows(table, np.ones(len(table)), max_norm=3.0), loss, **given)
        sums.append(value_of(oracle.clipped_sum(w, clip=Automatic(1.0, 0.0), relation=ADD, **options)))
    return max(float(np.linalg.norm(one - sums[0])) for one in sums)


AT_ZERO = [(Square(), 1.0), (Hinge(), 1.0), (Huber(), 1.5)]


@pytest.mark.parametrize("persons", [False, True], ids=["records", "persons"])
@pytest.mark.parametrize(("loss", "score"), AT_ZERO, ids=["square", "hinge", "huber"])
def test_a_slope_of_rounding_alone_is_no_contribution(loss: Loss, score: float, persons: bool) -> None:
    """Records that a public start predicts exactly: a clip that normalizes made them whole contributions."""
    assert moved_by_null_records(loss, score, persons=persons) < 0.01
    origin = np.full(1201, 1e-18)
    assert moved_by_null_records(loss, score, persons=persons, origin=origin) < 0.01
    for metric in (Diagonal(np.linspace(0.5, 2, 1201)), Features(np.eye(1201)[::7])):
        assert moved_by_null_records(loss, score, persons=persons, metric=metric) < 0.01
    assert moved_by_null_records(loss, score, persons=persons, unit=True, metric=metric) < 0.01


def test_contract_catches_normalized_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinearOracle, "_least_slopes", lambda *given: None)
    assert moved_by_null_records(Square(), 1.0, persons=False) > 1


@pytest.mark.parametrize("unit", [False, True])
def test_rows_that_a_metric_maps_to_rounding_are_no_contribution(unit: bool) -> None:
    """Rows orthogonal to the span of a metric: these were normalized or brought to length 1."""
    direction, X = rows_with_score(0.0)
    wide = Projection(np.vstack([direction, -direction]).reshape(-1, 1))
    cases = [
        (Logistic(), metric)
        for metric in (Features(direction[None]), ThinFeatures(direction[None], np.eye(1), 0.0))
    ]
    for loss, metric in [*cases, *([] if unit else [(Softmax(2), wide)])]:
        sums = []
        for nulls in (0, 1, 2, 3):
            table = np.vstack([np.zeros((nulls, X.shape[1])), X])
            rows = PrivateRows(table, np.ones(len(table)), max_norm=1.0)
            oracle = LinearOracle(rows, loss, unit_under=metric if unit else None)
            w = np.concatenate([direction] * loss.outputs)
            sums.append(
                value_of(oracle.clipped_sum(w, clip=Automatic(1.0, 0.0), metric=metric, relation=ADD))
            )
        assert max(np.linalg.norm(one - sums[0]) for one in sums) < 1e-6


def test_the_last_bit_of_a_length_decides_about_no_whole_contribution() -> None:
    """Rows are brought to length 1 under a metric, and very short ones were left out at a threshold."""
    metric = Features(np.diag(1 + 1e-3 * np.arange(P)))
    directions = np.random.default_rng(5).standard_normal((1, P))
    X = np.concatenate([directions * 1e-150 / np.linalg.norm(directions) * s for s in (0.99, 1.0, 1.01)])
    sums = [
        value_of(
            LinearOracle(PrivateRows(row[None], np.ones(1), max_norm=1.0), Logistic(), unit_under=metric)
            .clipped_sum(np.zeros(P), clip=Flat(1.0), metric=metric, relation=ADD)
        )
        for row in X
    ]  # fmt: skip
    assert np.abs(np.diff(sums, axis=0)).max() < 0.02
