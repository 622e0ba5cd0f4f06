"""`sidelight demo`: what public rows buy, on data that it makes itself."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidelight.cli import terminal
from sidelight.errors import BudgetExceeded, InputError, PrivacyConditionError
from sidelight.numbers import plain_down, plain_up

if TYPE_CHECKING:
    from rich.console import Console

    from sidelight.arrays import Array, Json
    from sidelight.comparison.stages import Comparison, Features, Stage, Trial
    from sidelight.estimators import PrivateClassifier
    from sidelight.privacy.accountants import Accountant
    from sidelight.privacy.events import Relation
    from sidelight.privacy.ledger import Ledger
    from sidelight.privacy.release import Run

METHODS = ("only_public", "dp_sgd", "ppsgd", "dope_sgd", "coupling", "rsgd_ar", "auto", "non_private")
DELTA = 1e-8  # the paper's
RELATION = "replace-one"  # the only one that rsgd_ar gives
PROBLEMS: dict[Features, tuple[str, str]] = {
    "isotropic": ("1. The PPSGD paper's problem", "every direction of the features is alike"),
    "correlated": ("2. The same labels, correlated features", "some directions are long and most are short"),
}
REPORTS = {"isotropic": "report.html", "correlated": "report-correlated.html"}
WITH_PUBLIC = ("only_public", "ppsgd", "dope_sgd", "coupling", "auto")
BUYS = ("ε", "best with public rows", "score", "over dp_sgd", "over only_public")


@click.command("demo")
@terminal.EPSILONS
@click.option(
    "--repeats", type=terminal.repeats, default="3", show_default=True, metavar="N",
    help="Number of data sets drawn; more give smaller errors.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, metavar="N", help="Random seed."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default="sidelight-demo", show_default=True, metavar="FOLDER",
    help="Folder for reports and tables.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--tour", is_flag=True, help="Instead: noise for a budget, and a ledger that refuses.")
def command(
    epsilon: tuple[float, ...], repeats: int, seed: int, out: Path, as_json: bool, tour: bool
) -> None:
    """Compare methods with and without public rows on synthetic data. Under a minute, one core.

    \b
      sidelight demo
      sidelight demo --epsilon 0.2,1 --repeats 10
      sidelight demo --tour       noise for a budget, and a ledger that refuses

    9,950 private rows, 50 public ones, 100 features, twice: as in the PPSGD paper, and with features that are
    correlated, as those of real tables are. Writes two reports, and tables for the next steps.
    """
    if tour:
        show_tour()
        return
    _folder(out)
    screen = terminal.console()
    if not as_json:
        _introduce(screen)
    found = {name: _run(screen, name, epsilon, repeats, seed, quiet=as_json) for name in PROBLEMS}
    files = _write(out, found, seed)
    if as_json:
        terminal.as_json(_as_data(found, files, repeats, seed))
    else:
        screen.print(f"[bold]In short[/]  {_in_short([one for one, _ in found.values()])}\n")
        _next(screen, out)


def _folder(out: Path) -> None:
    """Made before anything is computed, so that a folder that cannot be written is reported at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out: {out} cannot be a folder: {error.strerror}") from None


def _introduce(screen: Console) -> None:
    screen.print(
        "[bold]What do 50 public rows buy?[/] 9,950 private rows, 100 features, two classes; "
        f"{RELATION}, δ = {DELTA:g}. Test accuracy in %, ± one standard error; "
        "[green]*[/] the best private method, [green]~[/] those within two standard errors "
        "of it, repeat by repeat."
    )
    screen.print(
        "dp_sgd uses no public row, only_public no private one. non_private has no guarantee: it trains "
        "without noise, and is safe to run because this data is made up.\n",
        style="dim",
    )


# ---------------------------------------------------------------------------------------------------
# fits


