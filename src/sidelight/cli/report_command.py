"""`sidelight report`: the privacy report of a model, made anew from its card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidelight.cli import terminal
from sidelight.errors import InputError
from sidelight.files import missing, write_bytes
from sidelight.numbers import plain_up, right_in

if TYPE_CHECKING:
    from sidelight.arrays import Json
    from sidelight.report import Card
    from sidelight.report.guarantee import Guarantee
    from sidelight.report.tradeoff import TradeOff

CARD, REPORT = "privacy.json", "report.html"
FILE = click.Path(path_type=Path)


@click.command("report")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write to this file instead of the folder."
)
@click.option("--facts", type=FILE, metavar="TOML", help="Purpose, controller, legal basis, …, to keep.")
@click.option("--audits", type=FILE, metavar="JSON", help="What `sidelight audit --out` wrote, to keep.")
@click.option("--pdf", type=FILE, metavar="FILE", help="Print it to a PDF with an installed Chromium.")
@click.option(
    "--registry",
    type=FILE,
    metavar="FILE",
    help="Draft an entry for the DP deployments registry.",
)
@click.option("--open", "open_", is_flag=True, help="Show the report in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    model: Path,
    out: Path | None,
    facts: Path | None,
    audits: Path | None,
    pdf: Path | None,
    registry: Path | None,
    open_: bool,
    as_json: bool,
) -> int:
    """Write the privacy report of a model and print its guarantee.

    MODEL is a folder that `sidelight fit` wrote, or the privacy.json in it. The report is one HTML file that
    opens offline. Its ε is recomputed from the events in the card. The exit code
    is 1 if the card claims less than they cost, holds a failed audit, declares
    that an assumption is not true (or the public records not public), or does not
    match the weights beside it.

    \b
      sidelight report model/
      sidelight report model/ --out for-review.html --open
      sidelight report model/ --facts facts.toml --pdf for-signature.pdf
      sidelight report model/ --json | jq '.epsilon'
    """
    import json

    from sidelight.estimators.model_folder import changed_files, with_facts
    from sidelight.files import write_text
    from sidelight.privacy.statement import plain
    from sidelight.report import Card, write_report
    from sidelight.report.audits import with_audits
    from sidelight.report.review import registry_entry

    source = _card_file(model)
    report = source.parent / REPORT if out is None else _checked(out)
    card = Card.read(source)
    card = with_audits(with_facts(card, facts), audits)
    if facts is not None or audits is not None:
        card.write(source)
    files_changed = changed_files(card, source.parent)
    summary = _summary(card, report) | {"files_changed": files_changed}
    write_report(card, report, files_changed)
    if registry is not None:
        write_text(registry, json.dumps(plain(registry_entry(card)), indent=2, ensure_ascii=False) + "\n")
        summary["registry"] = str(registry)
    if pdf is not None:
        _print_to(pdf, report)
        summary["pdf"] = str(pdf)
    terminal.as_json(summary) if as_json else _print(summary)
    if open_:
        click.launch(report.resolve().as_uri())
    sound = summary["holds"] and summary["public_is_public"] is not False and not summary["not_true"]
    return 0 if sound and not summary["audits_failed"] and not summary["files_changed"] else 1


_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")


def _print_to(pdf: Path, report: Path) -> None:
    """The page as a browser prints it: no other program lays it out the same."""
    import contextlib
    import shutil
    import subprocess
    import tempfile

    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise InputError(
            f"--pdf needs one of {', '.join(_BROWSERS)}. Without one, open {report} and print it to a file"
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "report.pdf"
        options = ("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                   "--disable-component-update", "--disable-sync", "--no-pdf-header-footer",
                   f"--user-data-dir={folder}/profile")  # fmt: skip
        command = [browser, *options, *_as_root(), f"--print-to-pdf={made}", report.resolve().as_uri()]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # then there is no file
            subprocess.run(command, capture_output=True, timeout=120, check=False)
        if not made.is_file():
            raise InputError(f"{browser} printed nothing; open {report} in a browser and print it to a file")
        write_bytes(pdf, made.read_bytes())


def _as_root() -> tuple[str, ...]:
    """Chromium's own sandbox does not run as root, which a container often is. The page is our own."""
    import os

    return ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()


def _card_file(model: Path) -> Path:
    if model.is_file():
        return model
    if not model.is_dir():
        raise InputError(f"{missing(model)}; give the folder that `sidelight fit` wrote")
    if not (model / CARD).is_file():
        raise InputError(f"{model} holds no {CARD}; give the folder that `sidelight fit` wrote")
    return model / CARD


def _checked(out: Path) -> Path:
    """A file to write to: a report may be replaced, anything else that is there may be a slip."""
    if out.is_dir():
        raise InputError(f"--out: {out} is a folder; name a file")
    if out.exists() and out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out: {out} exists and is not an .html file; choose another name")
    return out


