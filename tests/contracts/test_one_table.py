"""Every face shows the ledger its records: those of another table are refused, and nothing is charged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sidelight import Ledger, PrivateClassifier, PrivateRegressor
from sidelight.cli import main
from sidelight.errors import DatasetMismatch
from sidelight.tables import fit_tables

pandas = pytest.importorskip("pandas")

Fit = Callable[[int, float, Any], Any]  # number of records, something added to all values, the ledger


def table(n: int, plus: float) -> Any:
    values = np.random.default_rng(0).uniform(0, 0.5, (n, 2)) + plus
    return pandas.DataFrame({"a": values[:, 0], "b": values[:, 1], "label": np.arange(n) % 2})


PUBLIC = table(40, 0.25)


def classify(n: int, plus: float, ledger: Any) -> Any:
    data = table(n, plus)
    X, y = data[["a", "b"]].to_numpy(), data["label"].to_numpy()
    model = PrivateClassifier(
        "output_perturbation", epsilon=1.0, ledger=ledger, bounds=(0.0, 1.0), classes=[0, 1]
    )
    return model.fit(X, y)


def classify_frame(n: int, plus: float, ledger: Any) -> Any:
    data = table(n, plus)
    model = PrivateClassifier("dp_sgd", epsilon=1.0, ledger=ledger, bounds=(0.0, 1.0), classes=[0, 1])
    return model.fit(data[["a", "b"]], data["label"])


def classify_mixed(n: int, plus: float, ledger: Any) -> Any:
    data, shown = (one.assign(c=np.where(one.a > 0.3, "x", "y")) for one in (table(n, plus), PUBLIC))
    model = PrivateClassifier("dp_sgd", epsilon=1.0, ledger=ledger)
    return model.fit(data[["a", "b", "c"]], data["label"], shown[["a", "b", "c"]], shown["label"])


def regress(n: int, plus: float, ledger: Any) -> Any:
    data = table(n, plus)
    model = PrivateRegressor("only_public", epsilon=1.0, ledger=ledger)
    return model.fit(data[["a"]], data["b"], PUBLIC[["a"]], PUBLIC["b"])


def fit_table(n: int, plus: float, ledger: Any) -> Any:
    return fit_tables(table(n, plus), PUBLIC, target="label", epsilon=0.5, ledger=ledger, method="dp_sgd")


def train(n: int, plus: float, ledger: Any) -> Any:
    deep, nn, records = network(n, plus)
    return deep.Trainer(
        nn.Linear(2, 2), nn.CrossEntropyLoss(), epsilon=0.5, steps=1, ledger=ledger, progress=False
    ).fit(records)


def train_listed(n: int, plus: float, ledger: Any) -> Any:
    deep, nn, (x, y) = network(n, plus)
    items = Items(list(zip(x, y, strict=True)))
    return deep.Trainer(
        nn.Linear(2, 2), nn.CrossEntropyLoss(), epsilon=0.5, steps=1, ledger=ledger, progress=False
    ).fit(items)


def net_classify(n: int, plus: float, ledger: Any) -> Any:
    deep, nn, _ = network(n, plus)
    data = table(n, plus)
    model = deep.PrivateNetClassifier(
        nn.Linear(2, 2), epsilon=1.0, steps=1, epochs=None, classes=[0, 1], ledger=ledger
    )
    return model.fit(data[["a", "b"]].to_numpy(), data["label"].to_numpy())


def step(n: int, plus: float, ledger: Any) -> Any:
    from sidelight.privacy.identity import Identity

    deep, nn, (x, y) = network(n, plus)
    one = deep.PrivateStep(
        nn.Linear(2, 2), nn.CrossEntropyLoss(), n_private=n, expected_batch_size=None, epsilon=0.5,
        delta=1e-6, steps=1, ledger=ledger, identity=Identity.of(x, y),
    )  # fmt: skip
    one((x, y))
    return one


def network(n: int, plus: float) -> Any:
    torch = pytest.importorskip("torch")
    from sidelight import deep

    data = table(n, plus)
    x = torch.tensor(data[["a", "b"]].to_numpy(), dtype=torch.float32)
    return deep, torch.nn, (x, torch.tensor(data["label"].to_numpy()))


class Items:
    """A dataset that is nothing but len() and items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


