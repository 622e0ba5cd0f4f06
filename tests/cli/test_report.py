"""`sidelight report`: a page and a summary from a model folder, or one clear line."""

import json
import shutil
from pathlib import Path

import click
import pytest
from tests.cli.conftest import Run
from tests.report.cards import card, full_card

from sidelight.estimators.model_folder import checksum
from sidelight.report import Card


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    full_card().write(folder / "privacy.json")
    return folder


def test_it_writes_the_page_and_says_what_is_promised(run: Run, model: Path) -> None:
    result = run("report", model)
    assert result.code == 0 and result.err == ""
    assert (model / "report.html").read_text().startswith("<!doctype html>")
    for word in ("ppsgd", "ε = 1 at δ = 1e-05, replace-one", "attacker", "true positives", "report.html"):
        assert word.replace(" ", "") in "".join(result.out.split())  # a long path is folded
    assert sorted(path.name for path in model.iterdir()) == ["privacy.json", "report.html"]


def test_json_for_scripts(run: Run, model: Path) -> None:
    found = run("report", model, "--json").json
    assert found["guarantee"] == "private" and found["holds"] is True and found["relation"] == "replace-one"
    assert found["epsilon_recomputed"] <= found["epsilon"] * (1 + 1e-6)
    assert 0.01 < found["true_positive_rate"]["0.01"] < 0.03 and 0 < found["advantage"] < 0.2
    assert Path(found["report"]).exists()