def _run(
    screen: Console, name: Features, epsilons: tuple[float, ...], repeats: int, seed: int, *, quiet: bool
) -> tuple[Comparison, Trial]:
    """Fit everything; the comparison, and the fit of `auto` at the ε nearest to 1, for the report."""
    from sidelight.comparison.stages import Comparison, synthetic_stages, trials

    title = f"{PROBLEMS[name][0]} [dim]({PROBLEMS[name][1]})[/]"
    found = Comparison(METHODS, epsilons)
    nearest = min(epsilons, key=lambda one: abs(one - 1))
    total = len(METHODS) * len(epsilons) * repeats
    kept: Trial | None = None
    with terminal.ProgressTable(screen, title=title, quiet=quiet) as board:

        def before(method: str, epsilon: float) -> None:
            board.show(found, method, epsilon, found.fits, total)

        draws = synthetic_stages(name, repeats=repeats, seed=seed)
        for trial in trials(draws, METHODS, epsilons, _estimator, before=before):
            found.add(trial)
            if kept is None and trial.method == "auto" and trial.epsilon == nearest:
                kept = trial
    if kept is None:
        raise InputError("auto was refused on a problem of the demo")
    if not quiet:
        screen.print(f"[bold]{title}[/]")
        screen.print(terminal.grid(found, width=screen.width))
        _show_gain(screen, found)
    return found, kept


def _estimator(method: str, epsilon: float, stage: Stage) -> PrivateClassifier:
    """dp_sgd is fitted without public rows (`only_private`): what they buy is the question."""
    from sidelight.estimators import PrivateClassifier
    from sidelight.methods.declare import get_method

    return PrivateClassifier(
        get_method("only_private" if method == "dp_sgd" else method),
        epsilon=epsilon,
        delta=DELTA,
        relation=RELATION,  # type: ignore[arg-type]
        bounds=(-1.0, 1.0),  # rows have unit length
        classes=["no", "yes"],
        fit_intercept=False,
        random_state=stage.seed,
    )


def _show_gain(screen: Console, comparison: Comparison) -> None:
    rows = terminal.table(*BUYS, numbers=("ε", *BUYS[2:]))
    for epsilon in comparison.epsilons:
        best = comparison.best(epsilon, among=WITH_PUBLIC)
        score = None if best is None else comparison.of(best, epsilon)
        if best is None or score is None:
            continue
        rows.add_row(
            f"{epsilon:g}", best, terminal.score_text(score[0], comparison.score),
            *(_gain(comparison, best, other, epsilon) for other in ("dp_sgd", "only_public")),
        )  # fmt: skip
    screen.print(rows)
    screen.print(f"{_verdict(comparison)}\n")


def _gain(comparison: Comparison, best: str, other: str, epsilon: float) -> str:
    if best == other:
        return "itself"
    return terminal.signed(comparison.difference(best, other, epsilon), comparison.score)


def _verdict(comparison: Comparison) -> str:
    """What the table says, in a sentence; no more than it says."""
    best = {e: m for e in comparison.epsilons if (m := comparison.best(e, among=WITH_PUBLIC))}
    gains = {e: gain for e, m in best.items() if (gain := comparison.difference(m, "dp_sgd", e))}
    sure = {e: gain for e, gain in gains.items() if gain[0] > 2 * gain[1] > 0}
    if not sure:
        return "No method with public rows is clearly better than dp_sgd here: they buy nothing."
    most = max(sure, key=lambda e: sure[e][0])
    text = f"Public rows buy up to {100 * sure[most][0]:.1f} points over dp_sgd (ε = {most:g}, {best[most]})"
    rest = [f"{e:g}" for e in comparison.epsilons if e not in sure]
    nothing = f"; at ε = {', '.join(rest)} nothing beyond the error" if rest else ""
    return f"{text}{nothing}."


def _in_short(problems: list[Comparison]) -> str:
    """How the default did: against the other private methods, and against no privacy."""
    cells = [(one, e) for one in problems for e in one.epsilons if one.of("auto", e) is not None]
    first = sum(one.level("auto", e) or one.best(e) == "auto" for one, e in cells)
    text = (
        "auto, the default, chose before it saw a result, and is the best private method, or level with it, "
        f"in {first} of {len(cells)} columns."
    )
    shares = []
    for one, e in cells:
        plain, auto, free = (one.of(method, e) for method in ("dp_sgd", "auto", "non_private"))
        if plain and auto and free and free[0] - plain[0] > 0.02:
            shares.append(((auto[0] - plain[0]) / (free[0] - plain[0]), e, plain[0], auto[0], free[0]))
    if shares and (top := max(shares))[0] > 0:
        share, e, *scores = top
        low, mine, high = (f"{100 * score:.1f}" for score in scores)
        text += (
            f" At its best (ε = {e:g}) it makes up {100 * min(share, 1):.0f}\u202f% of what dp_sgd loses to "
            f"privacy: {low} → {mine}, where no privacy has {high}."
        )
    if any((a := one.of("auto", e)) and (f := one.of("non_private", e)) and a[0] > f[0] for one, e in cells):
        text += (
            " (non_private is a yardstick, not a bound: the others also regularize, which can be worth more "
            "than the noise costs.)"
        )
    return text