FACES: dict[str, Fit] = {
    "array": classify, "frame": classify_frame, "mixed frame": classify_mixed,
    "only_public": regress, "table": fit_table, "Trainer": train,
    "Trainer, any dataset": train_listed, "PrivateNetClassifier": net_classify, "PrivateStep": step,
}  # fmt: skip
RELATION = {"array": "replace-one", "only_public": "replace-one"}


def ledger_for(face: str, **options: Any) -> Ledger:
    ledger = Ledger.in_memory()
    relation: Any = RELATION.get(face, "add-or-remove-one")
    ledger.register("people", relation=relation, epsilon=5.0, delta=1e-5, **options)
    return ledger


@pytest.mark.parametrize("face", FACES)
def test_records_of_another_table_are_refused(face: str) -> None:
    fit, ledger = FACES[face], ledger_for(face)
    first = fit(60, 0.0, ledger)
    fit(60, 0.5, ledger)  # contents do not count without agreement
    with pytest.raises(DatasetMismatch, match="50 records"):
        fit(50, 0.0, ledger)
    assert len(ledger.charges("people")) == 2
    assert all(charge.evidence is not None for charge in ledger.charges("people"))
    assert "this run bound the dataset to" in first.privacy_.ledger["records"]


@pytest.mark.parametrize("face", FACES)
def test_other_contents_are_refused_where_the_owner_agreed(face: str) -> None:
    fit, ledger = FACES[face], ledger_for(face, fingerprint=True)
    fit(60, 0.0, ledger)
    again = fit(60, 0.0, ledger)
    with pytest.raises(DatasetMismatch, match="other contents"):
        fit(60, 0.5, ledger)
    assert len(ledger.charges("people")) == 2
    assert "keyed fingerprint" in again.privacy_.ledger["records"]


def test_a_table_is_the_same_by_every_door(tmp_path: Path) -> None:
    """A frame in Python, its features and target apart, and the file on the command line."""
    path = tmp_path / "people.ledger"
    ledger = Ledger.create(path)
    ledger.register("people", relation="add-or-remove-one", epsilon=5.0, delta=1e-5)
    fit_table(60, 0.0, ledger)
    classify_frame(60, 0.0, ledger)
    table(60, 0.0).to_csv(tmp_path / "private.csv", index=False)
    PUBLIC.to_csv(tmp_path / "public.csv", index=False)
    fit = [
        "fit",
        str(tmp_path / "private.csv"),
        "--public",
        str(tmp_path / "public.csv"),
        "--target",
        "label",
    ]
    pay = ["--epsilon", "0.5", "--method", "dp_sgd", "--ledger", str(path)]
    assert main([*fit, *pay, "--out", str(tmp_path / "one")]) == 0
    table(61, 0.0).to_csv(tmp_path / "private.csv", index=False)
    assert main([*fit, *pay, "--out", str(tmp_path / "two")]) == 2
    assert len(ledger.charges("people")) == 3 and len(ledger.bindings("people")) == 1


def test_a_step_without_an_identity_shows_its_number_of_records() -> None:
    deep, nn, (x, y) = network(60, 0.0)
    ledger = ledger_for("step")
    options: dict[str, Any] = {"expected_batch_size": None, "epsilon": 0.5, "delta": 1e-6, "steps": 1}
    deep.PrivateStep(nn.Linear(2, 2), nn.CrossEntropyLoss(), n_private=60, ledger=ledger, **options)((x, y))
    other = deep.PrivateStep(nn.Linear(2, 2), nn.CrossEntropyLoss(), n_private=59, ledger=ledger, **options)
    with pytest.raises(DatasetMismatch):
        other((x[:59], y[:59]))
    assert len(ledger.charges("people")) == 1


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_one_odd_record_makes_no_other_table(kind: str) -> None:
    """Rows of which one is too short are an array of lists for NumPy; an odd cell makes objects in pandas."""
    data = table(60, 0.0)
    rows = data[["a", "b"]].to_numpy().tolist()
    odd: Any = [*rows[:-1], rows[-1][:1]]
    tables = [np.array(rows), np.array(odd, dtype=object), odd]
    if kind == "frame":
        tables = [data[["a", "b"]], data[["a", "b"]].astype({"b": object})]
        tables[1].loc[3, "b"] = "unknown"
    ledger = ledger_for("array")
    for one in tables:
        model = PrivateClassifier(
            "output_perturbation", epsilon=1.0, ledger=ledger, bounds=(0.0, 1.0), classes=[0, 1]
        )
        model.fit(one, data["label"].to_numpy())
    assert len(ledger.charges("people")) == len(tables) and len(ledger.bindings("people")) == 1
