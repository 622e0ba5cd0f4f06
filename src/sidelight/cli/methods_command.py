"""`sidelight methods`: what there is, what it needs, and when it wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sidelight.cli import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from sidelight.arrays import Json

SHORT = {"add-or-remove-one": "add/remove", "replace-one": "replace"}


@click.command("methods", short_help="What methods there are, what each needs, and when it wins.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=terminal.complete_methods)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """What methods there are, what each needs, and when it wins and loses.

    \b
      sidelight methods              the list
      sidelight methods dope_sgd     one of them: parameters, guarantee, departures from its paper
      sidelight methods --json | jq -r '.methods[] | select(.networks) | .name'
    """
    from sidelight.methods.declare import METHODS, describe

    if name is not None:
        facts = describe(name)
        terminal.as_json(facts) if as_json else _print_one(terminal.console(), facts)
        return
    everything = [describe(method) for method in METHODS]
    if as_json:
        terminal.as_json({"methods": everything})
    else:
        _print_all(terminal.console(), everything)


def _print_all(screen: Console, methods: list[Json]) -> None:
    rows = terminal.table("method", "when it wins, and when it loses")
    for method in methods:
        needs = f"\n[dim]  needs {method['needs']}[/]" if method["needs"] else ""
        text = f"[green]+[/] {method['wins']}\n[red]−[/] {method['loses']}{needs}"
        rows.add_row(f"[bold]{method['name']}[/]\n[dim]{_facts(method)}[/]", text)
    screen.print(rows)
    screen.print(
        "[dim]replace, add/remove: what a neighbouring dataset is; the first is the default. "
        "public: needs public rows. networks: also for Trainer.[/]\n"
        "More of one: sidelight methods NAME. Which suits your data: sidelight compare --help."
    )


def _facts(method: Json) -> str:
    """The second and third line of the first column."""
    relations = ", ".join(SHORT[relation] for relation in method["relations"])
    if not method["private"]:
        relations = "[red]no guarantee at all[/]"
    flags = [
        word
        for word, is_so in (("public", method["needs_public"]), ("networks", method["networks"]))
        if is_so
    ]
    return "\n".join([relations, " · ".join(flags)] if flags else [relations])


def _print_one(screen: Console, method: Json) -> None:
    facts = terminal.table("", "")
    facts.show_header = False
    lines = {
        "paper": method["paper"],
        "relation": ", or ".join(method["relations"])
        + (" (the first by default)" if method["relations"][1:] else ""),
        "public records": "needed" if method["needs_public"] else "not needed",
        "also needs": method["needs"],
        "networks": "yes, in Trainer and PrivateStep" if method["networks"] else "no, linear models only",
        "wins": method["wins"],
        "loses": method["loses"],
        "guarantee": method.get("guarantee", ""),
        "assumes": method.get("assumes", ""),
        "departs": method.get("departs", ""),
    }
    screen.print(f"[bold]{method['name']}[/]", end=" ")
    screen.print(method["summary"], markup=False)
    for title, text in lines.items():
        if text:
            terminal.add_row(facts, title, text)
    screen.print(facts)
    _print_parameters(screen, method)


def _print_parameters(screen: Console, method: Json) -> None:
    if not method["parameters"]:
        screen.print("It has no parameters.")
        return
    rows = terminal.table("parameter", "default", "meaning", "type")
    for item in method["parameters"]:
        terminal.add_row(rows, item["name"], str(item["default"]), item["meaning"], item["type"])
    screen.print(rows)
    first = method["parameters"][0]["name"]
    screen.print(
        f'In Python: PrivateClassifier(method="{method["name"]}"), or method={method["name"]}({first}=…).',
        markup=False,
    )
