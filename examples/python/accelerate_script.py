#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A training loop of Hugging Face's Accelerate on several processes, with or without compressed gradients.

    torchrun --nproc-per-node 2 accelerate_script.py --hook int8

(with PYTHONPATH=build/python, unless gradwire is installed). Two lines are gradwire's: start() and use_hook().
"""
import argparse

import torch
from accelerate import Accelerator
from torch import nn

from gradwire.integrations.accelerate import start, use_hook


class Waves(torch.utils.data.Dataset):
    """Noisy sine waves and their frequencies: data that needs no download."""

    def __init__(self, count: int, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        self.frequencies = 1 + 7 * torch.rand(count, 1, generator=numbers)
        phase = 6.2832 * torch.rand(count, 1, generator=numbers)
        wave = torch.sin(self.frequencies * torch.linspace(0, 6.2832, 64) + phase)
        self.waves = wave + 0.1 * torch.randn(count, 64, generator=numbers)

    def __len__(self) -> int:
        return len(self.waves)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.waves[index], self.frequencies[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hook", default="", help="a hook of gradwire with options; plain averaging without")
    arguments = parser.parse_args()

    start()  # Accelerate takes the group that it finds
    accelerator = Accelerator(cpu=True)
    if arguments.hook:
        use_hook(accelerator, arguments.hook)

    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 16, 9), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 9), nn.ReLU(),
        nn.Flatten(), nn.Linear(640, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(Waves(4096, seed=1), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(arguments.epochs):
        for waves, frequencies in loader:
            loss = nn.functional.mse_loss(model(waves), frequencies)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        mean = accelerator.reduce(loss.detach(), "mean").item()
        accelerator.print(f"epoch {epoch:2}: loss {mean:.4f}")

    test = Waves(1024, seed=2)
    with torch.no_grad():
        error = (model.module(test.waves) - test.frequencies).abs().mean().item()
    accelerator.print(f"frequencies of 1 to 8 are found to {error:.3f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
