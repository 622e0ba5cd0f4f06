"""The one door: charge first, then noise; and nothing private gets out any other way."""

import ast
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

import sidelight
from sidelight.errors import AssumptionError, BudgetExceeded, PrivacyConditionError, RelationError
from sidelight.privacy import events, filters
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import (
    BoundedSum,
    Released,
    perturbed_solution,
    release,
    release_on_grid,
    release_sketch,
    select,
)

AR, RO = "add-or-remove-one", "replace-one"
PACKAGE = Path(sidelight.__file__).parent


class Watched(Noise):
    """A noise source that notes when it is asked."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    @property
    def generator(self):
        self.log.append("noise")
        return super().generator

    def bound(self, *about):
        self.log.append("noise")
        return self


class Book:
    def __init__(self, log: list[str] | None = None, refuse: bool = False) -> None:
        self.log, self.refuse, self.charged = ([] if log is None else log), refuse, []

    def charge(self, event) -> None:
        self.log.append("charge")
        if self.refuse:
            raise BudgetExceeded("nothing is left")
        self.charged.append(event)


def a_sum(value=(1.0, 2.0), sensitivity=1.0, relation=AR) -> BoundedSum:
    return BoundedSum(np.array(value), sensitivity=sensitivity, relation=relation)


DOORS = {
    "release": lambda book, noise: release(
        a_sum(), std=2.0, event=events.gaussian(2.0), account=book, noise=noise
    ),
    "release_on_grid": lambda book, noise: release_on_grid(a_sum(), rho=0.1, account=book, noise=noise),
    "select": lambda book, noise: select(
        a_sum(), scale=2.0, event=events.ZeroConcentrated(0.5), account=book, noise=noise
    ),
    "select-gumbel": lambda book, noise: select(
        a_sum(), scale=1.0, mechanism="gumbel", event=events.ZeroConcentrated(0.5), account=book, noise=noise
    ),
    "release_sketch": lambda book, noise: release_sketch(
        BoundedSum(np.eye(2), sensitivity=1.0, relation=AR),
        ridge=10.0,
        event=events.GaussianSketch(5, 0.1),
        account=book,
        noise=noise,
    ),
    "perturbed_solution": lambda book, noise: perturbed_solution(
        lambda b: b,
        dimension=2,
        std=1.0,
        lipschitz=0.1,
        relation=AR,
        event=events.ObjectivePerturbation(0.1, 0.1, 1),
        account=book,
        noise=noise,
    ),
}


def charged_before_noise(door) -> None:
    """The contract: the first thing that a door does is to charge, and a refusal draws nothing."""
    log: list[str] = []
    door(Book(log), Watched(log))
    assert log[0] == "charge" and "noise" in log, log
    log.clear()
    with pytest.raises(BudgetExceeded):
        door(Book(log, refuse=True), Watched(log))
    assert log == ["charge"], log


@pytest.mark.parametrize("name", DOORS)
def test_the_charge_comes_before_the_noise(name):
    charged_before_noise(DOORS[name])


def test_contract_catches_noise_drawn_before_the_charge():
    def hasty(book, noise):
        drawn = noise.normal(2)
        book.charge(events.gaussian(1.0))
        return drawn

    with pytest.raises(AssertionError):
        charged_before_noise(hasty)


def constructions(source: str, name: str) -> list[int]:
    """Lines where `name` is called, subclassed, or made through its module."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        callee = node.func if isinstance(node, ast.Call) else None
        called = isinstance(callee, ast.Name | ast.Attribute) and name == getattr(
            callee, "id", getattr(callee, "attr", "")
        )
        bases = [getattr(b, "id", getattr(b, "attr", "")) for b in getattr(node, "bases", [])]
        aliased = isinstance(node, ast.alias) and node.name == name and node.asname not in (None, name)
        if called or name in bases or aliased:
            lines.append(node.lineno)
    return lines


def only_release_constructs_released(files: dict[Path, str]) -> None:
    elsewhere = {
        str(p): rows
        for p, text in files.items()
        if p.name != "release.py" and (rows := constructions(text, "Released"))
    }
    assert not elsewhere, elsewhere
    doors = {str(p) for p, text in files.items() if p.name != "release.py" and "_RELEASE_TOKEN" in text}
    assert not doors, doors


ATTACK = PACKAGE / "audit" / "tape.py"  # an audit forces the doors, on records that it makes up


