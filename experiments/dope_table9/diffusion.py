"""A small diffusion model of the public images, and the pool that it fills (DOPE-SGD's augmentation).

A class-conditional UNet learns to take noise off public images (DDPM, Ho et al. 2020; cosine schedule of
Nichol and Dhariwal 2021, v-prediction of Salimans and Ho 2022); DDIM then makes images in a few dozen steps.
The paper (Nasr et al., ICML 2023, section 4.1) fills a pool of 40,000 images from 2,000 and draws public
batches from it.

Guarantee: none, and none is needed, as long as the images are public. A generator trained on private images
tells about them, and nothing here would charge for it.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.dope_table9.denoising import Diffusion, Told, packages, sample, train
from experiments.dope_table9.pool import Bytes, Pool, fill
from sidelight.errors import InputError

__all__ = ["Diffusion", "Pool", "generate_pool"]


def generate_pool(
    folder: str | os.PathLike[str],
    images: Tensor,
    labels: Tensor,
    *,
    count: int,
    seed: int,
    settings: Diffusion | None = None,
    block: int = 500,
    told: Told = lambda what, done, of: None,
) -> Pool:
    """Train on public images and fill `folder` with `count` generated ones, class by class in turn.

    What is there already is kept: a call that was interrupted goes on, to the same images, and a larger
    `count` adds to them. The folder belongs to these images, settings and seed.

    Args:
        images: public, (rows, channels, height, width); bytes, or numbers in [0, 1].
        labels: their classes, as numbers from 0.
        block: images that are made, and written, at a time.
        told: hears about progress: told("training" or "images", how many, of=how many).
    """
    packages()
    how = Diffusion() if settings is None else settings
    if min(count, block) < 1 or seed < 0:
        raise InputError(f"count and block are at least 1, and seed at least 0; not {count}, {block}, {seed}")
    clean, known = _checked(images, labels, how)
    classes = torch.unique(known)
    about = {
        "shape": list(images.shape[1:]),
        "bytes": not images.is_floating_point(),
        "settings": {**asdict(how), "channels": list(how.channels)},
        "seed": int(seed),
        "made from": _fingerprint(clean, known),
    }
    path = Path(folder)
    trained: list[nn.Module] = []

    def make(number: int, wanted: Any) -> Bytes:
        if not trained:
            trained.append(train(path, clean, known, how, seed, told))
        return sample(trained[0], how, torch.from_numpy(wanted), clean.shape[1:], seed=seed, number=number)

    wanted = classes[torch.arange(-(-count // block) * block) % len(classes)].numpy()
    done = functools.partial(told, "images", of=count)
    return fill(path, wanted, make, count=count, about=about, block=block, done=done)


def _checked(images: Any, labels: Any, how: Diffusion) -> tuple[Tensor, Tensor]:
    """Images in [−1, 1], and classes."""
    if not isinstance(images, Tensor) or images.dim() != 4 or not len(images):
        raise InputError("images must be a tensor of (rows, channels, height, width), with at least one row")
    if not isinstance(labels, Tensor) or labels.shape != images.shape[:1] or labels.is_floating_point():
        raise InputError("labels must be one class number per image")
    if int(labels.min()) < 0:
        raise InputError("class numbers start at 0; one is negative")
    fold = 2 ** (len(how.channels) - 1)
    if images.shape[2] % fold or images.shape[3] % fold:
        sides = f"{images.shape[2]} × {images.shape[3]}"
        raise InputError(f"{len(how.channels)} levels need sides that are multiples of {fold}, not {sides}")
    images = images.detach().cpu()
    if images.is_floating_point():
        if not bool(((images >= 0) & (images <= 1)).all()):
            raise InputError("images must be bytes, or numbers in [0, 1]")
        return images.float() * 2 - 1, labels.detach().cpu().long()
    if images.dtype != torch.uint8:
        raise InputError(f"images must be bytes (uint8), or numbers in [0, 1], not {images.dtype}")
    return images.float() / 127.5 - 1, labels.detach().cpu().long()


def _fingerprint(images: Tensor, labels: Tensor) -> str:
    found = hashlib.sha256(np.ascontiguousarray(images.numpy()).tobytes())
    found.update(labels.numpy().tobytes())
    return found.hexdigest()
