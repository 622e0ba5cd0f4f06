"""Which device the tests of this folder run on; `python -m tests.accelerator.device` finds one for make.

SIDELIGHT_DEVICE names it; without it, CUDA if there is one, else the processor. "pretend" is the processor
under another name, compiled from pretend.cpp: it refuses whatever mixes the processor's tensors with its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OTHERS = ("xpu", "mps", "mtia")  # accelerators of PyTorch that nobody has run these tests on
SOURCE = Path(__file__).with_name("pretend.cpp")


@functools.cache
def device() -> torch.device:
    name = os.environ.get("SIDELIGHT_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    return _pretend() if name == "pretend" else torch.device(name)


def _pretend() -> torch.device:
    """Compile the device (a minute or two, once per version of its source) and name it."""
    from torch.utils.cpp_extension import load

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for ninja
    built = Path(tempfile.gettempdir()) / f"sidelight-pretend-{torch.__version__}-{os.getuid()}"
    built.mkdir(exist_ok=True)
    load(name="pretend", sources=[str(SOURCE)], build_directory=str(built), extra_cflags=["-O0"])
    tools: Any = torch.utils
    tools.rename_privateuse1_backend("pretend")
    module = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0,
        _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None,
        get_rng_state=lambda device=0: torch.get_rng_state(),
        set_rng_state=lambda state, device=0: torch.set_rng_state(state),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    )  # fmt: skip
    torch._register_device_module("pretend", module)  # type: ignore[no-untyped-call]
    tools.generate_methods_for_privateuse1_backend()
    return torch.device("pretend")


def main() -> int:
    """Print the name of the device that there is; say so if there is none."""
    if torch.cuda.is_available():
        print("cuda")
        print(f"accelerator: {torch.cuda.get_device_name()}, PyTorch {torch.__version__}", file=sys.stderr)
        return 0
    for name in OTHERS:
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            print(f"{name} IS HERE, AND NOT SUPPORTED: only CUDA is tested.", file=sys.stderr)
            return 1
    print("NO ACCELERATOR HERE: PyTorch finds no CUDA device. Nothing is measured.", file=sys.stderr)
    if shutil.which("c++") is None:
        print("Without a C++ compiler there is no stand-in either: nothing is tested.", file=sys.stderr)
        return 1
    print("The tests run on a stand-in, the processor under another name.", file=sys.stderr)
    print("pretend")
    return 0


if __name__ == "__main__":
    sys.exit(main())
