#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A GPT of the nanoGPT kind: gradient accumulation, a cosine schedule with warm-up, weight decay for matrices only, clipping, and
a checkpoint that a later run resumes. Data-parallel through gradwire's DistributedDataParallel, with any of its hooks.

    gradwire-run -n 2 python examples/python/nanogpt.py --hook int4:memory=error_feedback
    gradwire-run -n 2 python examples/python/nanogpt.py --text input.txt --steps 2000 --checkpoint run.pt
"""
import argparse
import contextlib
import math
import os

import torch
from torch import nn
from torch.nn import functional as F

import gradwire
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel

RHYME = "".join(f"{n} buckets on the wire, {n} buckets of gradients; average one, pass it around; " for n in range(99, 0, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attention(self.norm1(x)).chunk(3, 2))
        x = x + self.projection(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.head.weight = self.tokens.weight  # one matrix in two places, as in GPT-2
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, text: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tokens(text) + self.places.weight[: text.shape[1]])
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="the file to learn; default: a counting rhyme")
    parser.add_argument("--checkpoint", help="resume from this file where it exists, and write it at the end")
    parser.add_argument("--hook", default="", help="compress gradients: fp16, int4:memory=error_feedback, power_sgd:rank=4, ...")
    for name, default in (("steps", 60), ("accumulate", 2), ("batch", 8), ("context", 64), ("layers", 2), ("width", 64), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def learning_rate(step: int, steps: int, peak: float = 3e-3, warm_up: int = 10) -> float:
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / max(1, steps - warm_up)))))


def main() -> None:
    options = read_options()
    dist.init_process_group()
    rank = dist.get_rank()
    text = RHYME
    if options.text:
        with open(options.text, encoding="utf-8") as file:
            text = file.read()
    characters = sorted(set(text))
    data = torch.tensor([characters.index(c) for c in text])

    torch.manual_seed(1)
    model = GPT(len(characters), options.context, options.layers, options.width, options.heads)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95))
    first = 0
    if options.checkpoint and os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    ddp = DistributedDataParallel(model)
    if options.hook:
        ddp.register_comm_hook(*gradwire.hooks.make(options.hook))

    for step in range(first, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps)
        numbers = torch.Generator().manual_seed(1000 * step + rank)  # every rank draws other places of the text
        optimizer.zero_grad()
        for part in range(options.accumulate):
            places = torch.randint(len(data) - options.context, (options.batch, 1), generator=numbers)
            rows = data[places + torch.arange(options.context + 1)]
            # Only the last part communicates: the average of the sums is the sum of the averages.
            with contextlib.nullcontext() if part == options.accumulate - 1 else ddp.no_sync():
                loss = ddp(rows[:, :-1], rows[:, 1:]) / options.accumulate
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the averages, so all ranks clip alike
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:4}  loss {loss.item() * options.accumulate:.4f}", flush=True)

    if rank == 0 and options.checkpoint:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": options.steps + 1}, options.checkpoint)
    norm = nn.utils.parameters_to_vector(model.parameters()).detach().double().norm().item()
    print(f"rank {rank} ends with parameters of norm {norm!r}", flush=True)
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
