"""Private records: what one becomes depends on no other, and what is wrong with one is told to nobody."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.deep.networks import Tape, blobs, loss, mlp
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sidelight.deep import Loading, Trainer
from sidelight.deep.private_records import PrivateRecords
from sidelight.errors import InputError, SidelightError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.release import BoundedSum, joined
from sidelight.problems.datasets import Records, gather_for

CPU = torch.device("cpu")
X, Y = blobs(40, 1)


class Items(Dataset[Any]):
    """A dataset of a list; reading some of its records fails."""

    def __init__(self, items: list[Any], fails: tuple[int, ...] = ()) -> None:
        self.items, self.fails = items, fails

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        if place in self.fails:
            warnings.warn("secret", stacklevel=1)
            raise ValueError("secret")
        return self.items[place]


def pairs(n: int = 40) -> list[Any]:
    return list(zip(X[:n], Y[:n], strict=True))


def sequences(lengths: list[int], seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 2, generator=generator), torch.tensor(i % 2)) for i, size in enumerate(lengths)
    ]


def pad(records: list[Any]) -> Any:
    """To the longest, as everybody does."""
    return (
        nn.utils.rnn.pad_sequence([x for x, _ in records], batch_first=True),
        torch.stack([y for _, y in records]),
    )


class Pooled(nn.Module):
    """The mean over positions, padding included."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(100 * x.mean(1))


def trainer(model: nn.Module | None = None, **options: Any) -> Trainer:
    chosen: dict[str, Any] = {"epsilon": 3, "delta": 1e-4, "steps": 2, "progress": False, **options}
    return Trainer(mlp() if model is None else model, loss, **chosen)


def charged(**options: Any) -> tuple[Trainer, Ledger]:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-3)
    return trainer(ledger=ledger, **options), ledger


# ---------------------------------------------------------------------------------------------------
# a record is alone


