"""The many-run and the one-run audit, on methods of ours and on broken copies."""

from __future__ import annotations

from typing import Any

import pytest
from tests.audit.broken import BROKEN

from sidelight.audit import many_runs, one_run
from sidelight.audit.catalogue import CATALOGUE
from sidelight.errors import InputError
from sidelight.methods.dp_sgd import dp_sgd

QUICK = [
    ("dp_sgd", "add-or-remove-one"),
    ("dp_sgd", "replace-one"),
    ("dp_sgd, sampled", "add-or-remove-one"),
    ("public_whitening", "replace-one"),
    ("output_perturbation", "replace-one"),
]


@pytest.mark.parametrize(("name", "relation"), QUICK)
def test_many_runs_prove_something_and_nothing_false(name: str, relation: Any) -> None:
    result = many_runs(CATALOGUE[name](), relation=relation, epsilon=8.0, runs=150)
    assert result.passed, str(result)
    assert result.claimed_epsilon == pytest.approx(8.0, rel=1e-3)
    if name != "output_perturbation":  # one record moves it by a third of what is declared
        assert 0.4 < result.lower_bound < 8.0


@pytest.mark.parametrize(("name", "relation"), QUICK)
def test_one_run_proves_something_and_nothing_false(name: str, relation: Any) -> None:
    result = one_run(CATALOGUE[name](), relation=relation, epsilon=8.0, canaries=300)
    assert result.passed and 1.0 < result.lower_bound < 8.0, str(result)
    assert result.details["guesses"] == 30


@pytest.mark.parametrize(
    "name", ["dope_sgd, |B|·ĝ", "rsgd_ar, normalised gradients", "dp_sgd, mean of the batch"]
)
def test_many_runs_refute_a_broken_copy(name: str) -> None:
    make, relation, _ = BROKEN[name]
    result = many_runs(make(), relation=relation, epsilon=4.0, runs=200)  # type: ignore[arg-type]
    assert not result.passed and result.method == name


def test_one_run_refutes_a_copy_that_divides_by_the_batch() -> None:
    """Half of 44 records, and the sum is scaled as if: canaries stand out."""
    make, relation, _ = BROKEN["dp_sgd, C under replace-one"]
    honest = one_run(dp_sgd(steps=6), relation="replace-one", epsilon=2.0, canaries=600)
    broken = one_run(make(), relation=relation, epsilon=2.0, canaries=600)  # type: ignore[arg-type]
    assert honest.passed and broken.lower_bound > honest.lower_bound


def test_no_protection_shows() -> None:
    assert many_runs("non_private", runs=80).lower_bound > 2
    assert one_run("non_private", canaries=300).lower_bound > 2
    assert many_runs("only_public", runs=40).lower_bound == 0


def test_the_same_seed_is_the_same_audit() -> None:
    first, again = (many_runs(dp_sgd(steps=2), runs=20, seed=5) for _ in range(2))
    assert first == again
    first, again = (one_run(dp_sgd(steps=2), canaries=50, seed=5) for _ in range(2))
    assert first == again


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="20 runs"):
        many_runs("dp_sgd", runs=3)
    with pytest.raises(InputError, match="guesses <= canaries"):
        one_run("dp_sgd", canaries=10, guesses=11)
