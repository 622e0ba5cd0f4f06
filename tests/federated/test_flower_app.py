"""`flwr run` starts the app of experiments/federated_app: a SuperLink, Ray, and phones that are simulated."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make test-flower has an environment with it")
pytest.importorskip("ray", reason="Flower's simulation needs Ray")

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PHONES = 40


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A SuperLink of this test's own, ended with all that it started; the environment to reach it in."""
    ports, home = (free_port(), free_port()), tmp_path / "home"
    (home / "flwr").mkdir(parents=True)
    address = f'address = "127.0.0.1:{ports[0]}"\ninsecure = true'
    lines = f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{address}\n'
    (home / "flwr" / "config.toml").write_text(lines)
    env = {**os.environ, "FLWR_HOME": str(home / "flwr"), "HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    env |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT / "src")}
    command = [
        str(BIN / "flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
        "--host", "127.0.0.1", "--port", str(ports[0]), "--control-api-address", f"127.0.0.1:{ports[1]}",
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    log = (tmp_path / "superlink.log").open("w")
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(ports[0], process)
        yield env
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.close()


def wait_for(port: int, process: subprocess.Popen[Any]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the SuperLink has ended"
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the SuperLink does not answer")


def test_the_app_runs_learns_nothing_uncharged_and_says_what_it_spent(
    superlink: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    config = f"rounds=2 epsilon=4.0 public-share=0.1 cohort=0.5 out='{out}'"
    done = subprocess.run(
        [str(BIN / "flwr"), "run", str(ROOT / "experiments" / "federated_app"), "here", "--stream",
         "-c", config, "--federation-config", f"num-supernodes={PHONES}"],
        env=superlink, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert "accuracy of the released model" in said, said[-3000:]
    assert "secret-label" not in said and "num-examples" not in said
    card = json.loads((out / "privacy.json").read_text())
    statement = card["statement"]
    assert statement["unit"] == "client id" and statement["epsilon"] <= 4.0
    assert statement["details"]["private_records"] == 36 and statement["details"]["public_records"] == 4
    assert len(card["history"]) == 2
    with np.load(out / "model.npz") as model:
        assert model["weight"].shape == (196, 10) and np.isfinite(model["weight"]).all()
    page = (out / "report.html").read_text()
    assert "person" in page and "trusted" in page
    left = {path.name for path in Path(superlink["HOME"]).iterdir()}
    assert left <= {"flwr", ".cache"}, f"left in the home folder: {left}"
