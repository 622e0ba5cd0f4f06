"""The command answers at once, and leaves in an orderly way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.tables.small import write_tables

import sidelight
from sidelight import cli, errors

HEAVY = ("torch", "numpy", "scipy", "dp_accounting", "sklearn", "pandas", "randomgen", "rich", "sqlite3")


def python(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import sidelight",
        "import sidelight; dir(sidelight); sidelight.BudgetExceeded; sidelight.__version__",
        "from sidelight.cli import main; assert main(['--help']) == 0",
        "from sidelight.cli import main; assert main(['--version']) == 0",
        "from sidelight.cli import main; assert main(['account', '--help']) == 0",
        "from sidelight.cli import main; assert main(['ledger', '--help']) == 0",
        "from sidelight.cli import main; assert main(['ledger', 'init', '--help']) == 0",
        "from sidelight.cli import main; assert main(['demo', '--help']) == 0",
        "from sidelight.cli import main; assert main(['compare', '--help']) == 0",
        "from sidelight.cli import main; assert main(['methods', '--help']) == 0",
        "from sidelight.cli import main; assert main(['completion', 'bash']) == 0",
        "from sidelight.cli import main; assert main(['demo', '--epsilon', '0']) == 2",
        "from sidelight.cli import main; assert main(['fit', '--help']) == 0",
        "from sidelight.cli import main; assert main(['predict', '--help']) == 0",
        "from sidelight.cli import main; assert main(['schema', '--help']) == 0",
        "from sidelight.cli import main; assert main(['fit', 'x', '--epsilon', '-1']) == 2",
        "from sidelight.cli import main; assert main(['account', '--delta', '7']) == 2",
        "from sidelight.cli import main; assert main(['ledger', 'init', 'x', '--epsilon', '-1']) == 2",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    done = python("-c", f"import sys\n{code}\nprint('LOADED', *(m for m in {HEAVY!r} if m in sys.modules))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "LOADED"


def test_help_feels_instant() -> None:
    """CPU seconds of the whole process, the best of three: waiting for a busy machine does not count."""
    code = (
        "import time\nfrom sidelight.cli import main\nassert main(['--help']) == 0\n"
        "print('CPU', time.process_time())"
    )
    runs = [python("-c", code) for _ in range(3)]
    assert all(done.returncode == 0 for done in runs)
    best = min(float(done.stdout.split("CPU")[-1]) for done in runs)
    assert best < 0.5, f"--help took {best:.2f} s of CPU"


def test_torch_is_loaded_by_the_names_for_networks_alone() -> None:
    code = (
        "import sys, sidelight\n"
        "deep = {name for name, home in sidelight._HOMES.items() if home == 'sidelight.deep'}\n"
        "faces = {'PrivateNetClassifier', 'PrivateNetRegressor', 'PrivateStep', 'Trainer'}\n"
        "assert deep == {*faces, 'diagnose'}\n"
        "[getattr(sidelight, name) for name in sidelight.__all__ if name not in deep]\n"
        "assert 'torch' not in sys.modules and 'opacus' not in sys.modules"
    )
    assert python("-c", code).returncode == 0


def test_module_and_script_are_the_same_command(run: Any) -> None:
    done = python("-m", "sidelight", "--version")
    assert (done.returncode, done.stdout) == (0, f"sidelight {sidelight.__version__}\n")
    assert run("--version").out == done.stdout


def test_help_teaches(run: Any) -> None:
    for command in ((), ("account",), ("ledger",), ("ledger", "init"), ("demo",), ("compare",), ("methods",)):
        outcome = run(*command, "--help")
        assert outcome.code == 0
        assert f"sidelight {' '.join(command)}".strip() in outcome.out
    assert "account -q 0.01" in run("--help").out


def test_no_command_shows_help_and_is_bad_usage(run: Any) -> None:
    outcome = run()
    assert outcome.code == 2 and "Commands:" in outcome.err


@pytest.mark.parametrize(
    ("args", "words"),
    [(("acount",), "'account'"), (("xyzzy",), "expected one of"), (("--versoin",), "--version")],
)
def test_unknown_command_gets_one_line(run: Any, args: tuple[str, ...], words: str) -> None:
    run(*args).is_one_line_error(2, words)


def raising(error: BaseException) -> Any:
    def command() -> None:
        raise error

    import click

    return type("module", (), {"command": click.command("demo")(command)})


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errors.BudgetExceeded("this run needs 2; 1 is left"), 3, "1 is left"),
        (errors.LedgerDamaged("entry 3 was changed"), 4, "entry 3"),
        (errors.LedgerBusy("held\nby another process"), 4, "held by another"),
        (errors.InputError("expected a table"), 2, "expected a table"),
        (errors.RelationError("relations mixed"), 2, "relations mixed"),
        (errors.PrivacyConditionError("q is too large"), 2, "q is too large"),
        (errors.MissingDependency("pip install 'sidelight[torch]'"), 1, "sidelight[torch]"),
        (errors.SidelightError("something"), 1, "something"),
        (PermissionError(13, "Permission denied", "x.csv"), 1, "x.csv: Permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(
    run: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: raising(error))
    outcome = run("demo")
    assert outcome.code == code and words in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_a_bug_does_not_quote_private_data(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: raising(ValueError("age of Ada is 36")))
    run("demo").is_one_line_error(1, "ValueError", "SIDELIGHT_DEBUG")
    assert "Ada" not in run("demo").err
    monkeypatch.setenv("SIDELIGHT_DEBUG", "1")
    assert "age of Ada is 36" in run("demo").err


@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_our_warnings_are_one_line_and_others_are_silent(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    import click

    def command() -> None:
        warnings.warn("delta is not below 1/n", errors.PrivacyWarning, stacklevel=1)
        warnings.warn("some library's business", RuntimeWarning, stacklevel=1)

    module = type("module", (), {"command": click.command("demo")(command)})
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)
    assert run("demo").err == "warning: delta is not below 1/n\n"


# Help is written by click, which flushes each line; tables by rich, which leaves that to the end.
PRINTING = [("--help",), ("account", "-q", "1", "-t", "1", "-d", "1e-5", "-s", "1")]


@pytest.mark.parametrize("args", PRINTING)
def test_a_closed_pipe_is_quiet(args: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "sidelight", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # before anything is written: the reader is gone
        assert process.stderr.read() == b""
        process.wait(60)
    assert process.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("args", PRINTING)
def test_a_full_disk_under_stdout_is_one_line(args: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "sidelight", *args]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.parametrize("args", [("--help",), ("-q", "1", "-t", "1", "-d", "1e-5", "-s", "1"), ("-q", "ε")])
def test_a_terminal_that_cannot_show_epsilon(args: tuple[str, ...]) -> None:
    done = python("-m", "sidelight", "account", *args, PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert done.returncode == (2 if "ε" in args else 0), done.stderr
    assert "?" in done.stdout + done.stderr and "internal error" not in done.stderr


def test_ctrl_c_ends_with_130() -> None:
    code = (
        # A shell starts background jobs with SIGINT ignored, and children inherit that; a terminal does not.
        "import signal, sys, time, types, click\nfrom sidelight import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def slow():\n    click.echo('started')\n    time.sleep(60)\n"
        "module = types.SimpleNamespace(command=click.command('demo')(slow))\n"
        "cli.importlib.import_module = lambda name: module\n"
        "sys.exit(cli.main(['demo']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"started\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        text = process.stderr.read().decode()
    assert process.returncode == 130
    assert "interrupted" in text and "Traceback" not in text


def test_fit_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """Of scikit-learn what an estimator is made of, and none of its models, unless public ones are fitted."""
    write_tables(tmp_path)
    code = (
        "import os, sys\nfrom sidelight.cli import main\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "command = 'fit private.csv --public public.csv --target sick --epsilon 1 --out m'\n"
        "assert main([*command.split(), '--method', 'precision_weighting']) == 0\n"
        "found = {m for m in sys.modules if m.startswith('sklearn.') and m.count('.') == 1}\n"
        "print('SKLEARN', len(found), *sorted(found))\n"
        "print('OTHERS', *(m for m in ('torch', 'matplotlib', 'opacus', 'IPython') if m in sys.modules))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    count = int(done.stdout.split("SKLEARN ")[1].split()[0])
    assert count <= 10 and "sklearn.linear_model" not in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "OTHERS"