# ---------------------------------------------------------------------------------------------------
# files


def _write(out: Path, found: dict[Features, tuple[Comparison, Trial]], seed: int) -> dict[str, str]:
    """Two reports, and the first draw of the correlated problem as tables."""
    from sidelight.comparison.stages import gaussian
    from sidelight.files import write_text
    from sidelight.report import card_of, write_report

    files = {}
    for name, (comparison, trial) in found.items():
        card = card_of(
            trial.model,
            title=f"Demonstration: {PROBLEMS[name][0][3:]}",
            scores={"name": comparison.score},
            comparison=comparison.rows(),
        )
        write_report(card, out / REPORTS[name])
        files[f"report_{name}"] = str(out / REPORTS[name])
    stage = gaussian(seed * 1000, "correlated")
    for table, text in _tables(stage).items():
        write_text(out / f"{table}.csv", text)
        files[table] = str(out / f"{table}.csv")
    return files


def _tables(stage: Stage) -> dict[str, str]:
    """The rows as CSV; those of `new` without their labels."""
    import numpy as np

    private, public, new = (np.asarray(rows) for rows in (stage.X, stage.X_public, stage.X_test))
    names = [f"x{i + 1}" for i in range(private.shape[1])]
    head = ",".join([*names, "label"])
    line = ",".join(["%.5f"] * len(names))
    return {
        "private": _csv(head, line + ",%s", private, np.asarray(stage.y)),
        "public": _csv(head, line + ",%s", public, np.asarray(stage.y_public)),
        "new": _csv(",".join(names), line, new[:1000]),
    }


def _csv(head: str, line: str, X: Array, y: Array | None = None) -> str:
    rows = X.tolist() if y is None else [[*row, label] for row, label in zip(X.tolist(), y, strict=True)]
    return "\n".join([head, *(line % tuple(row) for row in rows)]) + "\n"


def _as_data(
    found: dict[Features, tuple[Comparison, Trial]], files: dict[str, str], repeats: int, seed: int
) -> Json:
    problems = [
        {"features": name, "score": one.score, "comparison": one.rows(), "verdict": _verdict(one)}
        for name, (one, _) in found.items()
    ]
    return {
        "private_rows": 9950, "public_rows": 50, "delta": DELTA, "relation": RELATION, "repeats": repeats,
        "seed": seed, "problems": problems, "files": files,
    }  # fmt: skip


def _next(screen: Console, out: Path) -> None:
    screen.print(
        "The best of several is picked after the fact, which is optimistic; auto picks before. More repeats, "
        "smaller errors: --repeats.\n",
        style="dim",
    )
    public = f"--public {out}/public.csv --target label"
    command = _command()
    on_tables = (
        f"fit {out}/private.csv {public} --epsilon 1 --out {out}/model",
        f"predict {out}/model {out}/new.csv --out {out}/predictions.csv",
        f"report {out}/model",
        f"compare {public} --rows 9950",
    )
    on_your_own = ("schema public.csv --target COLUMN --out schema.json", "methods", "audit --help")
    screen.print(f"[bold]Written[/] in {out}/: report.html, report-correlated.html; open them in a browser.")
    screen.print(f"[bold]Next[/], on the tables of problem 2 in {out}/:")
    screen.print("\n".join(terminal.typed(f"{command} {one}") for one in on_tables), soft_wrap=True)
    screen.print("Then, on your own:")
    screen.print("\n".join(terminal.typed(f"{command} {one}") for one in on_your_own), soft_wrap=True)


