"""A dataset of a ledger knows its records: what it is bound to, and what it refuses."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sidelight.errors import DatasetMismatch, InputError, PrivacyWarning
from sidelight.privacy import events
from sidelight.privacy.identity import Identity, digest_of
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.release import Run

pandas = pytest.importorskip("pandas")

ADD = "add-or-remove-one"
SMALL = events.gaussian(50.0)
X = np.arange(12.0).reshape(4, 3)
FRAME = pandas.DataFrame({"age": [30, 40, 50], "town": ["a", "b", "a"]})


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    made = Ledger.in_memory() if request.param == "memory" else Ledger.create(tmp_path / "a.ledger")
    for name, options in (("plain", {}), ("exact", {"fingerprint": True}), ("parts", {"any_size": True})):
        made.register(name, relation=ADD, epsilon=3.0, delta=1e-6, **options)  # type: ignore[arg-type]
    return made


def begin(ledger: Ledger, identity: Identity | None, name: str = "plain") -> Run:
    return ledger.begin(name, SMALL, relation=ADD, method="test", identity=identity)


# ---------------------------------------------------------------------------------------------------
# the first run binds, later ones must agree


def test_the_first_run_binds_in_the_entry_of_its_charge(ledger: Ledger) -> None:
    assert ledger.bindings("plain") == []
    run = begin(ledger, Identity.of(FRAME))
    [charge] = ledger.charges("plain")
    assert charge.evidence == run.evidence and charge.evidence is not None
    assert charge.evidence.binds == ledger.bindings("plain")[0]
    assert ledger.bindings("plain")[0].identity == Identity(3, {"age": None, "town": None})
    assert begin(ledger, Identity.of(FRAME)).evidence.checked == (  # type: ignore[union-attr]
        "number of records",
        "column names",
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (FRAME.iloc[:2], "2 records, not 3"),
        (FRAME.rename(columns={"town": "city"}), "no column 'town'; column 'city', which is not one"),
        (FRAME.assign(income=1.0), "column 'income', which is not one"),
        (np.zeros((3, 2)), "an array without names, not a table with named columns"),
    ],
)
def test_other_records_are_refused_and_nothing_is_charged(ledger: Ledger, other: Any, words: str) -> None:
    begin(ledger, Identity.of(FRAME))
    with pytest.raises(DatasetMismatch, match=words) as caught:
        begin(ledger, Identity.of(other))
    assert "Nothing was charged" in str(caught.value) and "rebind" in str(caught.value)
    assert len(ledger.charges("plain")) == 1 and len(ledger.bindings("plain")) == 1


ODD: list[Any] = [None, "?", "sixty", 10**5000, [1], (), np.nan, object(), np.arange(2), pandas.NA]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_one_odd_cell_makes_no_other_table(ledger: Ledger, odd: Any) -> None:
    """It turns a column of numbers into objects: the cell is private, so the type is too."""
    table = pandas.DataFrame({"age": np.arange(5.0), "sex": np.arange(5) > 2, "town": list("abcde")})
    begin(ledger, Identity.of(table))
    for name in table.columns:
        column = table[name].astype(object)
        column.array[1] = odd
        begin(ledger, Identity.of(table.assign(**{name: column})))
        begin(ledger, Identity.of(table.drop(columns=name), column))
    texts = table.assign(age=["0", "1", "sixty", "3", "4"])  # as a text file with an odd cell is read
    begin(ledger, Identity.of(texts))


@pytest.mark.parametrize("numbers", range(8))
def test_no_number_of_odd_cells_makes_another_table(ledger: Ledger, numbers: int) -> None:
    """What most cells are was a fact of the table; of seven cells, one can be the one that decides."""
    cells = ["1"] * numbers + ["x"] * (7 - numbers)
    table = pandas.DataFrame({"age": pandas.Series(cells, dtype=object)})
    for one in (table, table.astype(str), pandas.DataFrame({"age": np.arange(7.0)})):
        assert Identity.of(one) == Identity(7, {"age": None})


def test_types_that_were_declared_are_compared(ledger: Ledger) -> None:
    begin(ledger, Identity(3, {"age": "number", "town": None}))
    begin(ledger, Identity.of(FRAME))
    with pytest.raises(DatasetMismatch, match="'age'"):
        begin(ledger, Identity(3, {"age": "other", "town": None}))


def test_arrays_are_known_by_shape_and_number(ledger: Ledger) -> None:
    begin(ledger, Identity.of(X))
    begin(ledger, Identity.of(sparse.csr_matrix(X)))
    begin(ledger, Identity.of(X.astype(np.float32) + 1))  # contents are not looked at
    for other in (X[:, :2], X[:3], X[:, :, None]):
        with pytest.raises(DatasetMismatch):
            begin(ledger, Identity.of(other))


def test_what_a_run_does_not_know_is_not_compared(ledger: Ledger) -> None:
    begin(ledger, Identity.of(X))
    run = begin(ledger, Identity(4))
    assert run.evidence is not None and run.evidence.checked == ("number of records",)
    with pytest.raises(DatasetMismatch, match="5 records"):
        begin(ledger, Identity(5))
    assert begin(ledger, None).evidence is None


def test_types_of_a_text_file_are_not_known(ledger: Ledger) -> None:
    begin(ledger, Identity(3, {"age": None, "town": None}))
    begin(ledger, Identity.of(FRAME))
    begin(ledger, Identity.of(FRAME[["town", "age"]]))


def test_parts_are_accepted_where_the_owner_said_so(ledger: Ledger) -> None:
    begin(ledger, Identity.of(X), "parts")
    run = begin(ledger, Identity.of(X[:2]), "parts")
    assert run.evidence is not None and run.evidence.checked == ("shape of a record",)
    with pytest.raises(DatasetMismatch, match="shape"):
        begin(ledger, Identity.of(X[:, :2]), "parts")


def test_rebind_lets_one_run_add_a_form_and_keeps_the_charges(ledger: Ledger) -> None:
    begin(ledger, Identity.of(X))
    spent = ledger.total("plain").epsilon
    ledger.rebind("plain")
    begin(ledger, Identity.of(X))  # the same as before: it uses up nothing
    begin(ledger, Identity.of(FRAME))
    assert len(ledger.bindings("plain")) == 2 and ledger.total("plain").epsilon > spent
    begin(ledger, Identity.of(X))
    with pytest.raises(DatasetMismatch):
        begin(ledger, Identity.of(X[:3]))


def test_a_table_under_a_second_name_is_warned_of(ledger: Ledger) -> None:
    ledger.register("again", relation=ADD, epsilon=3.0, delta=1e-6)
    begin(ledger, Identity.of(FRAME))
    with pytest.warns(PrivacyWarning, match="'again'"):
        begin(ledger, Identity.of(FRAME), "again")
    begin(ledger, Identity.of(FRAME), "again")  # once


# ---------------------------------------------------------------------------------------------------
# contents, where the owner agreed


def test_contents_are_not_read_without_agreement(ledger: Ledger) -> None:
    def read() -> Any:
        raise KeyboardInterrupt

    identity = Identity(4, shape=(3,), contents=read)
    begin(ledger, identity)
    begin(ledger, identity)
    with pytest.raises(KeyboardInterrupt):
        begin(ledger, identity, "exact")


def test_records_of_one_dataset_are_not_charged_to_another(ledger: Ledger) -> None:
    """Both have fingerprints and the same columns and number of records."""
    ledger.register("other", relation=ADD, epsilon=3.0, delta=1e-6, fingerprint=True)
    begin(ledger, Identity.of(X), "exact")
    with pytest.raises(DatasetMismatch, match="'exact', not of 'other'"):
        begin(ledger, Identity.of(X), "other")
    begin(ledger, Identity.of(X + 1), "other")
    for identity in (Identity.of(X), Identity.of(X + 2)):
        with pytest.raises(DatasetMismatch):
            begin(ledger, identity, "other")
    assert [len(ledger.charges(name)) for name in ("exact", "other")] == [1, 1]


def test_one_changed_value_is_other_contents(ledger: Ledger) -> None:
    begin(ledger, Identity.of(X, X[:, 0]), "exact")
    run = begin(ledger, Identity.of(X.copy(), X[:, 0].copy()), "exact")
    assert run.evidence is not None and run.evidence.checked[-1] == "keyed fingerprint"
    changed = X.copy()
    changed[2, 1] += 1e-9
    with pytest.raises(DatasetMismatch, match="contents, though") as caught:
        begin(ledger, Identity.of(changed, X[:, 0]), "exact")
    [bound] = ledger.bindings("exact")
    assert bound.mac and bound.mac not in str(caught.value) + repr(ledger.bindings("exact"))


def test_a_run_that_cannot_show_its_records_is_refused_where_contents_count(ledger: Ledger) -> None:
    for identity in (None, Identity(4, shape=(3,))):
        with pytest.raises(DatasetMismatch, match="registered"):
            begin(ledger, identity, "exact")
    assert ledger.charges("exact") == []


def test_a_fingerprint_is_keyed_and_stays_out_of_exports(ledger: Ledger) -> None:
    begin(ledger, Identity.of(X), "exact")
    [bound] = ledger.bindings("exact")
    assert bound.key and bound.mac and bound.mac != digest_of(X).hex()
    text = json.dumps(ledger.export())
    assert bound.mac not in text and bound.key not in text and digest_of(X).hex() not in text
    shown = ledger.export("exact", fingerprints=True)["datasets"]["exact"]["bound_to"]
    assert shown[0]["fingerprint"] == bound.mac


def test_a_declaration_says_whether_and_not_which(ledger: Ledger) -> None:
    for wrong in ({"fingerprint": "ab" * 32}, {"any_size": 1}, {"fingerprint": True, "any_size": True}):
        with pytest.raises(InputError):
            ledger.register("new", relation=ADD, epsilon=1.0, delta=1e-6, **wrong)  # type: ignore[arg-type]
    assert "new" not in ledger.datasets()


class Hostile:
    """Raises at whatever is done to it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("private value")