def _summary(card: Card, report: Path) -> Json:
    from sidelight.report.guarantee import guarantee
    from sidelight.report.tradeoff import attack_on

    promise = guarantee(card)
    attack = None if promise.kind == "false" else attack_on(card)
    return _facts(card, promise, attack) | {"report": str(report)}


def _facts(card: Card, promise: Guarantee, attack: TradeOff | None) -> Json:
    from sidelight.privacy import events
    from sidelight.report.facts import undeclared
    from sidelight.report.guarantee import (
        alarms,
        delta_allows,
        not_true,
        private_units,
        protected,
        right_guesses,
    )

    facts: Json = {
        "title": card.title,
        "method": card.method,
        "chosen": card.statement["details"].get("chosen"),
        "guarantee": promise.kind,
        "holds": promise.kind != "false",
        "epsilon": card.epsilon,
        "epsilon_recomputed": promise.recomputed,
        "delta": card.delta,
        "relation": card.relation,
        "charged": events.describe(card.plan),
        "assumptions": [str(line) for line in card.statement["assumptions"]],
        "audits_failed": sum(row.get("passed") is not True for row in card.audits),
        "public_is_public": card.facts.get("public_is_public"),
        "alarms": alarms(card),
        "not_true": not_true(card),
        "undeclared": undeclared(card.facts),
        "privacy_json_sha256": card.digest,
    }
    who = protected(card)
    if promise.kind == "private" and who.whose == "person":
        facts |= {"epsilon_per_person": who.epsilon, "delta_per_person": who.delta}
    if promise.kind == "private" and (n := private_units(card)) is not None:
        facts |= {"n_delta": n * who.delta, "delta_allows": delta_allows(card)}
    if promise.kind == "private" and (right := right_guesses(card, who)) is not None:
        facts |= {"right_guesses": right}
    if attack is not None:
        rates = (0.001, 0.01, 0.1)
        powers = {f"{rate:g}": float(attack.power(rate)) for rate in rates}
        facts |= {"advantage": attack.advantage, "true_positive_rate": powers}
    return facts


def _print(summary: Json) -> None:
    for line in summary["alarms"]:
        terminal.console().print(f"WARNING: {line}", style="bold red", markup=False)
    rows = terminal.table("", "")
    for name, text in _lines(summary):
        terminal.add_row(rows, name, text)
    rows.show_header = False
    terminal.console().print(rows)


def _lines(summary: Json) -> list[tuple[str, str]]:
    verdicts = {
        "private": f"ε = {plain_up(summary['epsilon'])} at δ = {plain_up(summary['delta'])}, "
        f"{summary['relation']}",
        "unused": "ε = 0: no private record was used",
        "none": "NO GUARANTEE: the private records were used without protection",
        "false": f"DOES NOT HOLD: the card claims ε = {summary['epsilon']:g}, the events cost more",
    }
    chosen = f", which chose {summary['chosen']}" if summary["chosen"] else ""
    lines = [("model", summary["title"]), ("method", f"{summary['method']}{chosen}")]
    lines.append(("guarantee", verdicts[summary["guarantee"]]))
    if summary["guarantee"] == "false" and summary["epsilon_recomputed"] is not None:
        lines.append(("recomputed", f"ε = {plain_up(summary['epsilon_recomputed'])}"))
    if "epsilon_per_person" in summary:
        epsilon, delta = (plain_up(summary[f"{name}_per_person"], 4) for name in ("epsilon", "delta"))
        lines.append(("per person", f"ε = {epsilon} at δ = {delta}"))
    if summary.get("delta_allows"):
        lines.append(("δ allows", summary["delta_allows"]))
    lines.append(("charged", summary["charged"]))
    if "right_guesses" in summary:
        lines.append(("attacker", right_in(summary["right_guesses"])))
    if summary["guarantee"] == "private" and "advantage" in summary:
        power = summary["true_positive_rate"]["0.01"]
        attack = f"at 1\u202f% false positives, at most {plain_up(100 * power, 3)}\u202f% true positives"
        what = "on one record" if "epsilon_per_person" in summary else "curve"
        lines.append((what, f"{attack}; advantage at most {plain_up(summary['advantage'], 3)}"))
    if summary["files_changed"]:
        lines.append(("files", f"{', '.join(summary['files_changed'])}: CHANGED since the card was written"))
    if summary["audits_failed"]:
        lines.append(("audits", f"{summary['audits_failed']} FAILED"))
    if summary["undeclared"]:
        lines.append(("undeclared", ", ".join(summary["undeclared"])))
    return [*lines, *((name, summary[name]) for name in ("report", "pdf", "registry") if name in summary)]
