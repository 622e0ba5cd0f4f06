"""`sidelight demo --tour`: what a budget buys, the one door, and a ledger that says no. Needs no data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sidelight.cli import show
from sidelight.errors import BudgetExceeded, PrivacyConditionError

if TYPE_CHECKING:
    from rich.console import Console

    from sidelight.privacy.accountants import Accountant
    from sidelight.privacy.events import Relation
    from sidelight.privacy.ledger import Ledger, Run

DELTA = 1e-6
PLANS = (  # sampling probability, steps, epsilon
    (0.01, 1000, 1.0),
    (0.01, 1000, 4.0),
    (0.001, 10_000, 1.0),
    (0.05, 500, 1.0),
    (1.0, 100, 1.0),
    (1.0, 100, 4.0),
)


def tour() -> None:
    """Print the tour; it takes a few seconds."""
    screen = show.console()
    _what_a_budget_buys(screen)
    ledger = _ledger()
    first = _begin(ledger, "first try")
    screen.print(
        "\n[bold]2. A ledger, and one door.[/] Dataset 'patients' may spend ε = 3 in its life.\n"
        "A run of ε = 1 was charged before it reads a record; its sum leaves with the noise that was charged."
    )
    _one_door(screen, first)
    _spend_until_refused(screen, ledger)


def _what_a_budget_buys(screen: Console) -> None:
    screen.print(
        f"[bold]1. What a budget buys.[/] The noise multiplier that DP-SGD needs for (ε, δ = {DELTA:g})\n"
        "under add-or-remove-one, as each accountant can prove it. Less noise, better model, same guarantee."
    )
    columns = ("q", "steps", "ε", "PLD", "RDP", "tCDP", "saved by PLD")
    rows = show.table(*columns, numbers=columns)
    for q, steps, epsilon in PLANS:
        noise = {name: _noise(q, steps, epsilon, name) for name in ("pld", "rdp", "tcdp")}
        pld, rdp = noise["pld"], noise["rdp"]
        saved = "–" if pld is None or rdp is None else f"{1 - pld / rdp:.0%}"
        cells = [show.up(value, 4) if value is not None else "–" for value in noise.values()]
        rows.add_row(f"{q:g}", str(steps), f"{epsilon:g}", *cells, saved)
    screen.print(rows)
    screen.print("[dim]–: tCDP has no theorem for Poisson batches. q = 1 are full batches.[/]")


def _noise(q: float, steps: int, epsilon: float, accountant: Accountant) -> float | None:
    """The least noise by an accountant, by bisection from the PLD answer; None where it has no theorem."""
    from sidelight.privacy import accountants, calibrate, events

    relation: Relation = "add-or-remove-one"
    low = calibrate.noise_multiplier(
        epsilon=epsilon, delta=DELTA, sampling_probability=q, steps=steps, relation=relation
    )
    if accountant == "pld":
        return low
    step = calibrate.step_event(sampling_probability=q, relation=relation)

    def enough(noise: float) -> bool:
        plan = events.repeat(step(noise), steps)
        return accountants.epsilon(plan, delta=DELTA, relation=relation, accountant=accountant) <= epsilon

    try:
        high = 2 * low
        while not enough(high):
            high *= 2
        while high / low > 1 + 1e-4:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if enough(middle) else (middle, high)
    except PrivacyConditionError:
        return None
    return high


def _ledger() -> Ledger:
    from sidelight.privacy.ledger import Ledger

    ledger = Ledger.in_memory()
    ledger.register("patients", relation="add-or-remove-one", epsilon=3.0, delta=DELTA)
    return ledger


def _begin(ledger: Ledger, note: str) -> Run:
    """Charge a run of one full-batch release at ε = 1."""
    from sidelight.privacy import calibrate, events

    noise = calibrate.noise_multiplier(epsilon=1.0, delta=DELTA, relation="add-or-remove-one")
    plan = events.gaussian(noise)
    return ledger.begin("patients", plan, relation="add-or-remove-one", method="demo", note=note)


def _one_door(screen: Console, run: Run) -> None:
    import numpy as np

    from sidelight.privacy import events
    from sidelight.privacy.noise import Noise
    from sidelight.privacy.release import BoundedSum, release

    ages = np.linspace(18, 90, 5000) / 90  # made up; each at most 1, which is the sensitivity of their sum
    total = BoundedSum(np.array([ages.sum()]), sensitivity=1.0, relation="add-or-remove-one")
    ((step, _),) = events.elementary(run.plan).items()
    std = getattr(step, "noise_multiplier", math.inf)  # release refuses what is not a plan of one Gaussian
    noisy = release(total, std=std, event=run.plan, account=run, noise=Noise())
    screen.print(f"  the private sum   {total!r}", markup=False)
    screen.print(f"  what is released  mean age {float(noisy.numpy()[0]) / 5000 * 90:.2f}")


def _spend_until_refused(screen: Console, ledger: Ledger) -> None:
    screen.print("\n[bold]3. Runs go on until the budget is used up.[/]")
    rows = show.table(
        "run", "sum of ε", "composed ε", "left", numbers=("run", "sum of ε", "composed ε", "left")
    )
    refusal = ""
    for run in range(1, 20):
        total = ledger.total("patients")
        left = show.down(ledger.remaining("patients"), 4)
        rows.add_row(str(run), str(run), show.up(total.epsilon, 4), left)
        try:
            _begin(ledger, f"try {run + 1}")
        except BudgetExceeded as error:
            refusal = str(error)
            break
    screen.print(rows)
    screen.print(f"[bold red]refused:[/] {refusal}")
    screen.print(
        "\nComposition is cheaper than addition, so the budget lasted longer than three runs. Next:\n"
        "  sidelight account --help\n  sidelight ledger --help"
    )