def sum_over(monkeypatch: pytest.MonkeyPatch, records: list[Any], public: Any, workers: int) -> Tensor:
    tape = Tape()
    monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
    made = trainer(
        Pooled(), method=dp_sgd(clip_norm=1.0), steps=1, loading=Loading(collate=pad, workers=workers),
        epsilon=100.0,
    )  # fmt: skip
    made.fit(Items(records), public)
    return tape.sums[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("public", [None, Items(sequences([3, 6, 5, 4], seed=1))])
def test_a_long_record_does_not_change_the_padding_of_others(
    monkeypatch: pytest.MonkeyPatch, public: Any, workers: int
) -> None:
    """Pad-to-longest before an unmasked mean: one record moved the sum by many times its bound."""
    short = sequences([2 + i % 3 for i in range(30)])
    long = (torch.full((400, 2), 50.0), torch.tensor(0))
    before = sum_over(monkeypatch, short, public, workers)
    after = sum_over(monkeypatch, [*short, long], public, workers)
    assert float((after - before).norm()) <= 1.0 + 1e-4


def test_rows_are_padded_to_a_public_length() -> None:
    records = PrivateRecords(Items(sequences([2, 3, 9])), Loading(collate=pad), CPU)
    records.prepare(Records(Items(sequences([3, 6, 5])), Loading(collate=pad), CPU))
    shapes = sorted(tuple(batch[0].shape) for batch in records.batches(None))
    assert shapes == [(1, 9, 2), (2, 6, 2)]


def test_rows_of_one_length_are_together_without_public_records() -> None:
    records = PrivateRecords(Items(sequences([2, 3, 2, 2, 9])), Loading(collate=pad), CPU)
    records.prepare(None)
    shapes = sorted(tuple(batch[0].shape) for batch in records.batches([0, 1, 2, 4]))
    assert shapes == [(1, 3, 2), (1, 9, 2), (2, 2, 2)]


def test_parts_of_a_sum_are_joined_under_one_relation() -> None:
    one = BoundedSum(np.ones(2), sensitivity=1.0, relation="add-or-remove-one")
    two = BoundedSum(np.ones(2), sensitivity=2.0, relation="add-or-remove-one")
    assert joined([one, two]).sensitivity == 2.0
    with pytest.raises(SidelightError):
        joined([one, BoundedSum(np.ones(2), sensitivity=1.0, relation="replace-one")])
    with pytest.raises(SidelightError):
        joined([])


# ---------------------------------------------------------------------------------------------------
# a bad record is silent


STRANGE: dict[str, Any] = {
    "another type": (X[0].double(), Y[0]), "another shape": (X[0][:2], Y[0]), 
    "other dimensions": (X[:2], Y[0]),
    "a text": ("secret", Y[0]), "no target": (X[0],), "nothing": None, "a text as target": (X[0], "secret"),
    "a list": ([X[0]], Y[0]), "a class that is not there": (X[0], torch.tensor(99)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("strange", "place", "workers"),
    [*((strange, place, 0) for strange in (*STRANGE, "fails") for place in (0, 5)), ("fails", 5, 2)],
)
def test_a_strange_record_is_as_if_it_were_not_there(
    monkeypatch: pytest.MonkeyPatch, strange: str, place: int, workers: int
) -> None:
    sums = []
    for changed in (False, True):
        tape = Tape()
        monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
        items, fails = pairs(), ()
        if changed:
            items.insert(place, STRANGE.get(strange))
            fails = (place,) if strange == "fails" else ()
        chosen: dict[str, Any] = {"steps": 1, "epsilon": 100.0, "loading": Loading(workers=workers)}
        trainer(**chosen).fit(Items(items, fails))
        sums.append(tape.sums[0])
    torch.testing.assert_close(*sums, rtol=1e-6, atol=1e-6)  # added up in float32, in another order


def test_an_augmentation_that_fails_on_a_record_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Tensor) -> Tensor:
        if bool((x > 1e6).any()):
            raise ValueError("secret")
        return x

    sums = []
    for extra in ((), ((torch.full((4,), 1e7), Y[0]),)):
        tape = Tape()
        monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
        data = [*pairs(), *extra]
        made = trainer(steps=1, epsilon=100.0, augment=fails, augmentations=2)
        made.fit((torch.stack([x for x, _ in data]), torch.stack([y for _, y in data])))
        sums.append(tape.sums[0])
    torch.testing.assert_close(*sums)


def test_an_augmentation_never_sees_an_empty_batch() -> None:
    seen: list[int] = []

    def shift(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x + 0 * x.max()  # the largest of nothing is an error

    for data in ((X, Y), Items(pairs())):
        made = trainer(augment=shift, expected_batch_size=0.5, steps=20)
        assert len(made.fit(data).history_) == 20
    assert min(seen) > 0


# ---------------------------------------------------------------------------------------------------
# what is wrong with all records, or with a setting, is told before the charge, or the charge is given back


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(pairs())


class Endless(Dataset[Any]):
    def __getitem__(self, place: int) -> Any:
        return X[place], Y[place]


class Unsized(Endless):
    def __len__(self) -> int:
        raise NotImplementedError


def squeezed(records: list[Any]) -> Any:
    return torch.stack([x for x, _ in records]).squeeze(), torch.stack([y for _, y in records]).squeeze()


NOT_DATA: dict[str, tuple[Any, str]] = {
    "a stream": (Stream(), "Stream is an IterableDataset; .*store its records"),
    "no length": (Endless(), "Endless is not a dataset"),
    "a length that fails": (Unsized(), "does not say how many records"),
    "a DataLoader": (
        DataLoader(TensorDataset(X, Y)),
        r"(?s)collate=loader.collate_fn.*expected_batch_size=loader.batch_size.*fit\(loader.dataset, ",
    ),
    "arrays": ((X.numpy(), Y.numpy()), "torch.as_tensor"),
    "a list of records": (pairs(), "pair of tensors"),
    "a dictionary": ({"x": X, "y": Y}, "one of them is 'labels'"),
    "a tensor": (X, "Tensor is not a dataset"),
    "nothing": (None, "NoneType is not a dataset"),
    "a subset of more": (
        Subset(TensorDataset(X, Y), [0, 99]),
        "records that its dataset does not",
    ),
}


@pytest.mark.parametrize("what", NOT_DATA)
@pytest.mark.parametrize("role", ["private", "public", "validation"])
def test_what_is_no_dataset_is_named(what: str, role: str) -> None:
    data, words = NOT_DATA[what]
    if what in ("nothing", "arrays") and role != "private":  # public ones are taken
        return
    made, ledger = charged(**({"validation": data} if role == "validation" else {}))
    with pytest.raises(InputError, match=words) as error:
        made.fit(data if role == "private" else (X, Y), data if role == "public" else None)
    lines = 4 if isinstance(data, DataLoader) else 1  # with the lines to write instead
    assert len(str(error.value).splitlines()) == lines and not ledger.charges("people")


ALL_WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "dictionaries": (Items([{"x": x, "y": y} for x, y in pairs()]), {}, r"must be \(inputs, targets\)"),
    "triples": (Items([(x, y, y) for x, y in pairs()]), {}, r"must be \(inputs, targets\)"),
    "texts": (Items([("secret", int(y)) for _, y in pairs()]), {}, "tensors or numbers"),
    "failures": (Items(pairs(), tuple(range(40))), {}, "no record that can be trained on"),
    "a collate that fails": (Items(pairs()), {"loading": Loading(collate=lambda _: 1 / 0)}, "no record that"),
    "a collate that squeezes": (Items(pairs()), {"loading": Loading(collate=squeezed)}, "no record that"),
    "another type than public": (Items([(x.double(), y) for x, y in pairs()]), {"public": True}, "types"),
}  # fmt: skip


@pytest.mark.parametrize("what", ALL_WRONG)
def test_what_no_record_can_do_is_told_and_costs_nothing(what: str) -> None:
    data, options, words = ALL_WRONG[what]
    public = (X[:20] + 1, Y[:20]) if options.pop("public", False) else None
    made, ledger = charged(**options)
    with pytest.raises(InputError, match=words) as error:
        made.fit(data, public)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)
    assert ledger.total("people").epsilon == 0


