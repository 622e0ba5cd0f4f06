"""Audits of networks: the same promises, by the same code."""

import sys
from typing import Any

import pytest
import torch

from sidelight.audit import on_network, one_run, replay_neighbors
from sidelight.audit.tape import vector
from sidelight.errors import InputError, RelationError
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.release import BoundedSum

torch.set_num_threads(1)
FAST: dict[str, Any] = {"steps": 1}
honest_sum = NetworkOracle.clipped_sum


@pytest.mark.parametrize(
    ("method", "relation", "more"),
    [
        ("dp_sgd", "add-or-remove-one", {"expected_batch_size": 20}),
        ("dp_sgd", "replace-one", {}),
        ("dope_sgd", "add-or-remove-one", {}),
        ("adamix", "add-or-remove-one", {}),
        ("only_private", "add-or-remove-one", {}),
    ],
)
def test_a_method_passes_on_a_network(method: str, relation: Any, more: dict[str, Any]) -> None:
    result = replay_neighbors(on_network(method, relation=relation, **FAST, **more), seeds=1)
    assert result.passed and result.details["largest_share"] > 0.5, str(result)


def planted(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    def broken(self: NetworkOracle, batch: Any, **options: Any) -> BoundedSum:
        total = honest_sum(self, batch, **options)
        value = change(self, batch, torch.as_tensor(vector(total)).float(), options)
        return BoundedSum(value, sensitivity=total.sensitivity, relation=total.relation)

    monkeypatch.setattr(NetworkOracle, "clipped_sum", broken)


def test_the_origin_inside_the_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(oracle: Any, batch: Any, value: Any, options: dict[str, Any]) -> Any:
        rows = int(batch[0].isfinite().all(1).sum())
        return value + rows * options["origin"]

    planted(monkeypatch, inside)
    result = replay_neighbors(on_network(dope_sgd(clip_norm=0.1), **FAST), seeds=1)
    assert any("one record moves a private sum" in f.promise for f in result.findings)


def test_a_realised_batch_size_in_the_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean(oracle: Any, batch: Any, value: Any, options: dict[str, Any]) -> Any:
        return value * 20 / max(1, int(batch[0].isfinite().all(1).sum()))

    planted(monkeypatch, mean)
    subject = on_network(dp_sgd(clip_norm=0.1), expected_batch_size=20, **FAST)
    assert not replay_neighbors(subject, seeds=1).passed


def one_runs() -> list[Any]:
    subject = on_network("dp_sgd", epsilon=16.0, **FAST)
    return [one_run(subject, canaries=80, guesses=40, random_state=seed) for seed in range(3)]


def correct(results: list[Any]) -> int:
    return sum(result.details["correct"][0] for result in results)


def test_one_run_on_a_network() -> None:
    """Of 40 guesses 35.3 are right (standard deviation 1.8, none of 200 runs below 30); so of 120 fewer than
    80 once in 10⁹ runs. An audit that sees nothing has 60, and 80 once in 6000 runs."""
    results = one_runs()
    assert correct(results) >= 80
    assert all(result.passed for result in results)
    assert 0.2 < max(result.lower_bound for result in results) < 16.0  # 28 of 40, in one of three runs


def test_contract_catches_a_blind_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["sidelight.audit.runs"]  # the package has a function of this name
    monkeypatch.setattr(module, "_scores", lambda subject, coins, seed: 0.0 * coins)
    results = one_runs()
    assert correct(results) < 80


def test_a_method_without_steps_is_refused() -> None:
    with pytest.raises(InputError, match="recipes"):
        on_network("rsgd_ar")
    with pytest.raises(RelationError):
        on_network("dp_sgd", relation="nonsense")
