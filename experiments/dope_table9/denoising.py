"""The diffusion model behind `diffusion`: a UNet, its training on public images, and sampling from it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from experiments.dope_table9.pool import Bytes
from sidelight.errors import AssumptionError, InputError, MissingDependency
from sidelight.files import write_bytes

__all__ = ["Diffusion", "Told", "packages", "sample", "train"]

Told = Callable[..., None]

_TIMES = 1000  # of the forward process


@dataclass(frozen=True)
class Diffusion:
    """The model, its training and its sampling.

    Args:
        channels: of each level of the UNet; every level but the first halves the image.
        layers: residual blocks a level.
        attention: self-attention at the coarsest level.
        steps, batch_size, learning_rate: training by Adam on public images.
        decay: of the running mean of the weights, with which images are made.
        mirror: show half of the images mirrored.
        sampling_steps: of DDIM.
        save_every: training steps between checkpoints.
    """

    channels: tuple[int, ...] = (64, 128, 128)
    layers: int = 2
    attention: bool = True
    steps: int = 20_000
    batch_size: int = 128
    learning_rate: float = 2e-4
    decay: float = 0.999
    mirror: bool = True
    sampling_steps: int = 50
    save_every: int = 500

    def __post_init__(self) -> None:
        groups = [c for c in self.channels if c < 1 or c % min(8, c)]
        if not self.channels or groups:
            raise InputError(f"channels must be below 8 or multiples of 8, not {self.channels!r}")
        counts = (self.layers, self.batch_size, self.save_every)
        if min(counts) < 1 or self.steps < 0 or not 1 <= self.sampling_steps <= _TIMES:
            raise InputError(
                f"layers, batch_size and save_every are at least 1, sampling_steps in 1 … {_TIMES}"
            )
        if not (self.learning_rate > 0 and 0 <= self.decay < 1):
            raise InputError("learning_rate must be positive and decay in [0, 1)")


# ---------------------------------------------------------------------------------------------------
# training


def train(folder: Path, images: Tensor, labels: Tensor, how: Diffusion, seed: int, told: Any) -> nn.Module:
    """The UNet with the mean of its weights; from a checkpoint, if there is one."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, mean = (_unet(images, labels, how) for _ in range(2))
    mean.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=how.learning_rate)
    first = _restore(folder / "unet.safetensors", model, mean, optimizer)
    model.train()
    for step in range(first, how.steps):
        generator = _generator(seed, 0, step)
        loss = _loss(model, images, labels, how, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        _follow(mean, model, min(how.decay, (1 + step) / (10 + step)))
        if (step + 1) % how.save_every == 0 or step + 1 == how.steps:
            if not torch.isfinite(loss):
                raise AssumptionError("the diffusion model diverged; lower its learning_rate")
            _save(folder / "unet.safetensors", model, mean, optimizer, step + 1)
        told("training", step + 1, of=how.steps)
    return mean.eval()


def _loss(model: nn.Module, images: Tensor, labels: Tensor, how: Diffusion, generator: Any) -> Tensor:
    """Mean squared error of v = √ᾱ·noise − √(1−ᾱ)·image, at random times."""
    rows = torch.randint(0, len(images), (how.batch_size,), generator=generator)
    clean = images[rows]
    if how.mirror:
        turned = torch.rand(len(clean), generator=generator) < 0.5
        clean = torch.where(turned[:, None, None, None], clean.flip(3), clean)
    noise = torch.randn(clean.shape, generator=generator)
    times = torch.randint(0, _TIMES, (len(clean),), generator=generator)
    scheduler = _scheduler("DDPMScheduler")
    noisy, wanted = scheduler.add_noise(clean, noise, times), scheduler.get_velocity(clean, noise, times)
    return nn.functional.mse_loss(model(noisy, times, class_labels=labels[rows]).sample, wanted)


@torch.no_grad()
def _follow(mean: nn.Module, model: nn.Module, decay: float) -> None:
    for slow, fast in zip(mean.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)


def _save(path: Path, model: nn.Module, mean: nn.Module, optimizer: Any, step: int) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"mean.{name}": value for name, value in mean.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    tensors["step"] = torch.tensor(step)
    write_bytes(path, save(tensors))


def _restore(path: Path, model: nn.Module, mean: nn.Module, optimizer: Any) -> int:
    """How many steps were taken before."""
    if not path.exists():
        return 0
    try:
        tensors = load_file(path)
        for name, module in (("model.", model), ("mean.", mean)):
            module.load_state_dict(
                {k.removeprefix(name): v for k, v in tensors.items() if k.startswith(name)}
            )
        step = int(tensors["step"])
    except (OSError, SafetensorError, KeyError, RuntimeError):
        raise InputError(f"{path} cannot be read or is of another model; delete it and start again") from None
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


# ---------------------------------------------------------------------------------------------------
# sampling


@torch.no_grad()
def sample(
    model: nn.Module, how: Diffusion, labels: Tensor, shape: torch.Size, *, seed: int, number: int
) -> Bytes:
    """Images of these classes, as bytes; a function of the model, the seed and the block's number."""
    generator = _generator(seed, 1, number)
    scheduler = _scheduler("DDIMScheduler")
    scheduler.set_timesteps(how.sampling_steps)
    images = torch.randn((len(labels), *shape), generator=generator)
    for time in scheduler.timesteps:
        images = torch.cat(
            [
                scheduler.step(model(x, time, class_labels=y).sample, time, x).prev_sample
                for x, y in zip(torch.split(images, 64), torch.split(labels, 64), strict=True)
            ]
        )
    if not bool(images.isfinite().all()):
        raise AssumptionError("the diffusion model makes images that are not finite; train it longer")
    found: Bytes = ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).numpy()
    return found


# ---------------------------------------------------------------------------------------------------
# parts


def packages() -> Any:
    """diffusers, or one sentence."""
    try:
        import diffusers
    except ImportError as error:
        raise MissingDependency(
            f"generated images need diffusers, and {error.name} is not installed: "
            "pip install '.[experiments]'"
        ) from error
    return diffusers


def _generator(seed: int, purpose: int, number: int) -> torch.Generator:
    """Random numbers for a step of training or a block of images: nothing to store for a resumed call."""
    state = np.random.SeedSequence([seed, purpose, number]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


@functools.cache
def _scheduler(name: str) -> Any:
    return getattr(packages(), name)(
        num_train_timesteps=_TIMES, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction"
    )


def _unet(images: Tensor, labels: Tensor, how: Diffusion) -> nn.Module:
    levels = len(how.channels)
    coarse = "Attn" if how.attention else ""
    model: nn.Module = packages().UNet2DModel(
        sample_size=tuple(images.shape[2:]),
        in_channels=images.shape[1],
        out_channels=images.shape[1],
        block_out_channels=how.channels,
        layers_per_block=how.layers,
        down_block_types=("DownBlock2D",) * (levels - 1) + (f"{coarse}DownBlock2D",),
        up_block_types=(f"{coarse}UpBlock2D",) + ("UpBlock2D",) * (levels - 1),
        num_class_embeds=int(labels.max()) + 1,
        norm_num_groups=min(8, *how.channels),
        attention_head_dim=min(8, how.channels[-1]),
        add_attention=how.attention,
    )
    return model
