"""Facts that whoever is responsible declares, in a TOML file (`sidelight fit --facts facts.toml`):

    title = "Screening, 2026"
    purpose = "Whom to invite to screening"
    controller = "St Mary's Hospital"
    legal_basis = "GDPR Art. 6(1)(e)"
    public_source = "published case reports, 2015 to 2020"
    public_is_public = true
    records_per_person = 1
    special_categories = ["diagnosis"]
    review_date = 2027-06-30

No program can check them. What is missing is shown as not declared.
"""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sidelight.arrays import Json
from sidelight.errors import InputError, nearest

Kind = Literal["text", "yes or no", "whole number", "texts", "date"]

FACTS: dict[str, tuple[str, Kind]] = {
    "title": ("what the model is called", "text"),
    # who and what
    "purpose": ("purpose of the model", "text"),
    "intended_use": ("intended use", "text"),
    "controller": ("controller of the data", "text"),
    "operator": ("who ran the training", "text"),
    "legal_basis": ("legal basis", "text"),
    "recipients": ("recipients of the model", "texts"),
    "collection": ("how the private records were collected", "text"),
    "retention": ("retention of data and model", "text"),
    "region": ("region", "text"),
    "sector": ("sector", "text"),
    # what the guarantee rests on
    "public_source": ("where the public records come from", "text"),
    "public_is_public": ("the public records are public or their owners consented", "yes or no"),
    "public_is_independent": ("no public record was taken or chosen from the private ones", "yes or no"),
    "records_per_person": ("records that one person has, at most", "whole number"),
    "size_is_public": ("the number of records and the columns are public", "yes or no"),
    "nothing_else_released": ("nothing else from these records is released uncharged", "yes or no"),
    "side_channels": ("how side channels are controlled", "text"),
    # for a data protection impact assessment
    "data_subjects": ("whose data it is", "text"),
    "special_categories": ("columns with special categories of data (GDPR Art. 9)", "texts"),
    "special_categories_condition": ("condition for special categories (GDPR Art. 9(2))", "text"),
    "automated_decisions": ("decisions about people that rest on the model (GDPR Art. 22)", "text"),
    "necessity": ("why private records are needed", "text"),
    "risks": ("risks to the people concerned", "texts"),
    "measures": ("measures against these risks", "texts"),
    "erasure": ("what happens when a person asks for erasure", "text"),
    "officer_opinion": ("opinion of the data protection officer", "text"),
    "reviewer": ("reviewer", "text"),
    "review_date": ("date of the next review", "date"),
}
_LONGEST, _MOST = 2000, 1 << 16  # characters of a text, bytes of a file
_SAID: dict[Kind, str] = {
    "text": f"a text of at most {_LONGEST} characters",
    "yes or no": "true or false",
    "whole number": "a whole number of at least 1",
    "texts": "a list of texts",
    "date": "a date such as 2027-06-30",
}


def read_facts(path: str | os.PathLike[str]) -> Json:
    """Declared facts from a TOML file; an error names the line or the fact that is wrong."""
    file = Path(path)
    try:
        if not file.is_file():  # a pipe or a device would not end
            raise InputError(f"{file} is not a file; facts are a mapping, or a TOML file")
        if file.stat().st_size > _MOST:
            raise InputError(f"{file} is larger than {_MOST // 1024} KB; facts are a few lines of TOML")
        return check_facts(tomllib.loads(file.read_bytes().decode("utf-8")))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not a text file; facts are a few lines of TOML") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{file} is not valid TOML: {error}") from None


def check_facts(facts: object) -> Json:
    """The facts, if each is known and of its kind."""
    if not isinstance(facts, Mapping):
        raise InputError("facts are names and values")
    for name, value in facts.items():
        if name not in FACTS:
            near = nearest(str(name), tuple(FACTS))
            raise InputError(f"there is no fact {name!r}.{near or ' Facts are: ' + ', '.join(FACTS)}")
        kind = FACTS[name][1]
        if not _is(value, kind):
            raise InputError(f"the fact {name!r} is {_SAID[kind]}, not {str(value)[:60]!r}")
    return {name: str(value) if FACTS[name][1] == "date" else value for name, value in facts.items()}


def _is(value: object, kind: Kind) -> bool:
    if kind == "text":
        return isinstance(value, str) and 0 < len(value) <= _LONGEST
    if kind == "yes or no":
        return isinstance(value, bool)
    if kind == "whole number":
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9
    if kind == "date":
        return _is_date(value)
    return isinstance(value, list) and 0 < len(value) <= 100 and all(_is(one, "text") for one in value)


def _is_date(value: object) -> bool:
    try:
        datetime.date.fromisoformat(str(value))
    except ValueError:
        return False
    return True


def declared_text(facts: Json, name: str) -> str | None:
    """A fact in words; None if it was not declared."""
    value = facts.get(name)
    if value is None or isinstance(value, bool):
        return None if value is None else "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def declared(facts: Json) -> list[tuple[str, str | None]]:
    """Every fact in words; None if it was not declared."""
    return [(label, declared_text(facts, name)) for name, (label, _) in FACTS.items()]


def undeclared(facts: Json) -> list[str]:
    """The names of the facts that nobody declared, as a file of facts has them."""
    needless = () if facts.get("special_categories") else ("special_categories_condition",)
    return [name for name in FACTS if facts.get(name) is None and name not in needless]