PUBLIC_WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing in it": (Items([None] * 20), {}, "NoneType"),
    "unequal lengths": (Items(sequences([2, 3, 4] * 5)), {}, "stack expects"),
    "a collate that fails": (
        Items(pairs(20)),
        {"loading": Loading(collate=lambda _: 1 / 0)},
        "division by zero",
    ),
    "a collate that squeezes": (Items(pairs(20)), {"loading": Loading(collate=squeezed)}, "one row"),
}


@pytest.mark.parametrize("what", PUBLIC_WRONG)
def test_what_public_records_show_is_told_before_the_charge(what: str) -> None:
    public, options, words = PUBLIC_WRONG[what]
    made, ledger = charged(**options)
    with pytest.raises(InputError, match=words):
        made.fit(Items(pairs()), public)
    assert not ledger.charges("people")


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "augment that fails": ({"augment": lambda _: 1 / 0}, "augment= fails .ZeroDivisionError"),
    "augment that drops rows": ({"augment": lambda x: x[:1]}, "one row per input row"),
    "optimizer of nothing": ({"optimizer": lambda _: None}, "optimizer= returned NoneType"),
    "an optimizer": ({"optimizer": torch.optim.SGD([nn.Parameter(X)], lr=1.0)}, "makes one.*not SGD"),
    "LBFGS": ({"optimizer": lambda p: torch.optim.LBFGS(p)}, "LBFGS asks for the loss several times"),
    "a scheduler that needs a score": (
        {"scheduler": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o), "validation": 0},
        "ReduceLROnPlateau"),
    "a number as method": ({"method": 3}, "method must be a name or a method"),
    "no method": ({"method": None}, "method must be a name or a method"),
    "a number as loading": ({"loading": 3}, "loading must be a Loading"),
    "a number as checkpoints": ({"checkpoints": 3}, "checkpoints must be a Checkpoints"),
    "a number as warm_up": ({"warm_up": 3}, "warm_up must be a PublicTraining"),
}  # fmt: skip


@pytest.mark.parametrize("what", SETTINGS)
def test_a_setting_that_cannot_be_meant_is_named(what: str) -> None:
    options, words = SETTINGS[what]
    made, ledger = charged(**options)
    with pytest.raises(InputError, match=words) as error:
        made.fit((X, Y), (X[:20] + 1, Y[:20]))
    assert "\n" not in str(error.value) and not ledger.charges("people")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.ReLU(), "no trainable parameters"),
        (nn.Linear(4, 3).requires_grad_(False), "no trainable parameters"),
        (nn.Linear(4, 3, device="meta"), "meta device"),
        ("net", "must be a torch.nn.Module, not str"),
    ],
)
def test_a_model_without_values_is_named(model: Any, words: str) -> None:
    made, ledger = charged()
    made.model = model
    with pytest.raises(InputError, match=words):
        made.fit((X, Y))
    assert not ledger.charges("people")