class Word(str):
    """A text that cannot be encoded."""

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("private value")


HOSTILE = [
    10**5000, -(10**5000), Decimal("sNaN"), (1, [2]), Hostile(), Word("x"), "\ud800", float("nan"), None,
    b"\xff",    {"a": Hostile()}, datetime.datetime(2020, 1, 1), np.datetime64("NaT"), object(),
]  # fmt: skip


def test_no_content_stops_a_fingerprint(ledger: Ledger) -> None:
    nested: list[Any] = []
    nested.extend([nested] * 1000)  # a list of itself
    column = np.empty(len(HOSTILE) + 1, dtype=object)
    for place, value in enumerate([*HOSTILE, nested]):
        column[place] = value
    frame = pandas.DataFrame({"a": column})
    begin(ledger, Identity.of(frame), "exact")
    begin(ledger, Identity.of(frame.copy()), "exact")
    assert len(ledger.charges("exact")) == 2
    assert digest_of(column) == digest_of(column.copy())

    def read() -> Any:
        raise RuntimeError("private value")

    assert Identity(3, contents=read).digest is not None


def test_a_digest_knows_data_again() -> None:
    y = np.array(["a", "b", "a", "c"], dtype=object)
    same = digest_of(X, y)
    assert same == digest_of(np.asfortranarray(X), y.copy())
    others = [
        digest_of(X + np.eye(4, 3), y), digest_of(X[::-1], y), digest_of(X.T, y), digest_of(X, y[::-1]),
        digest_of(X.astype(np.float32), y), digest_of(X), digest_of(sparse.csr_matrix(X), y),
        digest_of(["ab", "c"]), digest_of(["a", "bc"]), digest_of([1, 2]), digest_of(["1", "2"]),
        digest_of([1], [2]),
    ]  # fmt: skip
    assert len({same, *others}) == 1 + len(others)
    assert digest_of(sparse.coo_matrix(X)) == digest_of(sparse.csr_matrix(X))
    assert digest_of(FRAME) == digest_of(FRAME[["town", "age"]]) != digest_of(FRAME.iloc[::-1])
