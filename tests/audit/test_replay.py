"""Neighbor replay: every method passes, under every relation, and broken copies are called by name."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.audit.broken import BROKEN, uncapped
from tests.private_values import value_of

from sidelight.audit import Linear, replay, replay_neighbors
from sidelight.audit.subjects import scene
from sidelight.audit.suite import SuitePlan, linear, subjects
from sidelight.audit.tape import RecordedCall, Tape, listening
from sidelight.errors import InputError
from sidelight.methods import part_kinds, recipe
from sidelight.methods.declare import METHODS
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.privacy import release as doors

CATALOG = linear()
SLOW = ("auto", "dp_agd", "agd_avg", "dp_agd, gumbel")  # their replays take half of the time of all others
EVERY = [
    (name, relation)
    for name, make in CATALOG.items()
    for relation in make().relations
    if name not in SLOW and (name, relation) != ("ppsgd, sampled", "replace-one")  # refused, and rightly
]
SUMLESS = ("objective_perturbation", "amp", "pnsgd", "only_public", "majority")


def test_every_method_of_the_registry_is_audited() -> None:
    assert set(METHODS) <= set(CATALOG)
    audited = {(s.name, s.claim.relation) for s in subjects(SuitePlan.everything())}
    missing = {(name, r) for name, make in METHODS.items() for r in make().relations} - audited
    assert not missing


@pytest.mark.parametrize(("name", "relation"), EVERY)
def test_a_method_passes(name: str, relation: Any) -> None:
    result = replay_neighbors(CATALOG[name](), relation=relation, seeds=1, release_runs=40, random_state=3)
    assert result.passed, str(result)
    moved = result.details["largest_share"]
    assert moved <= 1 + 1e-9
    if name not in (*SUMLESS, "non_private"):
        assert moved > 0.2, "no neighbor moved anything: this audit would not notice a fault"


@pytest.mark.parametrize("name", ["dp_agd", "agd_avg"])
def test_a_slow_method_passes(name: str) -> None:
    result = replay_neighbors(CATALOG[name](), seeds=1, release_runs=40)
    assert result.passed and result.details["largest_share"] > 0.9
    assert result.details["releases_repeated"]["select"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_method_passes_on_any_seed(seed: int) -> None:
    for name in ("dope_sgd", "dp_sgd, sampled", "ppsgd, tcdp", "rsgd_ar", "majority, private"):
        assert replay_neighbors(CATALOG[name](), seeds=1, release_runs=40, random_state=100 + seed).passed


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_copy_is_called_by_its_name(name: str) -> None:
    make, relation, promise = BROKEN[name]
    result = replay_neighbors(make(), relation=relation, epsilon=4.0, seeds=1)  # type: ignore[arg-type]
    assert not result.passed and result.method == name
    assert any(promise in finding.promise for finding in result.findings), str(result)
    assert name in str(result)


def test_ppsgd_without_its_cap_really_costs_more() -> None:
    """Vector C9: all of the budget in one step costs 7.9 where 0.5 was asked for."""
    subject = Linear(uncapped(), "replace-one", 0.5, 1e-6, scene("huber", n=10_000))
    (finding,) = replay_neighbors(subject, seeds=1).findings
    assert "these releases cost ε = 7.9" in finding.seen


def test_too_little_noise_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = doors.release

    def quiet(total: Any, *, std: float, **options: Any) -> Any:
        noisy = honest(total, std=std, **options)
        return noisy - 0.3 * (noisy - doors.Released(value_of(total), token=doors._RELEASE_TOKEN))

    monkeypatch.setattr(doors, "release", quiet)
    monkeypatch.setattr(part_kinds, "release", quiet)
    result = replay_neighbors(dp_sgd(steps=4), seeds=1)
    assert [f.promise for f in result.findings] == ["the noise drawn is the noise accounted"]
    assert float(result.findings[0].seen.split()[0]) == pytest.approx(0.7, abs=0.03)


def test_noise_before_the_charge_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = doors.release

    def eager(total: Any, *, noise: Any, **options: Any) -> Any:
        noise.normal(3)
        return honest(total, noise=noise, **options)

    monkeypatch.setattr(doors, "release", eager)
    monkeypatch.setattr(part_kinds, "release", eager)
    result = replay_neighbors(dp_sgd(steps=4), seeds=1)
    assert "the charge comes before the noise" in [f.promise for f in result.findings]


def test_doors_are_as_they_were_after_an_audit() -> None:
    before = (doors.release, part_kinds.release, recipe.Loop.step)
    with pytest.raises(RuntimeError), listening():
        assert part_kinds.release is not before[1]
        raise RuntimeError
    replay_neighbors(dp_sgd(steps=2), seeds=1)
    assert (doors.release, part_kinds.release, recipe.Loop.step) == before


def test_a_door_that_was_replaced_for_a_while_is_tapped_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier listening found says nothing about where the doors are now."""
    honest = part_kinds.release
    monkeypatch.setitem(sys.modules, "of_a_test", ModuleType("of_a_test"))  # one more: search again
    with monkeypatch.context() as planted:
        planted.setattr(part_kinds, "release", lambda *_, **__: None)
        with listening():
            pass
    with listening():
        assert part_kinds.release is not honest