def _command() -> str:
    """How this command is typed here: by its name, or by its path in an environment that is not active."""
    beside = Path(sys.executable).with_name("sidelight")
    if shutil.which("sidelight") or not beside.exists():
        return "sidelight"
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)


# ---------------------------------------------------------------------------------------------------
# `sidelight demo --tour`: noise for a budget, the one way out, and a ledger that refuses; needs no data

_TOUR_DELTA = 1e-6
PLANS = (  # sampling probability, steps, epsilon
    (0.01, 1000, 1.0),
    (0.01, 1000, 4.0),
    (0.001, 10_000, 1.0),
    (0.05, 500, 1.0),
    (1.0, 100, 1.0),
    (1.0, 100, 4.0),
)


def show_tour() -> None:
    """Print the tour; it takes a few seconds."""
    screen = terminal.console()
    _show_noise_for_budget(screen)
    ledger = _ledger()
    first = _begin(ledger, "first try")
    screen.print(
        "\n[bold]2. A ledger, and one way out.[/] Dataset 'patients' may spend ε = 3 in its life.\n"
        "A run of ε = 1 was charged before it reads a record; its sum leaves with the noise that was charged."
    )
    _show_ledger_refusal(screen, first)
    _spend_until_refused(screen, ledger)


def _show_noise_for_budget(screen: Console) -> None:
    screen.print(
        "[bold]1. What a budget buys.[/] The noise multiplier that DP-SGD needs for "
        f"(ε, δ = {_TOUR_DELTA:g})\n"
        "under add-or-remove-one, as each accountant can prove it. Less noise, better model, same guarantee."
    )
    columns = ("q", "steps", "ε", "PLD", "RDP", "tCDP", "saved by PLD")
    rows = terminal.table(*columns, numbers=columns)
    for q, steps, epsilon in PLANS:
        noise = {name: _noise(q, steps, epsilon, name) for name in ("pld", "rdp", "tcdp")}
        pld, rdp = noise["pld"], noise["rdp"]
        saved = "–" if pld is None or rdp is None else f"{100 * (1 - pld / rdp):.0f}\u202f%"
        cells = [plain_up(value, 4) if value is not None else "–" for value in noise.values()]
        rows.add_row(f"{q:g}", str(steps), f"{epsilon:g}", *cells, saved)
    screen.print(rows)
    screen.print("[dim]–: tCDP has no theorem for Poisson batches. q = 1 are full batches.[/]")


def _noise(q: float, steps: int, epsilon: float, accountant: Accountant) -> float | None:
    """The least noise by an accountant, by bisection from the PLD answer; None where it has no theorem."""
    from sidelight.privacy import accountants, events

    relation: Relation = "add-or-remove-one"
    low = accountants.noise_multiplier(
        epsilon=epsilon, delta=_TOUR_DELTA, sampling_probability=q, steps=steps, relation=relation
    )
    if accountant == "pld":
        return low
    step = accountants.step_event(sampling_probability=q, relation=relation)

    def enough(noise: float) -> bool:
        plan = events.repeat(step(noise), steps)
        return (
            accountants.epsilon(plan, delta=_TOUR_DELTA, relation=relation, accountant=accountant) <= epsilon
        )

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
    ledger.register("patients", relation="add-or-remove-one", epsilon=3.0, delta=_TOUR_DELTA)
    return ledger


def _begin(ledger: Ledger, note: str) -> Run:
    """Charge a run of one full-batch release at ε = 1."""
    from sidelight.privacy import accountants, events

    noise = accountants.noise_multiplier(epsilon=1.0, delta=_TOUR_DELTA, relation="add-or-remove-one")
    plan = events.gaussian(noise)
    return ledger.begin("patients", plan, relation="add-or-remove-one", method="demo", note=note)


def _show_ledger_refusal(screen: Console, run: Run) -> None:
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
    screen.print("\n[bold]3. Runs continue until the budget is used up.[/]")
    rows = terminal.table(
        "run", "sum of ε", "composed ε", "left", numbers=("run", "sum of ε", "composed ε", "left")
    )
    refusal = ""
    for run in range(1, 20):
        total = ledger.total("patients")
        left = plain_down(ledger.remaining("patients"), 4)
        rows.add_row(str(run), str(run), plain_up(total.epsilon, 4), left)
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
