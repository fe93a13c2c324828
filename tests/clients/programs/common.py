# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the programs beside this file share: a model and data out of random numbers, and the report of each rank.

    PROGRAM.py BACKEND FOLDER [--option value ...]     on each rank; writes FOLDER/RANK.json
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import time

import torch

STEPS = 30
BATCH = 32
FEATURES = 64
CLASSES = 10


def arguments(**options: object) -> argparse.Namespace:
    """The command line; `options`: further ones, with their defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("folder", type=pathlib.Path)
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def make_model() -> torch.nn.Module:
    """A classifier of 1.1 million parameters, the same on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
        torch.nn.Linear(1024, CLASSES),
    )


class Samples(torch.utils.data.Dataset):
    """Noisy pictures of ten random shapes: as many as two ranks take in STEPS steps."""

    def __init__(self, count: int = 2 * STEPS * BATCH) -> None:
        numbers = torch.Generator().manual_seed(2)
        shapes = torch.randn(CLASSES, FEATURES, generator=numbers)
        self.labels = torch.randint(CLASSES, (count,), generator=numbers)
        self.pictures = shapes[self.labels] + torch.randn(count, FEATURES, generator=numbers)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pictures[index], self.labels[index]


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What `rank` of two takes in a step, for programs that deal the samples themselves."""
    samples = Samples()
    first = (2 * step + rank) * BATCH
    return samples.pictures[first : first + BATCH], samples.labels[first : first + BATCH]


class Report:
    """The loss and the time of each step of one rank."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._before = time.perf_counter()

    def step(self, loss: torch.Tensor | float) -> None:
        """Call step() at the end of each step."""
        now = time.perf_counter()
        self.losses.append(float(loss))
        self.seconds.append(now - self._before)
        self._before = time.perf_counter()

    def write(self, **values: object) -> None:
        rank = os.environ["RANK"]
        record = {"losses": self.losses, "seconds": self.seconds, **values}
        (self.folder / f"{rank}.json").write_text(json.dumps(record))