def test_a_method_that_claims_nothing_is_not_refuted() -> None:
    result = replay_neighbors("non_private", seeds=1)
    assert result.passed and result.claimed_epsilon == np.inf
    assert result.to_dict()["claimed_epsilon"] == "infinity"


def test_a_method_that_fails_is_a_finding() -> None:
    class Fails:
        name, relations, needs_public, private = "fails", ("replace-one",), False, True

        def plan(self, task: Any) -> Any:
            return dp_sgd(steps=2).plan(task)

        def run(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("oops")

    (finding,) = replay_neighbors(Fails()).findings
    assert finding.seen == "ZeroDivisionError: oops"


def test_what_is_not_a_method_is_refused() -> None:
    with pytest.raises(InputError, match="method must"):
        replay_neighbors(3)
    with pytest.raises(InputError, match="'dp_sgd'"):
        replay_neighbors("dp_sdg")
    with pytest.raises(InputError, match="not add-or-remove-one"):
        replay_neighbors("rsgd_ar", relation="add-or-remove-one")


def one_call(value: Any, dtype: Any) -> Tape:
    given = np.asarray(value, dtype=dtype)
    call = RecordedCall("release", None, given.astype(float), 1.0, "add-or-remove-one", None)
    call.precision = float(np.finfo(dtype).eps)
    return Tape([call])


def test_rounding_of_a_long_sum_is_no_fault_and_no_excuse() -> None:
    """Sums of length 40 are exact to 5e-6 in float32; one record may not use that."""
    for dtype, excess, sound in [
        (np.float32, 4e-6, True),
        (np.float32, 1e-4, False),
        (np.float64, 1e-7, False),
        (np.float64, 0.0, True),
    ]:
        pair = one_call([40.0, 0.0], dtype), one_call([40.0, 1 + excess], dtype)
        assert (replay.within_sensitivity(*pair) == []) is sound
    short = one_call([0.0], np.float32), one_call([1 + 1e-5], np.float32)
    assert replay.within_sensitivity(*short)
    unknown = one_call([np.nan], np.float64), one_call([1.0], np.float64)
    assert replay.within_sensitivity(*unknown), "a NaN is no bound"


def test_sameness_goes_through_structures() -> None:
    nan = float("nan")
    assert replay.same({"a": [1.0, nan, np.array([nan, 2.0])]}, {"a": [1.0, nan, np.array([nan, 2.0])]})
    assert not replay.same({"a": [1.0]}, {"a": [1.0, 2.0]})
    assert not replay.same({"a": 1}, {"b": 1})
    assert not replay.same(np.array([1.0]), np.array([1.0 + 1e-16 * 4]))
