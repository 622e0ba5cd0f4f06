"""`sidelight account`: what a training plan costs, or the noise that a budget needs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from sidelight.cli import terminal
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.numbers import plain_up

if TYPE_CHECKING:
    from sidelight.arrays import Json
    from sidelight.privacy.accountants import Accountant
    from sidelight.privacy.events import Event, Relation

ACCOUNTANTS: tuple[Accountant, ...] = ("pld", "rdp")


@dataclass(frozen=True)
class TrainingPlan:
    """Steps of one sampled Gaussian release each, fixed before training starts."""

    sampling_probability: float
    steps: int
    delta: float
    relation: Relation

    @property
    def sampling(self) -> str:
        return "poisson" if self.relation == "add-or-remove-one" else "fixed-size"

    def event(self, noise_multiplier: float) -> Event:
        from sidelight.privacy import accountants, events

        step = accountants.step_event(sampling_probability=self.sampling_probability, relation=self.relation)
        return events.repeat(step(noise_multiplier), self.steps)

    def assumptions(self) -> list[str]:
        if self.sampling_probability == 1:
            batch = "Every record takes part in every step."
        elif self.sampling == "poisson":
            batch = "Each record joins each step independently with probability q. Shuffled epochs do not."
        else:
            batch = "Each step draws s of m records without replacement, q = s/m. Shuffled epochs do not."
        sensitivity = "C" if self.relation == "add-or-remove-one" else "2C"
        return [
            batch,
            f"The noise on the sum of rows, each clipped to C, has std = noise multiplier × {sensitivity}.",
            "Settings tuned by looking at the private data are not part of this ε.",
        ]


@click.command("account")
@click.option(
    "--sampling-probability",
    "-q",
    type=terminal.PROBABILITY,
    required=True,
    metavar="Q",
    help="Probability that a record joins a step; 1 for full batches.",
)
@click.option(
    "--steps", "-t", type=terminal.count, required=True, metavar="T", help="Number of training steps."
)
@click.option(
    "--delta",
    "-d",
    type=terminal.DELTA,
    required=True,
    metavar="δ",
    help="Keep it below 1 / number of records.",
)
@click.option(
    "--noise-multiplier",
    "-s",
    type=terminal.NOISE,
    metavar="σ",
    help="Noise std / sensitivity of the sum. Give this to get ε …",
)
@click.option("--epsilon", "-e", type=terminal.EPSILON, metavar="ε", help="… or this to get the noise.")
@click.option(
    "--relation",
    type=terminal.relation,
    metavar="RELATION",
    default="add-or-remove-one",
    show_default=True,
    help="add-or-remove-one, or replace-one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, at full precision.")
def command(
    sampling_probability: float,
    steps: int,
    delta: float,
    noise_multiplier: float | None,
    epsilon: float | None,
    relation: Relation,
    as_json: bool,
) -> None:
    """What a training plan costs, or the noise that a budget needs.

    \b
    The ε of 1000 steps of DP-SGD:
      sidelight account -q 0.01 --noise-multiplier 1 --steps 1000 -d 1e-5
    The least noise that keeps them within ε = 2:
      sidelight account -q 0.01 --epsilon 2 --steps 1000 --delta 1e-5
    One number, for a script:
      sidelight account -q 0.01 -e 2 -t 1000 -d 1e-5 --json | jq .noise_multiplier

    \b
    Relations
      add-or-remove-one  a neighbor has one record more or less.
                         Poisson sampling; noise std = σ × clip norm.
      replace-one        a neighbor has one record exchanged. Batches of a
                         fixed size without replacement, q = batch / records;
                         noise std = σ × 2 × clip norm.

    Printed numbers are rounded to the safe side.
    """
    if (noise_multiplier is None) == (epsilon is None):
        came = "neither" if epsilon is None else "both"
        raise click.UsageError(f"expected either --noise-multiplier or --epsilon, got {came}.")
    plan = TrainingPlan(sampling_probability, steps, delta, relation)
    result = _result(plan, noise_multiplier, epsilon)
    if as_json:
        terminal.as_json(result)
    else:
        _print(plan, result)


def _result(plan: TrainingPlan, noise_multiplier: float | None, target: float | None) -> Json:
    """Everything that is printed, as one dictionary."""
    if noise_multiplier is None:
        from sidelight.privacy import accountants

        if target is None:
            raise InputError("pass epsilon or a noise multiplier")
        noise_multiplier = accountants.noise_multiplier(
            epsilon=target,
            delta=plan.delta,
            sampling_probability=plan.sampling_probability,
            steps=plan.steps,
            relation=plan.relation,
        )
    accounts = [_account(plan, noise_multiplier, name) for name in ACCOUNTANTS]
    return {
        "plan": {**asdict(plan), "sampling": plan.sampling},
        "target_epsilon": target,
        "noise_multiplier": noise_multiplier,
        "epsilon": min((a["epsilon"] for a in accounts if a["epsilon"] is not None), default=math.inf),
        "accountants": accounts,
        "assumptions": plan.assumptions(),
    }


def _account(plan: TrainingPlan, noise_multiplier: float, name: Accountant) -> Json:
    from sidelight.privacy import accountants

    event = plan.event(noise_multiplier)
    assumes, epsilon = accountants.ASSUMES[name], None
    try:
        epsilon = float(accountants.epsilon(event, delta=plan.delta, relation=plan.relation, accountant=name))
    except PrivacyConditionError as error:
        # One accountant may have no theorem for a plan that another one covers.
        assumes = str(error)
    return {"name": name, "epsilon": epsilon, "assumes": assumes}


def _print(plan: TrainingPlan, result: Json) -> None:
    from rich.padding import Padding

    screen = terminal.console()
    noise = plain_up(result["noise_multiplier"])
    if result["target_epsilon"] is None:
        screen.print(f"[bold]ε = {plain_up(result['epsilon'])}[/] at δ = {plan.delta:g}, {plan.relation}")
    else:
        screen.print(
            f"[bold]noise multiplier {noise}[/] for ε = {result['target_epsilon']:g} at δ = {plan.delta:g}, "
            f"{plan.relation}"
        )
    q = plan.sampling_probability
    batch = "full batches" if q == 1 else f"{plan.sampling} batches, q = {q:g}"
    screen.print(f"[dim]{plan.steps} steps, {batch}, noise multiplier {noise}[/]")
    rows = terminal.table("accountant", "ε", "assumes", numbers=("ε",))
    for account in result["accountants"]:
        value = "–" if account["epsilon"] is None else plain_up(account["epsilon"])
        rows.add_row(account["name"].upper(), value, account["assumes"])
    screen.print(rows)
    screen.print("Under these conditions")
    for line in result["assumptions"]:
        screen.print(Padding(f"• {line}", (0, 0, 0, 2), expand=False))