def test_out_and_the_card_itself(run: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "for review.html"
    assert run("report", model / "privacy.json", "--out", out).code == 0
    assert out.exists() and not (model / "report.html").exists()
    assert run("report", model, "--out", out).code == 0  # a report may be replaced


def test_open_shows_the_file(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(click, "launch", lambda url: opened.append(url) or 0)
    assert run("report", model, "--open").code == 0
    assert opened == [(model / "report.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("name", "kind", "word"),
    [("non_private", "none", "NO GUARANTEE"), ("only_public", "unused", "no private record was used")],
)
def test_methods_without_a_private_release(run: Run, tmp_path: Path, name: str, kind: str, word: str) -> None:
    card(name).write(tmp_path / "privacy.json")
    assert word in run("report", tmp_path).out
    found = run("report", tmp_path, "--json").json
    assert found["guarantee"] == kind and found["epsilon"] == (0 if kind == "unused" else "infinity")


def test_a_false_claim_is_a_failure(run: Run, tmp_path: Path) -> None:
    body = card("dp_sgd").to_dict()
    body["statement"]["epsilon"] = 0.1
    Card.from_dict(body).write(tmp_path / "privacy.json")
    result = run("report", tmp_path)
    assert result.code == 1 and "DOES NOT HOLD" in result.out and "recomputed" in result.out
    assert "The claim does not hold" in (tmp_path / "report.html").read_text()
    assert run("report", tmp_path, "--json").json["holds"] is False


@pytest.mark.parametrize(
    "fact", ["public_is_public", "public_is_independent", "size_is_public", "nothing_else_released"]
)
def test_an_assumption_that_is_not_true_is_a_failure(
    run: Run, model: Path, tmp_path: Path, fact: str
) -> None:
    (tmp_path / "facts.toml").write_text(f"{fact} = false\n")
    result = run("report", model, "--facts", tmp_path / "facts.toml")
    assert result.code == 1 and "WARNING" in result.out
    assert run("report", model).code == 1  # it is in the card now


def test_a_failed_audit_is_a_failure(run: Run, tmp_path: Path) -> None:
    body = full_card().to_dict()
    body["audits"][0]["passed"] = False
    Card.from_dict(body).write(tmp_path / "privacy.json")
    result = run("report", tmp_path)
    assert result.code == 1 and "1 FAILED" in result.out


def test_weights_that_are_not_those_of_the_card_are_a_failure(run: Run, model: Path) -> None:
    weights = model / "weights.safetensors"
    weights.write_bytes(b"as written")
    card = full_card().to_dict() | {"hashes": {weights.name: checksum(b"as written")}}
    Card.from_dict(card).write(model / "privacy.json")
    assert run("report", model, "--json").json["files_changed"] == []
    weights.write_bytes(b"other ones")
    result = run("report", model)
    assert result.code == 1 and "weights.safetensors: CHANGED" in result.out
    assert "no longer described by it: weights.safetensors" in (model / "report.html").read_text()
    weights.unlink()
    weights.symlink_to("/dev/zero")  # which does not end
    assert run("report", model).code == 1
    weights.unlink()
    assert run("report", model).code == 0  # a card may travel alone


def test_no_folder(run: Run, tmp_path: Path) -> None:
    run("report", tmp_path / "nowhere").is_one_line_error(2, "does not exist", "sidelight fit")


def test_a_folder_without_a_card(run: Run, tmp_path: Path) -> None:
    run("report", tmp_path).is_one_line_error(2, "holds no privacy.json")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 99}'])
def test_a_broken_card(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "privacy.json").write_text(content)
    run("report", tmp_path).is_one_line_error(2, "privacy card", "privacy.json")
    assert [path.name for path in tmp_path.iterdir()] == ["privacy.json"]


def test_a_card_whose_numbers_make_no_sense(run: Run, tmp_path: Path) -> None:
    body = card("rsgd_ar").to_dict()
    body["statement"]["events"][0]["probabilities"][0] = 5
    (tmp_path / "privacy.json").write_text(json.dumps(body))
    run("report", tmp_path).is_one_line_error(2, "probabilities of a mixture")


def test_out_is_no_place_to_write(run: Run, model: Path, tmp_path: Path) -> None:
    run("report", model, "--out", tmp_path).is_one_line_error(2, "--out", "is a folder")
    run("report", model, "--out", tmp_path / "no" / "x.html").is_one_line_error(2, "cannot be written")
    run("report", model, "--out", model / "privacy.json").is_one_line_error(2, "is not an .html file")
    assert Card.read(model / "privacy.json") == full_card()


def test_a_title_with_control_characters_is_harmless(run: Run, tmp_path: Path) -> None:
    body = full_card().to_dict() | {"title": "a\x1b[31m\x07[red]b"}
    Card.from_dict(body).write(tmp_path / "privacy.json")
    out = run("report", tmp_path).out
    assert "\x1b" not in out and "\x07" not in out and "[red]b" in out


def test_help_has_examples(run: Run) -> None:
    assert "sidelight report model/" in run("report", "--help").out


def test_facts_are_kept_and_an_entry_is_drafted(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "facts.toml").write_text('purpose = "Whom to invite"\ntitle = "Screening"\n')
    entry = tmp_path / "entry.json"
    assert run("report", model, "--facts", tmp_path / "facts.toml", "--registry", entry).code == 0
    kept = Card.read(model / "privacy.json")
    assert kept.facts == {"purpose": "Whom to invite", "title": "Screening"} and kept.title == "Screening"
    assert "Whom to invite" in (model / "report.html").read_text()
    assert json.loads(entry.read_text())["deployment"]["basic"]["intended_use"] == "Whom to invite"
    assert run("report", model).code == 0 and "Whom to invite" in (model / "report.html").read_text()
    (tmp_path / "facts.toml").write_text("purpos = 1\n")
    run("report", model, "--facts", tmp_path / "facts.toml").is_one_line_error(2, "no fact 'purpos'")


def test_a_pdf_is_printed_by_a_browser_or_refused(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("chromium") is not None:
        assert run("report", model, "--pdf", tmp_path / "r.pdf").code == 0
        assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    monkeypatch.setenv("PATH", str(tmp_path))
    run("report", model, "--pdf", tmp_path / "other.pdf").is_one_line_error(2, "--pdf needs one of chromium")
    assert not (tmp_path / "other.pdf").exists()


def test_audits_are_kept_in_the_card(run: Run, model: Path, tmp_path: Path) -> None:
    audits = tmp_path / "audits.json"
    assert run("audit", "only_public", "ppsgd", "--kind", "replay", "--out", audits).code == 0
    assert run("report", model, "--audits", audits).code == 0
    assert [row["method"] for row in Card.read(model / "privacy.json").audits] == ["ppsgd"]
    page = (model / "report.html").read_text()
    assert "nothing found" in page and "largest move 1.000" in page
    assert run("audit", "only_public", "--kind", "replay", "--out", audits).code == 0
    run("report", model, "--audits", audits).is_one_line_error(2, "holds no audit of ppsgd")
    for text in ("[]", "{", '{"results": [1]}', '{"results": 3}'):
        audits.write_text(text)
        run("report", model, "--audits", audits).is_one_line_error(2, "sidelight audit --out")
    run("report", model, "--audits", tmp_path / "none").is_one_line_error(2, "none does not exist")