def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in PACKAGE.rglob("*.py") if path != ATTACK}


def test_only_audits_force_the_doors():
    users = {
        path.parent.name
        for path, text in sources().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sidelight.audit.tape")
    }
    assert users == {"audit"}


def test_only_release_makes_released_values():
    assert len(sources()) > 5
    only_release_constructs_released(sources())


@pytest.mark.parametrize(
    "fault",
    [
        "from sidelight.privacy.release import Released\nx = Released(3, token=None)",
        "from sidelight.privacy import release\nx = release.Released(3, token=release._RELEASE_TOKEN)",
        "from sidelight.privacy.release import Released as R\nx = R(3, token=None)",
        "from sidelight.privacy.release import Released\nclass Mine(Released): pass",
    ],
)
def test_contract_catches_released_built_elsewhere(fault):
    with pytest.raises(AssertionError):
        only_release_constructs_released(sources() | {PACKAGE / "methods" / "fault.py": fault})


def test_released_cannot_be_made_by_hand():
    with pytest.raises(PrivacyConditionError, match="alone"):
        Released(np.zeros(2), token=object())


def private_value_readers(files: dict[Path, str]) -> list[str]:
    """Files that reach into a BoundedSum."""
    found = []
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            reads = isinstance(node, ast.Attribute) and node.attr == "_value"
            if (
                reads
                and path.name != "release.py"
                and not (isinstance(node.value, ast.Name) and node.value.id == "self")
            ):
                found.append(f"{path}:{node.lineno}")
    return found


def test_parts_of_a_sum_are_opened_by_whoever_adds_them_alone():
    """`share_of` carries the sum of a block to the one who holds the account; nobody else calls it."""
    found = openers({path.relative_to(PACKAGE).as_posix(): text for path, text in sources().items()})
    assert found == {
        ("share_of", "data/partitions.py"),
        ("share_of", "oracles/linear/partition_oracle.py"),
        ("across", "problems/network_ranks.py"),
    }
    for text in (
        "from sidelight.privacy.release import share_of as s",
        "from sidelight.privacy import release\nrelease.share_of(x)",
        "import sidelight.privacy.release as r\nlist(map(r.across, x))",
    ):
        assert openers({"x.py": text}), text


def openers(files):
    """Which of the functions that give away a part of a sum each file names, and by whatever way."""
    found = set()
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("release"):
                found |= {(one.name, path) for one in node.names if one.name in ("share_of", "across")}
            elif isinstance(node, ast.Attribute) and node.attr in ("share_of", "across"):
                owner = node.value
                # `Ranks.share_of` is which records are a rank's.
                if not (isinstance(owner, ast.Name) and owner.id in ("self", "ranks")):
                    found.add((node.attr, path))
    return found


def test_only_release_reads_a_bounded_sum():
    assert private_value_readers(sources()) == []
    assert private_value_readers({PACKAGE / "x.py": "total._value + 1"}) == [f"{PACKAGE / 'x.py'}:1"]


def test_a_bounded_sum_shows_nothing():
    total = a_sum((1234.5, 6789.0))
    assert "1234" not in repr(total) and "6789" not in f"{total}"
    for leak in (
        lambda: pickle.dumps(total),
        lambda: np.asarray(total),
        lambda: total == total,
        lambda: bool(total),
        lambda: hash(total),
        lambda: np.ones(2) * total,
        lambda: total + 1,
        lambda: list(total),
    ):
        with pytest.raises(TypeError):
            leak()


@pytest.mark.parametrize("sensitivity", [-1.0, math.inf, math.nan])
def test_a_sensitivity_is_a_finite_number(sensitivity):
    with pytest.raises(AssumptionError):
        a_sum(sensitivity=sensitivity)


def test_less_noise_than_accounted_is_refused_and_not_charged():
    book = Book()
    with pytest.raises(PrivacyConditionError, match="deviation 2"):
        release(a_sum(), std=1.9, event=events.gaussian(2.0), account=book, noise=Noise(1))
    with pytest.raises(PrivacyConditionError):
        release(a_sum(sensitivity=2.0), std=2.0, event=events.poisson(0.1, 2.0), account=book, noise=Noise(1))
    with pytest.raises(PrivacyConditionError):
        release(a_sum(), std=math.nan, event=events.gaussian(2.0), account=book, noise=Noise(1))
    mixture = events.MixtureOfSensitivities((1.0, 3.0), (0.5, 0.5))
    with pytest.raises(PrivacyConditionError):
        release(a_sum(relation=RO), std=0.5, event=mixture, account=book, noise=Noise(1))
    with pytest.raises(PrivacyConditionError, match="Gaussian"):
        release(a_sum(), std=9.0, event=events.ApproximateDp(1.0, 0.0), account=book, noise=Noise(1))
    assert book.charged == []


