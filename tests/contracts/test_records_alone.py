"""On its way to the model a private record meets user code: dataset, collate, augment, the model itself.

None of it may carry one record into what another contributes, whatever it remembers, draws or shares, and
none of it may tell of a record by failing.
"""

import copy
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.deep.networks import Tape
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sidelight.augment import Compose, flip, shift
from sidelight.augment.transforms import Flip, each_row_alone
from sidelight.deep import Loading, NetworkOracle, Trainer
from sidelight.errors import PrivacyConditionError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import Flat
from sidelight.oracles.network import state

pytestmark = [
    pytest.mark.usefixtures("same_noise"),
    pytest.mark.filterwarnings("ignore:.*random_state", "ignore:This DataLoader will create"),
]
C = 1.0
N = 30
WIDTH = 5
SOME = torch.Generator().manual_seed(4)
X, Y = torch.rand(N, WIDTH, generator=SOME), torch.randint(0, 3, (N,), generator=SOME)
FAR = torch.full((WIDTH,), 200.0)


class Items(Dataset[Any]):
    """A dataset that is no tensor; `change` is what it does with an item."""

    def __init__(self, x: Any, y: Any, change: Callable[[Any], Any] = lambda x: x) -> None:
        self.x, self.y, self.change = x, y, change

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> Any:
        return self.change(self.x[place]), self.y[place]


def model(inputs: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, 3))


def private_sum(
    monkeypatch: pytest.MonkeyPatch,
    data: Any,
    net: nn.Module | None = None,
    public: Any = None,
    **options: Any,
) -> Tensor:
    """What one full step would release, before its noise."""
    tape = Tape()
    monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
    chosen: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "random_state": 3, **options}
    loss = chosen.pop("loss")
    Trainer(
        model() if net is None else net, loss, method=dp_sgd(steps=1, clip_norm=C), epsilon=1.0, delta=1e-5,
        progress=False, **chosen,
    ).fit(data, public)  # fmt: skip
    return tape.sums[0]


def moved(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm())


# ---------------------------------------------------------------------------------------------------
# augment


def by_the_largest(x: Tensor) -> Tensor:
    return (x / 255 if x.max() > 1 else x) * 2 - 1


def centered_if_many(x: Tensor) -> Tensor:
    return x - x.mean(0) if len(x) > 4 else x


def one_draw(x: Tensor) -> Tensor:
    """One brightness a call, as torchvision draws it, and no NaN."""
    f = torch.distributions.Uniform(0.0, 3.0).sample()
    if not x.isfinite().all():
        raise ValueError("secret")
    return x * f - 1


def draws_by_content(x: Tensor) -> Tensor:
    """As many random numbers as the record says, of every kind."""
    for _ in range(1 + int(x[0].sum().nan_to_num()) % 7):
        torch.rand(1)
        random.random()
        np.random.rand()
    return x * torch.rand(1) * random.random() * 3 - np.random.rand()


