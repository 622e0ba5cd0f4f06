"""Networks for persons with several rows: one contribution a person, and nothing tells of its rows."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.deep.networks import Tape, blobs, gradients, loss, mlp, vector
from tests.private_values import value_of
from torch import Tensor, nn
from torch.utils.data import Dataset

from sidelight.audit.tape import same_noise
from sidelight.deep import (
    Loading,
    PrivateNetClassifier,
    PrivateStep,
    Trainer,
    person_records,
)
from sidelight.deep.person_records import batch_of_persons
from sidelight.errors import DatasetMismatch, InputError, PrivacyConditionError
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private
from sidelight.methods.parts import Flat
from sidelight.oracles.network import network_oracle
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.passes import records_a_pass
from sidelight.privacy.ledger import Ledger
from sidelight.problems.isolation import record_seed

PERSONS, CLIP = 24, 0.1
CODES = np.random.default_rng(0).integers(0, PERSONS, 90)
CODES[:PERSONS] = np.arange(PERSONS)  # everybody has a row
ADD_REMOVE: Any = "add-or-remove-one"
pytestmark = pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")


def by_hand(rows: Tensor, codes: Any = CODES, origin: Tensor | None = None) -> Tensor:
    """Σ clip(mean gradient of a person − origin)."""
    total = torch.zeros(rows.shape[1], dtype=rows.dtype)
    for person in np.unique(codes[codes >= 0]):
        moved = rows[torch.from_numpy(codes == person)].mean(0)
        moved = moved if origin is None else moved - origin
        total += moved * min(1.0, CLIP / float(moved.norm()))
    return total


def summed(model: nn.Module, batch: Any, codes: Any = CODES, *, max_rows: int = 12, **options: Any) -> Tensor:
    (ready,) = batch_of_persons(batch, codes, max_rows, seed=0)
    found = NetworkOracle(model, loss, pass_size=5).clipped_sum(
        ready.rows, clip=Flat(CLIP), relation=ADD_REMOVE, augmentations=max_rows, weights=ready.weights,
        **options,
    )  # fmt: skip
    assert found.sensitivity == CLIP
    value: Tensor = value_of(found)
    return value


# ---------------------------------------------------------------------------------------------------
# the sum


@pytest.mark.parametrize("route", ["layers", "vmap", "loop"])
@pytest.mark.parametrize("around", [False, True])
def test_a_sum_is_that_of_clipped_means(route: str, around: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, model = blobs(90, 1, torch.float64), mlp(dtype=torch.float64)
    rows, honest = gradients(model, batch), network_oracle.examine
    origin = 0.05 * torch.randn(rows.shape[1], dtype=torch.float64) if around else None
    monkeypatch.setattr(network_oracle, "examine", lambda *given: replace(honest(*given), kind=route))
    found = summed(model, batch, origin=origin)
    torch.testing.assert_close(found, by_hand(rows, origin=origin), rtol=1e-9, atol=1e-12)


def test_rows_of_one_person_change_nobody_elses_contribution() -> None:
    """Whatever a person has, a row or twelve, ordinary or broken: the others add up to the same bits."""
    batch, model = blobs(90, 1, torch.float64), mlp(dtype=torch.float64)
    mine = np.flatnonzero(CODES == 7)
    others = np.where(CODES == 7, -1, CODES)
    rows = gradients(model, batch)
    rest = by_hand(rows, others)
    for left in range(1, len(mine) + 1):
        codes = CODES.copy()
        codes[mine[left:]] = -1
        moved = summed(model, batch, _named(codes)) - rest
        assert float(moved.norm()) <= CLIP * (1 + 1e-9)
        torch.testing.assert_close(moved, by_hand(rows, np.where(codes == 7, 7, -1)), rtol=1e-6, atol=1e-9)
    for value in (float("nan"), float("inf"), 1e300):
        broken = batch[0].clone()
        broken[mine[0]] = value
        assert float((summed(model, (broken, batch[1])) - rest).norm()) <= CLIP * (1 + 1e-9)


def test_a_person_with_a_row_that_fails_contributes_nothing() -> None:
    batch, model = blobs(90, 1, torch.float64), mlp(dtype=torch.float64)
    wrong = batch[1].clone()
    wrong[np.flatnonzero(CODES == 7)[0]] = 17  # a class that does not exist
    rest = by_hand(gradients(model, batch), np.where(CODES == 7, -1, CODES))
    torch.testing.assert_close(summed(model, (batch[0], wrong)), rest, rtol=1e-9, atol=1e-12)


def test_of_more_rows_than_max_rows_some_are_drawn_anew_each_time() -> None:
    batch, codes = blobs(40, 1), np.repeat([0, 1], [30, 10])
    drawn = [next(iter(batch_of_persons(batch, codes, 8, seed))).rows[0] for seed in range(3)]
    assert all(one.shape == (16, 4) for one in drawn)
    assert not torch.equal(drawn[0][:8], drawn[1][:8])
    own = {tuple(row) for row in batch[0][:30].tolist()}
    assert all(tuple(row) in own for one in drawn for row in one[:8].tolist())


def test_a_pass_has_whole_kernels_of_rows() -> None:
    for expected, each in ((100, 8), (3, 8), (1000, 12), (1, 3)):
        size = records_a_pass(expected, each=each)
        assert size >= 1 and (size * each <= 32 or size * each % 32 == 0)


def _named(codes: Any) -> list[int | None]:
    return [None if code < 0 else int(code) for code in codes]


# ---------------------------------------------------------------------------------------------------
# Trainer


class Items(Dataset[Any]):
    """Visits of patients, some of which cannot be read."""

    def __init__(self, data: Any, codes: Any, unreadable: tuple[int, ...] = (), long: tuple[int, ...] = ()):
        self.data, self.codes, self.unreadable, self.long = data, codes, unreadable, long

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, i: int) -> Any:
        if i in self.unreadable:
            raise ValueError("the visit of a patient")
        x, y = self.data[0][i], self.data[1][i]
        return {"patient": int(self.codes[i]), "x": torch.cat([x, x]) if i in self.long else x, "y": y}


def patient(item: Any) -> object:
    return item["patient"]


def collate(items: Any) -> Any:
    return torch.stack([item["x"] for item in items]), torch.stack([item["y"] for item in items])


def trained(data: Any, persons: Any = CODES, **options: Any) -> tuple[Tape, Trainer]:
    tape = Tape()
    given: dict[str, Any] = {
        "method": dp_sgd(clip_norm=CLIP), "epsilon": 3, "delta": 1e-4, "steps": 2,
        "expected_batch_size": None, "max_rows": 12, "random_state": 1, "unit": "patient", **options,
    }  # fmt: skip
    trainer = Trainer(mlp(dtype=torch.float64), loss, **given)
    with pytest.MonkeyPatch.context() as patch, same_noise():
        patch.setattr("sidelight.methods.part_kinds.release", tape)
        trainer.fit(data, persons=persons)
    return tape, trainer


def test_a_trainer_releases_sums_over_persons_and_says_so(tmp_path: Path) -> None:
    data = blobs(90, 1, torch.float64)
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.register("people", relation=ADD_REMOVE, epsilon=50, delta=1e-4)
        tape, trainer = trained(data, ledger=ledger, dataset="people")
        torch.testing.assert_close(tape.sums[0], by_hand(gradients(mlp(dtype=torch.float64), data)))
        statement = trainer.privacy_
        assert statement.unit == "patient" and "for all rows of a person (by patient)" in str(statement)
        assert statement.details["max_rows"] == 12 and statement.details["private_records"] == PERSONS
        assert f"private persons ({PERSONS})" in str(statement)
        assert not re.search(r"(?<![\w-])90\b", str(statement.to_dict()))  # "pytest-90" may be its folder
        (charge,) = ledger.charges("people")
        assert f"{PERSONS} persons (by patient)" in charge.note
        with pytest.raises(DatasetMismatch, match="'patient'"):
            trained(data, None, unit="record", ledger=ledger, dataset="people")


def test_names_may_come_from_a_key_function_and_items_one_by_one() -> None:
    data = blobs(90, 1, torch.float64)
    first, _ = trained(data)
    items = Items(data, CODES)
    tape, trainer = trained(items, None, unit=patient, loading=Loading(collate=collate))
    torch.testing.assert_close(tape.sums[0], first.sums[0])
    assert trainer.privacy_.unit == "patient"
    assert (
        trained(items, None, unit=lambda item: item["patient"], loading=Loading(collate=collate))[
            1
        ].privacy_.unit
        == "person"
    )


def test_rows_that_cannot_be_read_or_have_another_shape_are_left_out() -> None:
    data = blobs(90, 1, torch.float64)
    mine = np.flatnonzero(CODES == 7)
    assert len(mine) > 3
    items = Items(data, CODES, unreadable=(int(mine[0]),), long=(int(mine[1]),))
    tape, _ = trained(items, CODES, loading=Loading(collate=collate))
    codes = CODES.copy()
    codes[mine[:2]] = -1
    torch.testing.assert_close(tape.sums[0], by_hand(gradients(mlp(dtype=torch.float64), data), codes))


def test_workers_and_micro_batches_change_nothing() -> None:
    data = blobs(90, 1, torch.float64)
    one, _ = trained(data)
    two, _ = trained(Items(data, CODES), loading=Loading(collate=collate, workers=1, micro_batch=3))
    torch.testing.assert_close(two.sums[0], one.sums[0])


def test_augmented_rows_count_for_their_person() -> None:
    data = blobs(90, 1, torch.float64)
    plain, _ = trained(data)
    for augment in (lambda x: x, None):
        twice, _ = trained(data, augment=augment, augmentations=2)
        torch.testing.assert_close(twice.sums[0], plain.sums[0])


def test_public_records_that_are_trained_on_are_persons_of_their_own() -> None:
    trainer = Trainer(
        mlp(), loss, epsilon=3, method=full_private(), steps=2, expected_batch_size=10, unit="patient",
        random_state=1, validation=0,
    )  # fmt: skip
    trainer.fit(blobs(90, 1), blobs(30, 2), persons=CODES)
    assert trainer.privacy_.details["private_records"] == PERSONS + 30


def test_auto_plans_for_persons() -> None:
    trainer = Trainer(mlp(), loss, epsilon=3, unit="patient", steps=5, random_state=1)
    trainer.fit(blobs(90, 1), persons=torch.from_numpy(CODES))
    assert trainer.privacy_.method == "auto" and trainer.privacy_.unit == "patient"
    assert trainer.privacy_.details["private_records"] == PERSONS


def test_a_resumed_run_is_bound_to_its_persons(tmp_path: Path) -> None:
    class Killed(Exception): ...

    def run(persons: Any, *, resume: bool, die: bool = False) -> Tensor:
        model = mlp()
        trainer = Trainer(
            model, loss, epsilon=3, method=dp_sgd(), steps=4, expected_batch_size=8, unit="patient",
            checkpoints=tmp_path, max_rows=2,
        )  # fmt: skip
        trainer.checkpoints = replace(trainer.checkpoints, every=1)  # type: ignore[type-var]
        if die:
            trainer.scheduler = lambda optimizer: _Dies()
        trainer.fit(blobs(90, 1), persons=persons, resume=resume)
        return vector(model)

    class _Dies:
        steps = 0

        def step(self) -> None:
            type(self).steps += 1
            if type(self).steps == 3:
                raise Killed

        def state_dict(self) -> Any:
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    with pytest.raises(Killed):
        run(CODES, resume=False, die=True)
    with pytest.raises(PrivacyConditionError, match="persons"):
        run(np.roll(CODES, 1), resume=True, die=True)
    assert bool(run(CODES, resume=True, die=True).isfinite().all())


@pytest.mark.parametrize(
    ("options", "persons", "match"),
    [
        ({"unit": "patient"}, None, "persons=names"),
        ({"unit": patient}, CODES, "pass one of them"),
        ({"unit": 3}, CODES, "unit must be"),
        ({"unit": "patient"}, CODES[:-1], "one name for each row"),
        ({"unit": "patient"}, [None] * 90, "no row names a person"),
        ({"unit": "patient", "max_rows": 0}, CODES, "max_rows"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], persons: Any, match: str) -> None:
    trainer = Trainer(mlp(), loss, epsilon=1, method=dp_sgd(), steps=1, **options)
    with pytest.raises(InputError, match=match):
        trainer.fit(blobs(90, 1), persons=persons)


# ---------------------------------------------------------------------------------------------------
# PrivateStep and estimators


def test_a_step_takes_rows_of_persons() -> None:
    data, model = blobs(90, 1, torch.float64), mlp(dtype=torch.float64)
    tape = Tape()
    step = PrivateStep(
        model, loss, method=dope_sgd(clip_norm=CLIP), n_private=PERSONS, expected_batch_size=None, epsilon=3,
        delta=1e-4, steps=2, unit="patient", max_rows=12, random_state=0,
    )  # fmt: skip
    assert step.sample().tolist() == list(range(PERSONS))
    public = blobs(20, 2, torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidelight.methods.part_kinds.release", tape)
        step(data, public, persons=CODES)
    origin = gradients(model, public).mean(0)
    torch.testing.assert_close(
        tape.sums[0], by_hand(gradients(model, data), origin=origin), rtol=1e-6, atol=1e-9
    )
    assert step.privacy_.unit == "patient" and "named the person of every row" in str(step.privacy_)
    with pytest.raises(InputError, match="go together"):
        step(data, public)
    with pytest.raises(InputError, match="each row"):
        step(data, public, persons=CODES[:-1])


def test_estimators_take_a_column_of_names() -> None:
    x, y = blobs(90, 1)
    frame = pd.DataFrame(x.numpy(), columns=list("abcd")).assign(patient=CODES)
    frame.loc[3, "a"] = np.nan
    options: dict[str, Any] = {"classes": [0, 1, 2], "method": dp_sgd(), "steps": 2, "random_state": 1}
    model = PrivateNetClassifier(mlp(), unit="patient", **{"epsilon": 1.0, **options}).fit(frame, y.numpy())
    assert model.privacy_.unit == "patient" and model.n_features_in_ == 4
    assert len(model.predict(frame.drop(index=3))) == 89
    beside = PrivateNetClassifier(mlp(), unit="patient", **{"epsilon": 1.0, **options})
    beside.fit(frame.drop(columns="patient").to_numpy(), y.numpy(), persons=CODES)
    assert str(beside.privacy_) == str(model.privacy_)


# ---------------------------------------------------------------------------------------------------
# planted faults


def moved_by_a_person(data: Any) -> float:
    """How far all rows of one person move the first sum, in units of its sensitivity."""
    gone = data[0].clone()
    gone[torch.from_numpy(CODES == 7)] = torch.nan
    with_, _ = trained(data)
    without, _ = trained((gone, data[1]))
    return float((with_.sums[0] - without.sums[0]).norm()) / CLIP


def test_contract_catches_rows_that_are_clipped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs(90, 1, torch.float64)
    data[0][torch.from_numpy(CODES == 7)], data[1][torch.from_numpy(CODES == 7)] = 50.0, 0
    assert moved_by_a_person(data) <= 1 + 1e-9
    honest = NetworkOracle.clipped_sum

    def row_by_row(self: Any, batch: Any, **options: Any) -> Any:
        kept = options.pop("weights") > 0
        rows = tuple(part[kept] for part in batch)
        return honest(self, rows, **{**options, "augmentations": 1})

    monkeypatch.setattr(NetworkOracle, "clipped_sum", row_by_row)
    assert moved_by_a_person(data) > 2


def test_contract_catches_weights_of_one_a_row_after_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who is clipped as a mean, and then counted once for each row."""
    data = blobs(90, 1, torch.float64)
    honest = NetworkOracle.clipped_sum

    def by_rows(self: Any, batch: Any, *, weights: Tensor, augmentations: int, **options: Any) -> Any:
        each = (weights.view(-1, augmentations) > 0).sum(1)
        parts = batch[0].split(augmentations), batch[1].split(augmentations), weights.split(augmentations)
        some = zip(*parts, each.tolist(), strict=True)
        sums = [
            value_of(honest(self, (x, y), weights=w, augmentations=augmentations, **options)) * n
            for x, y, w, n in some
        ]
        return network_oracle.BoundedSum(sum(sums), sensitivity=CLIP, relation=ADD_REMOVE)

    monkeypatch.setattr(NetworkOracle, "clipped_sum", by_rows)
    assert moved_by_a_person(data) > 2


def test_which_rows_are_drawn_and_what_rows_draw_have_seeds_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a person's number, which others move, ties their rows to random numbers of another's."""
    used: list[tuple[int, int]] = []

    def noted(secret: int, number: int) -> int:
        used.append((secret, number))
        return record_seed(secret, number)

    monkeypatch.setattr(person_records, "record_seed", noted)
    order, offsets = np.arange(12), np.array([0, 4, 8, 12])
    person_records._rows_of(np.arange(3), order, offsets, 2, 5)
    assert len(used) == 3 and not {(5, row) for row in range(12)} & set(used)