def test_a_lazy_model_is_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy = nn.LazyLinear(3)
    with pytest.raises(InputError, match="made-up"):
        trainer(lazy).fit((X, Y))


@pytest.mark.parametrize(
    "data",
    [
        Items(pairs()), Items([(x.numpy(), int(y)) for x, y in pairs()]),
        ConcatDataset([TensorDataset(X, Y), Items(pairs())]),
        Subset(Items(pairs()), range(20)), Subset(TensorDataset(X, Y), list(range(10))),
    ],
)  # fmt: skip
def test_datasets_that_people_have_are_trained_on(data: Any) -> None:
    made, ledger = charged(expected_batch_size=1000)
    made.fit(data)
    assert len(ledger.charges("people")) == 1 and ledger.bindings("people")[0].identity.records == len(data)


def shuffled(records: list[Any]) -> Any:
    return pad([records[i] for i in torch.randperm(len(records))])


@pytest.mark.parametrize("lengths", [[3, 6, 4], [5, 5, 5]])
@pytest.mark.parametrize(
    "collate",
    [
        lambda records: pad(sorted(records, key=lambda record: -len(record[0]))),
        lambda records: pad(sorted(records, key=lambda record: len(record[0]))),
        lambda records: pad(records[::-1]),
        shuffled,
    ],
)
def test_a_collate_that_moves_records_is_refused_before_the_charge(collate: Any, lengths: list[int]) -> None:
    """It is given a private record beside a public one, and the first row is taken for the private one's."""
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    trainer = Trainer(
        Pooled(), loss, method=dp_sgd(steps=1), epsilon=1.0, delta=1e-5, progress=False, ledger=ledger,
        dataset="people", loading=Loading(collate=collate),
    )  # fmt: skip
    with pytest.raises(InputError, match="another order"):
        trainer.fit(Items(sequences([2, 9, 4])), Items(sequences(lengths, 1)))
    assert not ledger.charges("people")


def masked(records: list[Any]) -> Any:
    """Some numbers are hidden, at random."""
    x, y = pad(records)
    return x * (torch.rand(x.shape) < 0.8), y


@pytest.mark.parametrize("collate", [pad, masked])
def test_a_collate_that_keeps_the_order_is_taken(collate: Any) -> None:
    records = PrivateRecords(Items(sequences([2, 9, 4])), Loading(collate=collate), CPU)
    records.prepare(Records(Items(sequences([3, 6, 6], 1)), Loading(collate=collate), CPU))
    assert sum(len(x) for x, _ in records.batches(None)) == 3


def test_rows_of_tensors_are_taken_at_once_and_in_order() -> None:
    first, second = TensorDataset(X, Y), TensorDataset(X + 100, Y + 1)
    both = ConcatDataset([Subset(first, [5, -1, 2]), second, Subset(ConcatDataset([second, first]), [-1, 0])])
    take = gather_for(both)
    assert take is not None
    wanted = np.array([len(both) - 1, 0, 1, 4, 2, 0, len(both) - 2])
    items = [both[int(i)] for i in wanted]
    assert all(
        torch.equal(found, torch.stack(rows))
        for found, rows in zip(take(wanted), zip(*items, strict=True), strict=True)
    )
    assert all(len(found) == 0 for found in take(np.arange(0)))


class Doubled(Subset[Any]):
    def __getitem__(self, place: Any) -> Any:
        x, y = super().__getitem__(place)
        return 2 * x, y

    def __getitems__(self, places: Any) -> Any:
        return [self[place] for place in places]


def test_a_class_of_ones_own_and_rows_of_two_forms_are_asked_for_items() -> None:
    plain = TensorDataset(X, Y)
    for dataset in (
        Doubled(plain, [0, 1]),
        ConcatDataset([plain, Doubled(plain, [0])]),
        ConcatDataset([plain, TensorDataset(X.double(), Y)]),
        ConcatDataset([plain, TensorDataset(X[:, :1], Y)]),
    ):
        assert gather_for(dataset) is None
    rows, _ = PrivateRecords(Doubled(plain, [3, 4]), Loading(), torch.device("cpu")).batches(None)[0]
    assert torch.equal(rows, 2 * X[3:5])