def test_a_relation_that_the_sampling_does_not_have_is_refused():
    with pytest.raises(RelationError):
        a_sum(relation="swap")
    for event, relation in ((events.poisson(0.1, 2.0), RO), (events.fixed_size(10, 2, 2.0), AR)):
        with pytest.raises(PrivacyConditionError, match="accounted"):
            release(a_sum(relation=relation), std=2.0, event=event, account=Book(), noise=Noise(1))


def test_a_filter_is_an_account():
    filter_ = filters.GaussianFilter(epsilon=1.0, delta=1e-5, relation=AR)
    steps = 0
    with pytest.raises(BudgetExceeded):
        while True:
            release(a_sum(), std=10.0, event=events.gaussian(10.0), account=filter_, noise=Noise(1))
            steps += 1
    assert steps == math.floor(filter_.total * 100)


def test_released_arithmetic_stays_released():
    out = release(a_sum(), std=2.0, event=events.gaussian(2.0), account=Book(), noise=Noise(3))
    value = out.numpy()
    vector = np.array([3.0, 4.0])
    pairs = [
        (out + vector, value + vector),
        (vector + out, vector + value),
        (out - vector, value - vector),
        (vector - out, vector - value),
        (2.0 * out, 2 * value),
        (out * vector, value * vector),
        (vector * out, vector * value),
        (out / 4, value / 4),
        (-out, -value),
        (out @ vector, value @ vector),
        (np.eye(2) @ out, value),
        (out[0], value[0]),
        (out + out, 2 * value),
        (out.map(np.abs), np.abs(value)),
    ]
    for result, expected in pairs:
        assert isinstance(result, Released)
        assert np.allclose(result.numpy(), expected)


def test_a_private_sum_is_not_mixed_into_a_released_value():
    out = release(a_sum(), std=2.0, event=events.gaussian(2.0), account=Book(), noise=Noise(3))
    with pytest.raises((PrivacyConditionError, TypeError)):
        out + a_sum()


def test_released_noise_has_the_stated_size():
    out = release(
        BoundedSum(np.zeros(100_000), sensitivity=3.0, relation=AR),
        std=6.0,
        event=events.gaussian(2.0),
        account=Book(),
        noise=Noise(3),
    )
    assert out.numpy().std() == pytest.approx(6.0, rel=0.02)


class TestGrid:
    def test_the_event_is_zcdp_and_the_noise_fits_it(self):
        book = Book()
        out = release_on_grid(
            BoundedSum(np.zeros(40_000), sensitivity=1.0, relation=RO), rho=0.5, account=book, noise=Noise(2)
        )
        assert book.charged == [events.ZeroConcentrated(0.5)]
        # std ≥ sensitivity/√2ρ = 1; rounding the cell to a power of two costs at most a factor 2.
        assert 0.98 < out.numpy().std() < 2.05

    def test_values_lie_on_a_grid_of_a_power_of_two(self):
        out = release_on_grid(a_sum((0.3, -7.1)), rho=0.5, account=Book(), noise=Noise(2)).numpy()
        cells = out / 2.0**-20
        assert np.array_equal(cells, np.rint(cells))

    def test_sensitivity_after_rounding_is_covered(self):
        """Two neighbors one sensitivity apart, rounded the worst way, in the noise's own units."""
        rho, p = 0.02, 5000
        slack = 2**20 * math.sqrt(2 * rho) - math.sqrt(p)
        cell = 2.0 ** math.ceil(math.log2(1.0 / slack))
        worst = (1.0 / cell + math.sqrt(p)) ** 2 / (2 * 2**40)
        assert worst <= rho

    def test_too_many_coordinates_for_rho_are_refused(self):
        with pytest.raises(AssumptionError, match="too small"):
            release_on_grid(
                BoundedSum(np.zeros(10_000), sensitivity=1.0, relation=AR),
                rho=1e-10,
                account=Book(),
                noise=Noise(2),
            )

    def test_a_nan_or_infinite_sum_stays_finite(self):
        out = release_on_grid(a_sum((math.nan, math.inf)), rho=0.5, account=Book(), noise=Noise(2))
        assert np.isfinite(out.numpy()).all()


