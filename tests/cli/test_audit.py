"""`sidelight audit`: what it shows, what it writes, and how it ends."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from sidelight.audit.result import AuditResult, Kind
from sidelight.cli.audit_command import _show
from sidelight.methods import METHODS
from sidelight.privacy.events import RELATIONS

KINDS: tuple[Kind, ...] = ("neighbor replay", "many-run", "one-run")
FAST = ("--runs", 20, "--canaries", 20)


def test_a_method_that_holds_ends_well(run: Run) -> None:
    result = run("audit", "dp_sgd", "--relation", "add-or-remove-one", *FAST)
    assert result.code == 0 and result.err == ""
    assert "passed" in result.out and "claim" in result.out and "REFUTED" not in result.out


def test_json_holds_every_result(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "audit.json"
    result = run("audit", "output_perturbation", "--json", "--out", out, *FAST)
    assert result.code == 0 and json.loads(out.read_text()) == result.json
    assert result.json["passed"]
    assert [one["kind"] for one in result.json["results"]] == ["neighbor replay", "many-run", "one-run"]
    (replay, *_) = result.json["results"]
    assert replay["method"] == "output_perturbation" and replay["claimed_epsilon"] <= 1
    assert 0 < replay["details"]["largest_share"] <= 1
    assert list(tmp_path.iterdir()) == [out]


def test_a_refuted_method_is_named_and_ends_with_1(run: Run) -> None:
    result = run("audit", "tests.audit.broken:NormalizedRsgd", "--kind", "replay")
    assert result.code == 1
    assert result.err == "sidelight audit: refuted: rsgd_ar, normalized gradients\n"
    assert "REFUTED" in result.out and "one record moves a private sum" in result.out


def test_a_claim_of_nothing_is_shown_as_such(run: Run) -> None:
    result = run("audit", "non_private", "--kind", "many-run", "--relation", "replace-one", "--runs", 20)
    assert result.code == 0 and "none" in result.out


def test_without_a_name_the_main_methods_are_replayed(run: Run) -> None:
    result = run("audit", "--relation", "add-or-remove-one", "--json")
    assert result.code == 0 and result.json["passed"]
    found = [(one["method"], one["kind"]) for one in result.json["results"]]
    assert found[0] == ("auto", "neighbor replay") and {kind for _, kind in found} == {"neighbor replay"}
    assert {"dp_sgd", "dope_sgd", "precision_weighting"} <= {name for name, _ in found}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("dp_sgd", "--all"), "name methods to audit"),
        (("dp_sdg",), "Did you mean 'dp_sgd'"),
        (("dp_sgd", "dp_sdg"), "Did you mean 'dp_sgd'"),
        (("rsgd_ar", "--relation", "add-or-remove-one"), "not add-or-remove-one"),
        (("dp_sgd", "--kind", "nonsense"), "nonsense"),
        (("dp_sgd", "--epsilon", "0"), "above 0"),
        (("dp_sgd", "--delta", "-1"), "between 0 and 1"),
        (("dp_sgd", "--runs", "3"), "from 20"),
        (("dp_sgd", "--confidence", "1"), "strictly between"),
        (("dp_sgd", "--out", "no/such/folder/audit.json"), "not a folder"),
        (("no_such_module:thing",), "no_such_module"),
        (("tests.audit.broken:nothing",), "nothing"),
        (("tests.audit.broken:STEPS",), "is not a method"),
        (("rsgd_ar", "--model", "network"), "recipes of steps"),
    ],
)
def test_bad_input_is_one_line(run: Run, args: tuple[str, ...], words: str) -> None:
    if "network" in args:
        pytest.importorskip("torch")
    run("audit", *args).is_one_line_error(2, words)


def test_all_columns_beside_the_longest_name_fit_80(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = max(METHODS, key=len)
    results = [
        AuditResult(kind, name, relation, 1.0, 0.123456, 1e-5, 0.95)
        for relation in RELATIONS
        for kind in KINDS
    ]
    _show(results)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(name in line and line.rstrip().endswith("passed") for line in lines) == 2
    assert "claim is ε at δ = 1e-05, and what was proven by many runs and by one run" in " ".join(
        " ".join(lines).split()
    )
