"""Facts that were declared, what a reviewer is asked, and the registry's entry."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.cards import NAMES, card, full_card

from sidelight.errors import InputError
from sidelight.privacy import accountants, conversions
from sidelight.report import html
from sidelight.report.audits import audit_row
from sidelight.report.facts import FACTS, check_facts, declared, read_facts
from sidelight.report.guarantee import alarms, several
from sidelight.report.review import evaluation, gaussian_mu, profile, registry_entry

GOOD: dict[str, Any] = {
    "purpose": "Whom to invite", "controller": "A hospital", "records_per_person": 1,
    "public_is_public": True, "public_is_independent": True, "public_source": "reports",
    "recipients": ["one", "two"], "collection": "admissions", "retention": "2 years",
    "review_date": "2027-06-30",
}  # fmt: skip
TOML = """
purpose = "Whom to invite"
controller = "A hospital"
records_per_person = 1
public_is_public = true
public_is_independent = true
public_source = "reports"
recipients = ["one", "two"]
collection = "admissions"
retention = "2 years"
review_date = 2027-06-30
"""


def test_facts_are_read_from_toml(tmp_path: Path) -> None:
    (tmp_path / "facts.toml").write_text(TOML)
    assert read_facts(tmp_path / "facts.toml") == GOOD == check_facts(GOOD)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("purpoes = 'x'", "no fact 'purpoes'. Did you mean 'purpose'"),
        ("purpose = 3", "'purpose' is a text of at most 2000 characters, not '3'"),
        ("purpose = ''", "'purpose' is a text"),
        (f"purpose = '{'x' * 2001}'", "'purpose' is a text"),
        ("records_per_person = 0", "whole number of at least 1"),
        ("records_per_person = true", "whole number"),
        ("public_is_public = 'yes'", "true or false"),
        ("recipients = 'one'", "list of texts"),
        ("recipients = [1]", "list of texts"),
        ("review_date = 'soon'", "a date such as 2027-06-30"),
        ("review_date = 2027", "a date such as 2027-06-30"),
        ("purpose = ", "not valid TOML"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("\x00", "not valid TOML"),
        ("#" * 70_000, "larger than 64 KB"),
    ],
)
def test_wrong_facts_are_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "facts.toml").write_text(text)
    with pytest.raises(InputError) as error:
        read_facts(tmp_path / "facts.toml")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_file_of_facts_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("pipe", "missing", ".", "bytes"):
        with pytest.raises(InputError):
            read_facts(tmp_path / name)


def test_what_was_not_declared_is_said_to_be_not_declared() -> None:
    one = replace(full_card(), facts=GOOD)
    said = dict(declared(one.facts))
    assert len(said) == len(FACTS)
    assert said["recipients of the model"] == "one, two" and said["legal basis"] is None
    page = html(one)
    assert page.count("not declared") >= 5 and "A hospital" in page


@pytest.mark.parametrize("name", NAMES)
def test_every_card_is_evaluated_and_entered(name: str) -> None:
    one = card(name)
    topics = evaluation(one)
    assert len({row.topic for row in topics}) == len(topics) == 13
    assert all(row.text and row.state in ("answered", "declared", "open") for row in topics)
    json.dumps(registry_entry(one) if one.epsilon < float("inf") else {})


def test_states_follow_what_was_declared() -> None:
    before = {row.topic: row for row in evaluation(full_card())}
    after = {row.topic: row for row in evaluation(replace(full_card(), facts=GOOD))}
    for topic in ("Unit of privacy", "Public records", "Collection and retention"):
        assert (before[topic].state, after[topic].state) == ("open", "declared")
    several = replace(full_card(), facts={"records_per_person": 4})
    assert "at most 4" in next(row.text for row in evaluation(several) if row.topic == "Unit of privacy")
    groups = {"column": "site", "rows": [{"group": "a", "rows": 9, "value": 0.5, "low": 0.2, "high": 0.8}]}
    scored = replace(full_card(), scores={**full_card().scores, "groups": groups})
    found = next(row for row in evaluation(scored) if row.topic == "Subgroups")
    assert found.state == "answered" and "by 'site': a 50 % (20 % to 80 %, 9 rows)" in found.text


def test_public_records_that_are_declared_not_to_be_public_are_an_alarm() -> None:
    facts = {**GOOD, "public_is_public": False}
    one = replace(full_card(), facts=facts)
    row = next(row for row in evaluation(one) if row.topic == "Public records")
    assert row.state == "open" and "consented (reports): not true" in row.text
    assert "declared not to be public" in " ".join(alarms(one)) and 'class="state not-true"' in html(one)
    assert html(one).count("declared not to be public") == 1 and 'class="alarm"' in html(one)
    assert alarms(replace(full_card(), facts=GOOD)) == []
    nothing = replace(one, data={**one.data, "public_records": 0})
    assert "none were used" in [row.text for row in evaluation(nothing)] and alarms(nothing) == []


def test_whoever_is_trusted_with_private_records_is_named() -> None:
    plain = full_card()
    server = "the server is trusted (central differential privacy): it sees every update before it is clipped"
    lines = [*plain.statement["assumptions"], server]
    federated = replace(plain, statement={**plain.statement, "assumptions": lines})
    said = [
        next(row.text for row in evaluation(one) if row.topic == "Trust model") for one in (plain, federated)
    ]
    assert said[0].startswith("central: whoever ran the training") and said[1] == server


def test_the_mechanism_is_said_in_words_and_with_its_clip_norm() -> None:
    details = {**full_card().statement["details"], "clip_norm": 0.5}
    one = replace(full_card(), statement={**full_card().statement, "details": details})
    text = next(row.text for row in evaluation(one) if row.topic == "Mechanism and sensitivity")
    assert "times its sensitivity" in text and "is clipped to length 0.5." in text
    one.statement["details"]["chosen"] = "ppsgd"
    text = next(row.text for row in evaluation(one) if row.topic == "Mechanism and sensitivity")
    assert text.startswith(f"ppsgd, chosen by {one.method}. ") or one.method == "ppsgd"


def test_an_audit_of_one_run_shows_how_many_guesses_were_right() -> None:
    details = {"guesses": 100, "correct": [58, 61]}
    assert audit_row({"kind": "one-run", "details": details})["measured"] == "61 of 100 guesses right"


@pytest.mark.parametrize("name", ["dp_sgd", "ppsgd", "output_perturbation", "objective_perturbation"])
def test_other_numbers_are_those_of_the_events(name: str) -> None:
    one = card(name)
    listed = profile(one)
    assert listed and [e for _, e in listed] == sorted(e for _, e in listed)
    for delta, epsilon in listed:
        assert epsilon == accountants.epsilon(one.plan, delta=delta, relation=one.relation)
    found = gaussian_mu(one)
    assert found is not None
    mu, exact = found
    assert exact == (accountants.gdp(one.plan) is not None)
    for delta, epsilon in (*listed, (one.delta, one.epsilon)):
        assert conversions.gaussian_epsilon(delta, mu) >= epsilon * (1 - 1e-6)


# ---------------------------------------------------------------------------------------------------
# the registry: names and types of its schema of July 2026, in opendp/deployments-registry-data

TEXT, TEXTS = {"type": str}, {"type": list}
REGISTRY: dict[str, Any] = {
    "url_slug": TEXT,
    "status": {"type": str, "enum": ("Draft",)},
    "tier": {"type": int, "enum": (1, 2, 3)},
    "deployment": {
        "basic": {
            "name": TEXT, "data_curators": TEXTS, "intended_use": TEXT, "data_product_region": TEXT,
            "data_product_type": {"type": str, "enum": ("Machine learning model",)},
            "data_product_sector": TEXT, "description": TEXT, "publication_date": TEXT,
        },
        "dp_variant": {
            "variant_name": {"type": str, "enum": ("Pure DP", "Approximate DP")},
            "data_domain": TEXT, "unprotected_quantities": TEXT,
        },
        "privacy_loss": {
            "privacy_unit": TEXT, "privacy_unit_details": TEXT, "privacy_parameters_details": TEXT,
            "privacy_parameters": {"epsilon": {"type": float}, "delta": {"type": float}},
        },
        "deployment_model": {
            "model_name": {"type": str, "enum": ("Local", "Central", "Shuffle", "Federated")}, "actors": TEXT,
            "release_type": {"type": str, "enum": ("One release", "Many releases")},
            "release_type_details": TEXT,
            "data_source_type": {"type": str, "enum": ("Static", "Dynamic")},
            "access_type": {"type": str, "enum": ("Interactive", "Non-interactive")},
        },
        "accounting": {"composition": TEXT, "post_processing": TEXT},
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": TEXT, "mechanisms": TEXT, "justification": TEXT,
        },
    },
}  # fmt: skip


def wrong_in(entry: object, schema: Any, path: str = "") -> list[str]:
    """Where an entry is not as the schema has it."""
    if "type" in schema and isinstance(schema["type"], type):
        right = type(entry) is schema["type"] and ("enum" not in schema or entry in schema["enum"])
        return [] if right else [path]
    if not isinstance(entry, dict):
        return [path]
    found = [f"{path}/{name}" for name in entry if name not in schema]
    for name in entry:
        found += wrong_in(entry[name], schema[name], f"{path}/{name}") if name in schema else []
    return found


def test_an_entry_is_as_the_registry_has_them() -> None:
    facts = {**GOOD, "region": "Malta", "sector": "Healthcare", "operator": "us", "public_source": "reports"}
    full = registry_entry(replace(full_card(), facts=facts))
    assert wrong_in(full, REGISTRY) == []
    assert full["deployment"]["basic"]["data_curators"] == ["A hospital"]
    assert full["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0, "delta": 1e-5}
    assert wrong_in(registry_entry(full_card()), REGISTRY) == []


def test_an_entry_means_what_the_registry_means() -> None:
    """A unit is a person only if it is known what one is; domain and clear quantities are of the product."""
    data = {**full_card().data, "columns": ["age", "town"]}
    one = replace(full_card(), data=data, facts={"records_per_person": 5, "collection": "admissions"})
    found = registry_entry(one)["deployment"]
    loss = found["privacy_loss"]
    assert loss["privacy_unit"] == "person" and "at most 5" in loss["privacy_unit_details"]
    assert loss["privacy_parameters"]["epsilon"] == pytest.approx(several(one, 5)[0], rel=1e-3)
    assert registry_entry(full_card())["deployment"]["privacy_loss"]["privacy_unit"] == "record"
    assert "the columns age, town" in found["dp_variant"]["data_domain"]
    assert "number of private records" in found["dp_variant"]["unprotected_quantities"]
    assert "do not depend" not in found["dp_variant"]["unprotected_quantities"]  # that is no quantity
    strange = replace(one, facts={"sector": "Elsewhere"})
    assert "data_product_sector" not in registry_entry(strange)["deployment"]["basic"]
    assert "admissions" not in json.dumps(found)  # how records were collected is no data domain


def test_the_schema_notices_what_is_wrong() -> None:
    entry = registry_entry(full_card())
    entry["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] = "1"
    entry["deployment"]["deployment_model"]["model_name"] = "Elsewhere"
    entry["surprise"] = 1
    assert len(wrong_in(entry, REGISTRY)) == 3