@pytest.mark.parametrize(("relation", "least"), [(AR, 4.0), (RO, 8.0)])
def test_a_perturbed_objective_is_the_one_that_its_event_describes(relation, least):
    rank = {AR: 1, RO: 2}[relation]
    book, event = Book(), events.ObjectivePerturbation(0.1, 0.5, rank)

    def door(**changes):
        options = {"std": least, "event": event, "relation": relation, **changes}
        return perturbed_solution(
            lambda b: b, dimension=2, lipschitz=2.0, account=book, noise=Noise(1), **options
        )

    for change in (
        {"std": 0.999 * least}, {"std": math.nan}, {"event": events.gaussian(1.0)},
        {"event": events.ObjectivePerturbation(0.1, 0.5, 3 - rank)},
    ):  # fmt: skip
        with pytest.raises(PrivacyConditionError):
            door(**change)
    assert book.charged == []
    door()
    assert book.charged == [event]


SELECTIONS = {
    "two scores move apart": {},
    "gumbel": {"mechanism": "gumbel", "least": 1.0},
    "monotone": {"monotone": True, "least": 1.0},
    "monotone, gumbel": {"monotone": True, "mechanism": "gumbel", "least": 0.5},
    "a record replaced": {"monotone": True, "relation": RO},
    "pure": {"event": events.ApproximateDp(0.5, 0.0), "least": 4.0},
    "pure, gumbel": {"event": events.ApproximateDp(0.5, 0.0), "mechanism": "gumbel", "least": 4.0},
}


@pytest.mark.parametrize("case", SELECTIONS)
def test_a_selection_is_the_one_that_its_event_describes(case):
    """Less noise than the event accounts for is refused, as it is for sums, and nothing is charged."""
    shape = {"event": events.ZeroConcentrated(0.5), "least": 2.0, "relation": AR, **SELECTIONS[case]}
    least, relation = shape.pop("least"), shape.pop("relation")
    book, scores = Book(), BoundedSum(np.zeros(3), sensitivity=1.0, relation=relation)
    with pytest.raises(PrivacyConditionError, match=f"scale {least:g} for scores of range"):
        select(scores, scale=0.999 * least, account=book, noise=Noise(1), **shape)
    assert book.charged == []
    assert select(scores, scale=least, account=book, noise=Noise(1), **shape) in (0, 1, 2)
    assert book.charged == [shape["event"]]


@pytest.mark.parametrize(
    "event",
    [events.NoOp(), events.gaussian(9.0), events.RenyiBound(2.0, 1.0), events.ApproximateDp(0.0, 0.1)],
)
def test_an_event_of_something_else_is_no_selection(event):
    book = Book()
    for mechanism in ("exponential", "gumbel"):
        with pytest.raises(PrivacyConditionError):
            select(a_sum(), scale=1e6, mechanism=mechanism, event=event, account=book, noise=Noise(1))
    with pytest.raises(PrivacyConditionError, match="'laplace'"):
        select(
            a_sum(),
            scale=9.0,
            mechanism="laplace",
            event=events.ZeroConcentrated(1),
            account=book,
            noise=Noise(1),
        )
    assert book.charged == []


def test_selection_probabilities_are_exact():
    """Report noisy max with exponential noise, against the reference probabilities (vector N1)."""
    losses, scale = np.array([0.3, 0.1, 0.5]), 0.4
    noise, total = Noise(5), 40_000
    scores, event = BoundedSum(-losses, sensitivity=1.0, relation=AR), events.ApproximateDp(5.0, 0.0)
    for mechanism, expected in (
        ("exponential", np.array([0.2660769698, 0.5871716696, 0.1467513606])),
        ("gumbel", np.exp(-losses / scale) / np.exp(-losses / scale).sum()),
    ):
        drawn = [
            select(scores, scale=scale, mechanism=mechanism, event=event, account=Book(), noise=noise)
            for _ in range(total)
        ]
        share = np.bincount(drawn, minlength=3) / total
        assert np.abs(share - expected).max() < 5 * math.sqrt(0.25 / total)