class RunningMean:
    """Adapts to what it has seen."""

    def __init__(self) -> None:
        self.mean, self.seen = 0.0, [0.0]

    def __call__(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + float(x.nan_to_num().mean())
        self.seen.append(self.mean)
        return x - self.mean + 0.1 * max(self.seen)


def closure() -> Callable[[Tensor], Tensor]:
    largest, kept = 1.0, torch.zeros(1)

    def scaled(x: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, float(x.nan_to_num().max()))
        kept.add_(x.nan_to_num().mean())
        return x / largest - kept

    return scaled


_SEEN = {"largest": 1.0}
_COUNT = 0


def by_globals(x: Tensor) -> Tensor:
    global _COUNT
    _COUNT += 1
    _SEEN["largest"] = max(_SEEN["largest"], float(x.nan_to_num().max()))
    return x / _SEEN["largest"] * (1 if _COUNT < N + 6 else -1)


def by_default(x: Tensor, seen: list[float] = []) -> Tensor:  # noqa: B006
    seen.append(float(x.nan_to_num().max()))
    return x / max(1.0, *seen)


class Kept(nn.Module):
    """A transform that keeps a statistic, like the norms of a network, and its last random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.last: Any = None

    def forward(self, x: Tensor) -> Any:
        mean: Any = self.mean
        mean.mul_(0.5).add_(x.nan_to_num().mean(0))
        self.last = x
        return x - mean


def buffered() -> Callable[[Tensor], Tensor]:
    room = torch.empty(256, WIDTH)

    def write(x: Tensor) -> Tensor:
        room[: len(x)] = 2 * x - 1
        return room[: len(x)]

    return write


AUGMENTS: dict[str, Callable[[], Any]] = {
    "by the largest": lambda: by_the_largest, "centered if many": lambda: centered_if_many,
    "one draw": lambda: one_draw, "draws by content": lambda: draws_by_content, "running mean": RunningMean,
    "closure": closure, "globals": lambda: by_globals, "default argument": lambda: by_default,
    "module": Kept, "a buffer": buffered,
}  # fmt: skip


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("record", ["far", "not a number"])
@pytest.mark.parametrize("name", AUGMENTS)
def test_augmentation_of_one_record_does_not_depend_on_another(
    monkeypatch: pytest.MonkeyPatch, name: str, record: str, copies: int
) -> None:
    """By the largest of a batch, by what it remembers, or by failing: 27 to 30 C before."""
    other = FAR if record == "far" else torch.full((WIDTH,), torch.nan)
    sums = []
    for first in (X[0], other):
        data = TensorDataset(torch.cat([first[None], X[1:]]), Y)
        sums.append(private_sum(monkeypatch, data, augment=AUGMENTS[name](), augmentations=copies))
    assert moved(*sums) <= 2 * C + 1e-3
    sums = []
    for rows in (X, torch.cat([X, other[None]])):
        data = TensorDataset(rows, torch.cat([Y, Y[:1]])[: len(rows)])
        sums.append(private_sum(monkeypatch, data, augment=AUGMENTS[name](), augmentations=copies))
    assert moved(*sums) <= C + 1e-3


def test_every_copy_and_every_record_has_random_numbers_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One draw a call is one draw per row: what rows are made of differs, and nothing else draws from it."""

    def tell(x: Tensor) -> Tensor:
        if len(x) == 1:
            os.write(1, f"{float(torch.rand(1))} {random.random()} {np.random.rand()}\n".encode())
        return x

    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    private_sum(monkeypatch, TensorDataset(X, Y), augment=tell, augmentations=2)
    drawn = list(map(float, capfd.readouterr().out.split()))
    rehearsed, own = drawn[: -2 * N * 3], drawn[-2 * N * 3 :]  # on rows that are not private, before these
    assert rehearsed and len(set(own)) == 2 * N * 3 and not set(own) & set(rehearsed)
    assert random.getstate() == before[0] and (np.random.get_state()[1] == before[1]).all()


def test_transforms_made_row_by_row_are_given_a_batch_and_others_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mirror(Flip):
        def __call__(self, images: Tensor) -> Tensor:
            return images - images.mean(0)

    assert each_row_alone(Compose(shift(1), flip())) and each_row_alone(flip())
    assert not each_row_alone(Mirror(0.5, False)) and not each_row_alone(Compose(flip(), torch.sign))
    sizes = set[int]()
    images = torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    plain = Flip.__call__

    def noted(self: Flip, batch: Tensor) -> Tensor:
        sizes.add(len(batch))
        return plain(self, batch)

    monkeypatch.setattr(Flip, "__call__", noted)
    net = nn.Sequential(nn.Flatten(), model(16))
    sums = [
        private_sum(monkeypatch, TensorDataset(x, Y), copy.deepcopy(net), augment=Compose(shift(1), flip()))
        for x in (images, torch.cat([9 * images[:1], images[1:]]))
    ]
    assert N in sizes and moved(*sums) <= 2 * C + 1e-3


def test_records_that_augmentation_makes_unlike_are_trained_on_by_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions that are not empty: a length of each record's own, and of no other's."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Any:
            return self.head(x[..., None].mean(1))

    def cut(x: Tensor) -> Tensor:
        return x[:, : 2 + int(x[0].sum()) % 3]

    def expected(x: Tensor, y: Tensor) -> Tensor:
        rows = [(cut(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
        sums = [private_sum(monkeypatch, TensorDataset(*row), Pooled()) for row in rows]
        return torch.stack(sums).sum(0)

    found = private_sum(monkeypatch, TensorDataset(X[:8], Y[:8]), Pooled(), augment=cut)
    torch.testing.assert_close(found, expected(X[:8], Y[:8]), atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------------------------------------------
# datasets and collate


def reused() -> Callable[[list[Any]], Any]:
    """Right under a DataLoader without workers, which is done with a batch before it asks for the next."""
    room = torch.empty(1024, WIDTH)

    def collate(items: list[Any]) -> Any:
        for i, (x, _) in enumerate(items):
            room[i].copy_(x)
        return room[: len(items)], torch.stack([y for _, y in items])

    return collate


class LargestSoFar:
    largest = 1.0

    def __call__(self, items: list[Any]) -> Any:
        x = torch.stack([x for x, _ in items])
        self.largest = max(self.largest, float(x.max()))
        type(self).largest = self.largest
        return x / self.largest, torch.stack([y for _, y in items])


COLLATES: dict[str, Callable[[], Any]] = {"a buffer": reused, "the largest so far": LargestSoFar}


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    yield
    LargestSoFar.largest, _SEEN["largest"] = 1.0, 1.0
    by_default.__defaults__[0].clear()  # type: ignore[index]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("name", COLLATES)
def test_collate_carries_nothing_from_one_record_to_another(
    monkeypatch: pytest.MonkeyPatch, name: str, public: bool, workers: int
) -> None:
    """A buffer that is used again made every row the last record: 21 C."""
    if workers and (name == "a buffer" or public):
        pytest.skip("in another process the same")
    shown = Items(X + 0.5, Y) if public else None
    for place in (0, N - 1):
        sums = []
        for other in (X[place], FAR):
            x = X.clone()
            x[place] = other
            loading = Loading(collate=COLLATES[name](), workers=workers)
            sums.append(private_sum(monkeypatch, Items(x, Y), public=shown, loading=loading))
        assert moved(*sums) <= 2 * C + 1e-3


def test_collate_that_pads_in_place_does_not_lengthen_the_public_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record beside which private ones are padded is a new copy for each of them."""

    def pad(items: list[Any]) -> Any:
        longest = max(len(x) for x, _ in items)
        for x, _ in items:
            x.extend([-1.0] * (longest - len(x)))
        return torch.tensor([x for x, _ in items]), torch.stack([y for _, y in items])

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Any:
            return self.head(100 * x[..., None].mean(1))

    sums = []
    for length in (WIDTH, 400):
        rows = [list(map(float, x)) for x in X]
        rows[0] = rows[0] * (length // WIDTH)
        public = Items([list(map(float, x)) for x in X], Y)
        loading = Loading(collate=pad)
        sums.append(private_sum(monkeypatch, Items(rows, Y), Mean(), public=public, loading=loading))
    assert moved(*sums) <= 2 * C + 1e-3


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers_of_an_item_do_not_depend_on_other_items(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """A transform within the dataset draws as it likes; the next record begins anew."""
    sums = []
    for first in (X[0], 7 * X[1] + 3):
        x = torch.cat([first[None], X[1:]])
        data = Items(x, Y, draws_by_content)
        sums.append(private_sum(monkeypatch, data, loading=Loading(workers=workers)))
    assert moved(*sums) <= 2 * C + 1e-3


# ---------------------------------------------------------------------------------------------------
# what fails is silent


ODD: dict[str, Callable[[Tensor], Any]] = {
    "meta": lambda x: x.to("meta"), "sparse": lambda x: x.to_sparse(),
    "empty": lambda x: x[:0],
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "none": lambda _: None, "endless": lambda _: torch.empty(1).expand(10**13),
}  # fmt: skip


def first_alone(items: list[Any]) -> Any:
    """A collate that hands its item on as it is."""
    x, y = items[0]
    return x.unsqueeze(0), y[None]


@pytest.mark.parametrize("collate", [None, first_alone])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_item_is_left_out_without_a_word(
    monkeypatch: pytest.MonkeyPatch, name: str, collate: Any
) -> None:
    def change(x: Tensor) -> Any:
        return ODD[name](x) if float(x[0]) == 200.0 else x

    loading = Loading(collate=collate)
    with_it = Items(torch.cat([X, FAR[None]]), torch.cat([Y, Y[:1]]), change)
    found = private_sum(monkeypatch, with_it, loading=loading)
    expected = private_sum(monkeypatch, Items(X, Y), loading=loading)
    assert moved(found, expected) <= 1e-4


class Listed(Dataset[Any]):
    """Items as they are held, in a list."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


def test_a_tensor_without_memory_that_a_dataset_holds_is_left_out_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a dataset holds is compared after each record; a meta tensor has nothing to compare."""
    items = list(zip(X, Y, strict=True))
    found = private_sum(monkeypatch, Listed([*items, (FAR.to("meta"), Y[0])]))
    assert moved(found, private_sum(monkeypatch, Listed(items))) <= 1e-4


HELD: dict[str, Callable[[], Any]] = {
    "a generator": lambda: (x for x in range(3)), "an iterator": lambda: iter([1.0]),
    "a hash": hashlib.sha256,
    "too many": lambda: [[object() for _ in range(60)] for _ in range(900)],
}  # fmt: skip


@pytest.mark.parametrize("augment", [None, by_the_largest])
@pytest.mark.parametrize("name", HELD)
def test_whatever_a_dataset_holds_in_the_place_of_a_record_is_left_out_without_a_word(
    monkeypatch: pytest.MonkeyPatch, name: str, augment: Any
) -> None:
    """What it holds is searched for what could carry records; of a record itself nothing is refused."""
    monkeypatch.setattr(state, "_MAX_OBJECTS", 20_000)
    items = list(zip(X, Y, strict=True))
    found = private_sum(monkeypatch, Listed([*items, (HELD[name](), Y[0])]), augment=augment)
    assert moved(found, private_sum(monkeypatch, Listed(items), augment=augment)) <= 1e-4


class Limited(nn.Module):
    """Fails on a pass of many numbers: a long record beside its like, and not alone."""

    def __init__(self, how: type[BaseException]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.how = nn.Linear(1, 3), how

    def forward(self, x: Tensor) -> Any:
        if x.numel() > 700:
            raise self.how(f"too many: {x.numel()}")
        return self.head(x[..., None].mean(1))


@pytest.mark.parametrize("how", [ValueError, MemoryError, RuntimeError, SystemExit])
def test_a_length_on_which_only_a_full_pass_fails_is_silent(
    monkeypatch: pytest.MonkeyPatch, how: type[BaseException]
) -> None:
    """It raised `too many tokens: 2790`, which tells that such a record is there."""
    sums = []
    for length in (None, 60):
        rows, labels = list(X), Y
        if length is not None:
            rows, labels = [*rows, torch.ones(length)], torch.cat([Y, Y[:1]])
        sums.append(private_sum(monkeypatch, Items(rows, labels), Limited(how)))
    assert moved(*sums) < 1e-4


def test_a_failure_on_the_usual_shape_is_told() -> None:
    with pytest.raises(Exception, match="too many"):
        Trainer(
            Limited(ValueError), nn.CrossEntropyLoss(), method=dp_sgd(steps=1), epsilon=1.0, delta=1e-5,
            progress=False,
        ).fit(Items([torch.ones(800)] * N, Y))  # fmt: skip


def test_a_loss_that_wants_to_leave_is_a_bad_record_and_no_more() -> None:
    """SystemExit of one private record would tell of it, and end the run after its charge."""

    def leaving(outputs: Any, targets: Any) -> Any:
        if bool((targets == 77).any()):
            raise SystemExit
        return ((outputs.squeeze(-1) - targets) ** 2).reshape(-1)

    oracle = NetworkOracle(nn.Linear(3, 1), leaving)
    rows = torch.randn(6, 3), torch.tensor([0.0, 1.0, 77.0, 0.0, 1.0, 0.0])
    others = tuple(part[[0, 1, 3, 4, 5]] for part in rows)
    for batch in (rows, others):
        total = oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")
        assert total.sensitivity == 1.0


# ---------------------------------------------------------------------------------------------------
# a record is one record


TENSORS = TensorDataset(X, Y)
REPEATED: dict[str, Any] = {
    "a subset": lambda: Subset(TENSORS, [0, 0, 1, 2, 3]),
    "a subset of items": lambda: Subset(Items(X, Y), [0, 0, 1, 2, 3]),
    "a negative index": lambda: Subset(TENSORS, [0, 1, -len(X)]),
    "a concatenation": lambda: ConcatDataset([TENSORS, TENSORS]),
    "subsets that overlap": lambda: ConcatDataset([Subset(TENSORS, [0, 1, 2]), Subset(TENSORS, [2, 3])]),
    "the same rows with other labels": lambda: ConcatDataset([TENSORS, TensorDataset(X, 1 - Y)]),
}


@pytest.mark.parametrize("method", [dp_sgd(steps=1), "auto"], ids=["dp_sgd", "auto"])
@pytest.mark.parametrize("name", REPEATED)
def test_a_record_that_is_named_twice_is_refused(name: str, method: Any) -> None:
    """Oversampling a class so, one record would have the influence of several. `auto` once took it."""
    trainer = Trainer(model(), nn.CrossEntropyLoss(), method=method, epsilon=1.0, delta=1e-5, progress=False)
    with pytest.raises(PrivacyConditionError, match="once"):
        trainer.fit(REPEATED[name]())


def test_subsets_that_share_nothing_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ConcatDataset([Subset(TENSORS, [0, 2]), Subset(TENSORS, [1, 3])])
    assert private_sum(monkeypatch, parts).isfinite().all()
