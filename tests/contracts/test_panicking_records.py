"""Code may raise what is no Exception, as Rust libraries and asyncio do: it tells of no record."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts.test_records_alone import FAR, C, Items, X, Y, model, moved, private_sum
from torch import Tensor, nn
from torch.utils.data import Dataset

from sidelight.deep import Loading, Trainer
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.privacy.ledger import Ledger

pytestmark = [
    pytest.mark.usefixtures("same_noise"),
    pytest.mark.filterwarnings("ignore:.*random_state", "ignore:This DataLoader will create"),
]


class Panic(BaseException):
    """As pyo3's PanicException, which tokenizers and polars raise."""


class Fragile:
    """Fails on a record far away."""

    def __init__(self, kind: type[BaseException] = Panic) -> None:
        self.kind = kind

    def __call__(self, x: Any) -> Any:
        if bool((x > 100).any()):
            raise self.kind(f"secret {float(x.max())}")
        return x


class Breaks(nn.Module):
    def __init__(self, fragile: Fragile) -> None:
        super().__init__()
        self.inner, self.fragile = model(), fragile

    def forward(self, x: Tensor) -> Any:
        return self.inner(self.fragile(x))


def losses(fragile: Fragile) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        fragile(outputs.detach().abs() * (outputs.detach().abs() > 100))
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    return loss


LOG = logging.getLogger("of somebody")


def logged(x: Any) -> Any:
    if bool((x > 100).any()):
        LOG.critical("secret %s", float(x.max()))
    return x


class Tells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Tensor) -> Any:
        return self.inner(logged(x))


@pytest.mark.parametrize("where", ["item", "worker", "collate", "augment", "model"])
def test_what_code_logs_of_a_record_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, where: str, tmp_path: Path
) -> None:
    """As tokenizers do it: "sequence length is longer than the specified maximum (2790 > 512)"."""

    def collate(items: list[Any]) -> Any:
        return logged(torch.stack([x for x, _ in items])), torch.stack([y for _, y in items])

    options: dict[str, Any] = {
        "augment": {"augment": logged},
        "collate": {"loading": Loading(collate=collate)},
        "worker": {"loading": Loading(workers=1)},
        "model": {"net": Tells()},
    }.get(where, {})
    rows = torch.cat([X, FAR[None]]), torch.cat([Y, Y[:1]])
    handler = logging.FileHandler(tmp_path / "log")
    monkeypatch.setattr(LOG, "handlers", [handler])
    private_sum(monkeypatch, Items(*rows, logged) if where in ("item", "worker") else Items(*rows), **options)
    LOG.critical("heard again")
    handler.close()
    assert (tmp_path / "log").read_text() == "heard again\n"


@pytest.mark.parametrize("kind", [Panic, SystemExit])
@pytest.mark.parametrize("where", ["item", "worker", "collate", "augment", "model"])
def test_whatever_a_record_raises_is_silent(
    monkeypatch: pytest.MonkeyPatch, where: str, kind: type[BaseException]
) -> None:
    fragile = Fragile(kind)

    def collate(items: list[Any]) -> Any:
        return fragile(torch.stack([x for x, _ in items])), torch.stack([y for _, y in items])

    options: dict[str, Any] = {
        "augment": {"augment": fragile},
        "collate": {"loading": Loading(collate=collate)},
        "worker": {"loading": Loading(workers=1)},
    }.get(where, {})
    sums = []
    for rows in (X, torch.cat([X, FAR[None]])):
        net = Breaks(fragile) if where == "model" else None
        labels = torch.cat([Y, Y[:1]])[: len(rows)]
        data = Items(rows, labels, fragile) if where in ("item", "worker") else Items(rows, labels)
        sums.append(private_sum(monkeypatch, data, net, **options))
    assert moved(*sums) < 1e-4


def test_whatever_the_loss_of_a_record_raises_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    for rows in (X, torch.cat([X, 1e6 * FAR[None]])):
        net = nn.Linear(X.shape[1], 3, bias=False)
        nn.init.ones_(net.weight)
        data = Items(rows, torch.cat([Y, Y[:1]])[: len(rows)])
        sums.append(private_sum(monkeypatch, data, net, loss=losses(Fragile())))
    assert moved(*sums) < 1e-4


def test_an_interrupt_is_passed_on() -> None:
    def stop(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    trainer = Trainer(
        model(), nn.CrossEntropyLoss(), method=dp_sgd(steps=1), epsilon=1.0, delta=1e-5, progress=False
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Items(X, Y, stop))


class Adapting(Dataset[Any]):
    """Subtracts the mean of what it has seen."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.mean = x, torch.zeros(x.shape[1])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        self.mean = self.mean + self.x[place]
        return self.x[place] - self.mean, Y[place % len(Y)]


def test_a_fingerprint_of_the_records_leaves_nothing_in_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads every item, for a ledger, outside of any step: what they left went into all of them."""
    sums = []
    for first in (X[0], FAR):
        book = Ledger.in_memory()
        book.register("people", relation="add-or-remove-one", epsilon=9, delta=1e-4, fingerprint=True)
        data = Adapting(torch.cat([first[None], X[1:]]))
        sums.append(private_sum(monkeypatch, data, ledger=book, dataset="people"))
    assert moved(*sums) <= 2 * C + 1e-3
