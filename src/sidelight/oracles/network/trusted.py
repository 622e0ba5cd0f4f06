"""Whose code is trusted to keep nothing of what it is given, and which objects lead out of the process."""

from __future__ import annotations

import enum
import pathlib
import sys
import types
from typing import Any

from torch import nn

__all__ = ["KEPT_NOWHERE", "is_file", "is_handle", "is_library", "module_of"]

KEPT_NOWHERE = (  # what cannot be searched
    "model, loss, augment, collate and dataset keep nothing of a record in files, other processes or C code, "
    "and only read their data (arrays of more than 4 MB, containers of more than 1000 records)"
)

_LIBRARIES = sys.stdlib_module_names | frozenset((
    "torch", "numpy", "sidelight", "torchvision", "torchaudio", "transformers", "timm", "peft", "accelerate",
    "safetensors", "tokenizers", "datasets", "huggingface_hub", "sentencepiece", "scipy", "sklearn", "pandas",
    "pyarrow", "polars", "numba", "joblib", "einops", "opacus", "torchmetrics", "lightning",
    "pytorch_lightning", "albumentations", "kornia", "monai", "cv2", "skimage", "matplotlib", "omegaconf",
    "hydra", "pydantic", "attr", "attrs", "yaml", "packaging", "typing_extensions", "triton", "sympy",
    "networkx", "functorch", "pytest", "_pytest", "pluggy", "hypothesis", "xarray", "nltk", "spacy",
))  # fmt: skip
# Files, processes, threads, displays and logs: objects of these are not looked into.
_HANDLES = frozenset((
    "logging", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "socket", "subprocess",
    "zipfile", "tarfile", "gzip", "bz2", "lzma", "sqlite3", "mmap", "tempfile", "h5py", "zarr", "lmdb",
    "netCDF4", "fsspec", "PIL", "decord", "av", "tqdm", "tensorboard", "wandb", "mlflow", "inspect", "re",
    "_pytest", "pytest", "pluggy", "hypothesis",
))  # fmt: skip
# Of these, the ones that hold records, and take long to open.
_FILES = frozenset(("zipfile", "tarfile", "sqlite3", "h5py", "zarr", "lmdb", "netCDF4"))
_OWN = ("sidelight.augment", "sidelight.oracles.network.spectral")


def module_of(one: Any) -> str:
    """The module that a function or a class was written in; a wrapper bears the name of what it wraps."""
    if isinstance(one, types.FunctionType):
        return str(one.__globals__.get("__name__") or "")
    return str(getattr(one, "__module__", None) or "builtins")


def is_library(module: str) -> bool:
    """Whether a module, by its name, is one of a known library."""
    return module.split(".")[0] in _LIBRARIES


def is_handle(one: Any) -> bool:
    """Whether an object stands for something outside, belongs to a run of sidelight, or cannot change."""
    if isinstance(one, type | types.FunctionType | nn.Module):
        return False
    kind = type(one)
    module = str(kind.__module__)
    if module.startswith("sidelight."):  # a run's accounts and noise must never be put back
        return not module.startswith(_OWN)
    if isinstance(one, pathlib.PurePath | enum.Enum):
        return isinstance(one, pathlib.PurePath) or is_library(module)
    return module.split(".")[0] in _HANDLES and kind.__name__ != "_local"


def is_file(one: Any) -> bool:
    """Whether an object is an open file of records."""
    return str(type(one).__module__).split(".")[0] in _FILES
