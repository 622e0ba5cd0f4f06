"""`sidelight methods`: what there is, what it needs, and when it wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sidelight.cli import options, show

if TYPE_CHECKING:
    from rich.console import Console

SHORT = {"add-or-remove-one": "add/remove", "replace-one": "replace"}


@click.command("methods", short_help="What methods there are, what each needs, and when it wins.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=options.complete_methods)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """What methods there are, what each needs, and when it wins and loses.

    \b
      sidelight methods              the list
      sidelight methods dope_sgd     one of them: parameters, guarantee, departures from its paper
      sidelight methods --json | jq -r '.methods[] | select(.networks) | .name'
    """
    from sidelight.methods.about import describe
    from sidelight.methods.registry import METHODS

    if name is not None:
        found = describe(name)
        show.as_json(found) if as_json else _print_one(show.console(), found)
        return
    everything = [describe(one) for one in METHODS]
    if as_json:
        show.as_json({"methods": everything})
    else:
        _print_all(show.console(), everything)


def _print_all(screen: Console, methods: list[dict[str, Any]]) -> None:
    rows = show.table("method", "when it wins, and when it loses")
    for one in methods:
        needs = f"\n[dim]  needs {one['needs']}[/]" if one["needs"] else ""
        text = f"[green]+[/] {one['wins']}\n[red]−[/] {one['loses']}{needs}"
        rows.add_row(f"[bold]{one['name']}[/]\n[dim]{_facts(one)}[/]", text)
    screen.print(rows)
    screen.print(
        "[dim]replace, add/remove: what a neighbouring dataset is; the first is the default. "
        "public: needs public rows. networks: also for Trainer.[/]\n"
        "More of one: sidelight methods NAME. Which suits your data: sidelight compare --help."
    )


def _facts(one: dict[str, Any]) -> str:
    """The second and third line of the first column."""
    relations = ", ".join(SHORT[relation] for relation in one["relations"])
    if not one["private"]:
        relations = "[red]no guarantee at all[/]"
    flags = [
        word for word, is_so in (("public", one["needs_public"]), ("networks", one["networks"])) if is_so
    ]
    return "\n".join([relations, " · ".join(flags)] if flags else [relations])


def _print_one(screen: Console, one: dict[str, Any]) -> None:
    facts = show.table("", "")
    facts.show_header = False
    lines = {
        "paper": one["paper"],
        "relation": ", or ".join(one["relations"])
        + (" (the first by default)" if one["relations"][1:] else ""),
        "public records": "needed" if one["needs_public"] else "not needed",
        "also needs": one["needs"],
        "networks": "yes, in Trainer and PrivateStep" if one["networks"] else "no, linear models only",
        "wins": one["wins"],
        "loses": one["loses"],
        "guarantee": one.get("guarantee", ""),
        "assumes": one.get("assumes", ""),
        "departs": one.get("departs", ""),
    }
    screen.print(f"[bold]{one['name']}[/]", end=" ")
    screen.print(one["summary"], markup=False)
    for title, text in lines.items():
        if text:
            show.add_row(facts, title, text)
    screen.print(facts)
    _print_parameters(screen, one)


def _print_parameters(screen: Console, one: dict[str, Any]) -> None:
    if not one["parameters"]:
        screen.print("It has no parameters.")
        return
    rows = show.table("parameter", "default", "meaning", "type")
    for item in one["parameters"]:
        show.add_row(rows, item["name"], str(item["default"]), item["meaning"], item["type"])
    screen.print(rows)
    first = one["parameters"][0]["name"]
    screen.print(
        f'In Python: PrivateClassifier(method="{one["name"]}"), or method={one["name"]}({first}=…).',
        markup=False,
    )
