"""The reference numbers of tests/vectors.json, by id."""

import json
from pathlib import Path
from typing import Any

VECTORS: dict[str, dict[str, Any]] = {
    v["id"]: v for v in json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["vectors"]
}


def vector(name: str) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Inputs, outputs and relative tolerance."""
    v = VECTORS[name]
    return v["inputs"], v["outputs"], v["rtol"]
