"""Around a public mean gradient by its factors: the same sums, no record longer than its bound, and the usual
way where the origin is no multiple of that mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.oracles.networks import private_sum  # noqa: E402
from tests.oracles.test_network_rounding import longest  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from sidelight.deep import Trainer  # noqa: E402
from sidelight.methods.parts import Automatic, Flat  # noqa: E402
from sidelight.oracles.network import factored  # noqa: E402
from sidelight.oracles.network.factored import FactoredOrigin, MeanFactors  # noqa: E402
from sidelight.oracles.network.flat import per_example  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.oracles.network.pieces import Around, Outer  # noqa: E402
from sidelight.problems.network import Batches, NetworkProblem  # noqa: E402
from sidelight.problems.network_ranks import SumQuestion  # noqa: E402

WIDTH, HIDDEN, CLASSES, SIZE, PUBLIC = 100, 544, 4, 64, 32
Batch = tuple[Tensor, Tensor]


def oracle(dtype: torch.dtype = torch.float32, size: int = SIZE) -> NetworkOracle:
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    return NetworkOracle(nn.Sequential(*layers).to(dtype), per_example(nn.CrossEntropyLoss()), pass_size=size)


def records(n: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Batch:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, WIDTH, generator=source, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, CLASSES, (n,), generator=source)


def alike(n: int, dtype: torch.dtype = torch.float32) -> Batch:
    """n times the same record, or nearly: around their mean they are all at the origin."""
    x, y = records(1, dtype=dtype)
    return x * (1 + 1e-5 * torch.arange(n, dtype=dtype)[:, None]), y.expand(n).clone()


class Uses:
    """How many weights of an origin were taken by their factors."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._usual, self.count = MeanFactors.origin, 0
        patch.setattr(MeanFactors, "origin", lambda *arguments: self._counted(*arguments))

    def _counted(self, *arguments: Any) -> FactoredOrigin | None:
        found = self._usual(*arguments)
        self.count += found is not None
        return found

    def during(self, run: Callable[[], Tensor]) -> tuple[Tensor, int]:
        self.count = 0
        return run().clone(), self.count


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> Uses:
    return Uses(monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("times", [1.0, 0.137, -3.0])
def test_sums_around_a_mean_and_its_multiples_are_those_around_any_origin(
    uses: Uses, times: float, dtype: torch.dtype
) -> None:
    ours, batch = oracle(dtype), records(150, dtype=dtype)
    origin = times * ours.mean_gradient(records(PUBLIC, 2, dtype))
    for clip in (Flat(0.3), Automatic(1.0, 0.01)):
        found, number = uses.during(lambda clip=clip: private_sum(ours, batch, clip, origin=origin))
        kept, ours._mean = ours._mean, None
        wanted, none = uses.during(lambda clip=clip: private_sum(ours, batch, clip, origin=origin))
        ours._mean = kept
        assert (number, none) == (2, 0)
        assert float((found - wanted).norm()) <= (1e-3 if dtype == torch.float32 else 1e-11) * wanted.norm()


def _through_numpy(change: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    """A change that PyTorch does not count."""

    def changed(origin: Tensor) -> Tensor:
        change(origin.numpy())
        return origin

    return changed


def _one_row(numbers: Any) -> None:
    numbers[WIDTH : 2 * WIDTH] *= -20  # no row of the sample


def _swapped(numbers: Any) -> None:
    numbers[3 * WIDTH], numbers[4 * WIDTH] = numbers[4 * WIDTH], numbers[3 * WIDTH]


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda origin: torch.randn(len(origin), generator=torch.Generator().manual_seed(3)),
    "noisy": lambda origin: origin + 1e-3 * origin.roll(1),
    "turned around in place": _through_numpy(lambda numbers: numbers.__setitem__(slice(None), numbers[::-1])),
    "one row in place": _through_numpy(_one_row),
    "two numbers in place": _through_numpy(_swapped),
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("other", OTHERS)
def test_any_other_origin_takes_the_usual_way(
    uses: Uses, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, batch = oracle(), records(SIZE)
    origin = OTHERS[other](ours.mean_gradient(records(PUBLIC, 2)))
    found, number = uses.during(lambda: private_sum(ours, batch, Flat(0.3), origin=origin))
    assert number <= ("place" in other)  # such a change may leave one weight as it was
    ours.forget_mean()
    assert float((found - private_sum(ours, batch, Flat(0.3), origin=origin)).norm()) <= 1e-3 * found.norm()
    ours.mean_gradient(records(PUBLIC, 2))
    assert longest(ours, batch, Flat(1e-6), origin, monkeypatch) <= 1.0


@pytest.mark.parametrize(("public", "size"), [(33, 64), (96, 64), (32, 16)])
def test_factors_that_save_nothing_are_not_taken(uses: Uses, public: int, size: int) -> None:
    """Rows that are no multiple of 32, too many of them, or short passes."""
    ours = oracle(size=size)
    origin = ours.mean_gradient(records(public, 2))
    _, number = uses.during(lambda: private_sum(ours, records(200), Flat(0.3), origin=origin))
    assert number == 0


def test_how_many_records_there_are_does_not_decide(uses: Uses) -> None:
    ours = oracle()
    origin = ours.mean_gradient(records(PUBLIC, 2))
    for count in (0, 1, SIZE, 10 * SIZE):
        batch = records(count)
        assert uses.during(lambda batch=batch: private_sum(ours, batch, Flat(0.3), origin=origin))[1] == 2


def hostile(dtype: torch.dtype = torch.float32) -> Batch:
    """At the origin, far away, almost zero, and ordinary."""
    x, y = alike(SIZE, dtype)
    more, classes = records(SIZE, dtype=dtype)
    scales = torch.logspace(-18, 15, SIZE, dtype=torch.float64).to(dtype)[:, None]
    return torch.cat([x, more, more * scales]), torch.cat([y, classes, classes])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("public", ["alike", "different", "cancelling", "tiny", "large"])
def test_no_clipped_record_is_longer_than_the_bound(
    uses: Uses, public: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = alike(PUBLIC, dtype) if public in ("alike", "cancelling") else records(PUBLIC, 2, dtype)
    if public == "cancelling":
        y = torch.arange(PUBLIC) % CLASSES
    ours = oracle(dtype)
    origin = ours.mean_gradient((x * {"tiny": 1e-12, "large": 1e6}.get(public, 1.0), y))
    size = float(origin.double().norm())
    for times in (1.0, 1e-9, 1e9):
        for clip in (Flat(1e-9 * size), Automatic(1.0, 0.0)):
            assert longest(ours, hostile(dtype), clip, times * origin, monkeypatch) <= 1.0
    assert uses.count > 0


def _credulous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any origin is taken for a multiple of the mean."""
    monkeypatch.setattr(factored, "_distance", lambda *_: 0.0)


@pytest.mark.parametrize("apart", [0.0, 1e-6, 1e-3, 1.0])
def test_squares_are_short_of_the_truth_by_no_more_than_their_slack(apart: float) -> None:
    """And some are short of it, near the origin: what carries no slack is no bound."""
    torch.manual_seed(2)
    one = torch.randn(HIDDEN), torch.randn(WIDTH)
    left, right = (factor + apart * torch.randn(PUBLIC, len(factor)) for factor in one)
    weight, mean = nn.Parameter(torch.empty(HIDDEN, WIDTH)), (left / PUBLIC).T @ right
    around, factors = Around.at(0.7 * mean, None), MeanFactors([(weight, left / PUBLIC, right, mean)])
    origin = factors.origin(weight, 0.7 * mean, around.length, SIZE)
    found = Outer(0.7 * left, right, weight.shape).squares(around._replace(factored=origin))
    rows = torch.einsum("ip,iq->ipq", (0.7 * left).double(), right.double())
    true = (rows - (0.7 * mean).double()).square().sum((1, 2))
    assert origin is not None and bool((found.value + found.slack >= true).all())
    assert apart > 1e-3 or bool((found.value < true).any())


def test_contract_catches_an_origin_that_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    _credulous(monkeypatch)
    ours = oracle()
    origin = OTHERS["one row in place"](ours.mean_gradient(alike(PUBLIC)))
    assert longest(ours, hostile(), Flat(1e-6), origin, monkeypatch) > 1.0


def test_an_error_of_any_rank_is_seen() -> None:
    """The distance that random vectors show is never far below the true one."""
    torch.manual_seed(1)
    left, right = torch.randn(PUBLIC, HIDDEN), torch.randn(PUBLIC, WIDTH)
    mean = left.T @ right
    for rank in (1, 2, 30):
        for _ in range(20):
            wrong = torch.randn(HIDDEN, rank) @ torch.randn(rank, WIDTH)
            kept = factored._Kept(left, right, factored._sampled(mean))
            seen = factored._distance(mean + wrong, kept, 1.0)
            assert float(wrong.norm()) <= factored._MISSED * seen


def test_slack_costs_next_to_nothing_away_from_the_origin() -> None:
    ours, batch, clip = oracle(), records(SIZE), Automatic(1.0, 0.0)
    origin = ours.mean_gradient(records(PUBLIC, 2))
    exact = oracle(torch.float64)
    wanted = private_sum(exact, (batch[0].double(), batch[1]), clip, origin=origin.double())
    found = private_sum(ours, batch, clip, origin=origin)
    assert float((found - wanted).norm()) <= 1e-3 * float(wanted.norm())


def test_a_place_does_not_change_a_bit_of_what_a_record_contributes(uses: Uses) -> None:
    ours = oracle()
    origin, (x, y) = ours.mean_gradient(records(PUBLIC, 2)), records(SIZE)

    def alone(place: int) -> Tensor:
        """What the first record adds from this place; all others fail."""
        inputs, classes = x.clone(), torch.full((SIZE,), CLASSES)
        inputs[place], classes[place] = x[0], y[0]
        return private_sum(ours, (inputs, classes), Flat(0.3), origin=origin).clone()

    wanted = alone(0)
    assert float(wanted.norm()) > 0.1 and uses.count == 2
    assert all(torch.equal(alone(place), wanted) for place in range(1, SIZE))


def test_records_that_overflow_contribute_nothing_or_their_bound(recwarn: pytest.WarningsRecorder) -> None:
    ours = oracle()
    origin, (x, y) = ours.mean_gradient(records(PUBLIC, 2)), records(SIZE)
    wanted = private_sum(ours, (x[8:], y[8:]), Flat(0.3), origin=origin).clone()
    x[:8] = torch.tensor([torch.inf, torch.nan, 3e38, 1e38, 1e36, -1e37, -torch.inf, 3e37])[:, None]
    found = private_sum(ours, (x, y), Flat(0.3), origin=origin)
    assert float((found - wanted).norm()) <= 8 * 0.3 and not recwarn.list


@pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")
def test_a_trainer_takes_them_also_for_a_public_gradient_that_is_shortened(uses: Uses) -> None:
    trainer = Trainer(
        oracle().model, nn.CrossEntropyLoss(), method="dope_sgd", epsilon=5.0, delta=1e-3, steps=2,
        expected_batch_size=SIZE, public_batch_size=PUBLIC, random_state=0,
    )  # fmt: skip
    trainer.fit(records(300), records(4 * PUBLIC, 2))
    assert uses.count == 2 * 2


class _Whole(Batches):
    """All records at once."""

    def of(self, indices: object) -> list[tuple[Batch, None]]:
        return [(records(SIZE), None)]


def test_a_share_of_a_rank_is_summed_without_them_since_other_ranks_have_none(uses: Uses) -> None:
    ours = oracle()
    problem, origin = NetworkProblem(ours, n=SIZE, batches=_Whole()), ours.mean_gradient(records(PUBLIC, 2))
    sizes = ours.pass_size, ours.largest_pass
    question = SumQuestion(None, 0, sizes, Flat(0.3), origin, None, "add-or-remove-one", {})
    problem.own_sum(question, None)  # type: ignore[arg-type]
    assert uses.count == 0


# ---------------------------------------------------------------------------------------------------
# how many records there are is private


@pytest.mark.parametrize(
    ("count", "bound", "spread"), [(667, 0.1, 0.01), (2003, 0.3, 0.01), (8192, 0.3, 1.0)]
)
@pytest.mark.parametrize("layers", [(512, 480), (512, 544)], ids=["narrow", "wide"])
def test_a_record_that_contributes_nothing_moves_no_sum(
    layers: tuple[int, int], count: int, bound: float, spread: float
) -> None:
    """One more record must not send the others another way, whose norms are rounded more or less."""
    (width, hidden), source = layers, torch.Generator().manual_seed(5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))
    ours = NetworkOracle(model, per_example(nn.CrossEntropyLoss()), pass_size=512)
    centre = torch.randn(1, width, generator=source)
    public = centre + spread * torch.randn(192, width, generator=source)
    origin = ours.mean_gradient((public, torch.zeros(192, dtype=torch.long)))
    x = (centre + 0.05 * torch.randn(1, width, generator=source)).expand(count + 1, width)
    y = torch.zeros(count + 1, dtype=torch.long)
    y[-1] = CLASSES  # no such class
    before = private_sum(ours, (x[:-1], y[:-1]), Flat(bound), origin=origin).double().clone()
    after = private_sum(ours, (x, y), Flat(bound), origin=origin).double()
    assert float((after - before).norm()) <= 0.02 * bound


def test_a_caller_who_writes_over_public_records_changes_no_factors(uses: Uses) -> None:
    ours, (x, y) = oracle(), records(PUBLIC, 2)
    origin = ours.mean_gradient((x, y))
    expected = private_sum(ours, records(200), Flat(0.3), origin=origin).clone()
    x.copy_(records(PUBLIC, 3)[0])
    found, number = uses.during(lambda: private_sum(ours, records(200), Flat(0.3), origin=origin))
    assert number == 2 and torch.equal(found, expected)


def test_a_model_in_another_precision_forgets_the_factors() -> None:
    ours = oracle()
    origin = ours.mean_gradient(records(PUBLIC, 2))
    ours.model.double()
    batch = records(64, dtype=torch.float64)
    assert bool(private_sum(ours, batch, Flat(0.3), origin=origin.double()).isfinite().all())


def test_random_vectors_are_not_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(factored.secrets, "randbits", lambda bits: asked.append(bits) or 7)
    factored._probes.cache_clear()
    factored._probes(31, torch.float32)
    factored._probes.cache_clear()
    assert asked == [63]
