#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Trains the same small model with a hook of gradwire (replay_hook) and with PyTorch's hook of that name over Gloo, from the
same weights on the same data, and compares the parameters. The cases are in cases.py.

  compare_hooks.py REPLAY_HOOK [--world N] [--hook NAME]
"""
import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
import torch._dynamo  # each DistributedDataParallel imports it: here once for all ranks
import torch.distributed as dist
import torch.multiprocessing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cases  # noqa: E402
import references  # noqa: E402


class Chain(torch.nn.Module):
    def __init__(self, case):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(a, b, bias=case.bias) for a, b in zip(case.widths, case.widths[1:]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(torch.tanh(x) if i else x)
        return x


@dataclasses.dataclass
class Problem:
    """Weights, and [step][rank] -> (inputs, targets)."""
    weights: list
    batches: list

    @staticmethod
    def make(case, world):
        generator = torch.Generator().manual_seed(len(case.widths) + world)
        weights = [(torch.rand(p.shape, generator=generator) - 0.5) * 0.6 for p in Chain(case).parameters()]
        def random(rows, columns):
            return torch.rand((rows, columns), generator=generator) * 2 - 1
        first, last = case.widths[0], case.widths[-1]
        if case.decay is None:
            def batch():
                return random(case.batch, first), random(case.batch, last)
        else:
            teacher = random(first, last)
            def batch():
                inputs = random(case.batch, first) * case.decay ** torch.arange(first)
                return inputs, torch.tanh(inputs @ teacher)
        return Problem(weights, [[batch() for _ in range(world)] for _ in range(cases.STEPS)])

    def write(self, path):
        tensors = list(self.weights) + [tensor for step in self.batches for pair in step for tensor in pair]
        path.write_bytes(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors))


def flat(parameters):
    return torch.cat([p.detach().reshape(-1) for p in parameters])


def train_with_pytorch(case, world, rank, reference):
    problem = Problem.make(case, world)
    model = Chain(case)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), problem.weights):
            parameter.copy_(weight)
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=case.cap)
    state, hook = getattr(references, reference)(case)
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=case.rate)
    for step in problem.batches:
        inputs, targets = step[rank]
        optimizer.zero_grad()
        (ddp(inputs) - targets).pow(2).mean().backward()
        optimizer.step()
    return flat(model.parameters())


def pytorch_rank(rank, world, chosen, folder):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=dist.FileStore(f"{folder}/store{world}", world))
    plain = {}  # by what of a case plain averaging depends on
    for number, case in chosen:
        results = [train_with_pytorch(case, world, rank, case.reference)]
        if case.lossy:
            same = (case.widths, case.bias, case.batch, case.cap, case.rate, case.decay)
            if same not in plain:
                plain[same] = train_with_pytorch(case, world, rank, "allreduce")
            results.append(plain[same])
        torch.save(results, f"{folder}/{number}.{world}.{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # Not through Python's end, which threads of Gloo that still drop a Python callback would not survive.
    os._exit(0)


def train_with_gradwire(program, chosen, world, folder):
    """For each case the parameters of each rank, or the text that says what failed."""
    lines = []
    for number, case in chosen:
        problem, result = folder / f"problem{number}", folder / f"result{number}"
        Problem.make(case, world).write(problem)
        words = ["--hook", case.hook, "--world", world, "--steps", cases.STEPS, "--batch", case.batch,
                 "--widths", ",".join(map(str, case.widths)), "--cap", case.cap, "--lanes", case.lanes,
                 "--rate", case.rate, "--problem", problem, "--result", result] + (["--bias"] if case.bias else [])
        lines.append(" ".join(map(str, words)) + "\n")
    done = subprocess.run([program], input="".join(lines), capture_output=True, text=True, timeout=300, check=False)
    answers = done.stdout.splitlines()
    missing = f"replay_hook ended with {done.returncode}: {done.stderr.strip()}"
    results = []
    for at, (number, _) in enumerate(chosen):
        answer = answers[at] if at < len(answers) else missing
        if answer == "ok":
            values = torch.frombuffer(bytearray((folder / f"result{number}").read_bytes()), dtype=torch.float32)
            results.append(values.view(world, -1))
        else:
            results.append(answer)
    return results


def compare(case, ours, theirs):
    """None, or what is wrong."""
    if ours.shape != theirs.shape:
        return f"has {tuple(ours.shape)} parameters, PyTorch {tuple(theirs.shape)}"
    if not torch.isfinite(theirs).all():
        return "the reference has numbers that are not finite: the case proves nothing"
    if case.agree and not all(torch.equal(ours[0], rank) for rank in ours):
        return "ranks hold different bits"
    error = ((ours - theirs).abs() / (1 + theirs.abs())).max().item()
    if not error <= case.tolerance:
        return f"is off by {error:.3g}, more than {case.tolerance:.3g}"
    return None


def vacuous(case, world, theirs, plain):
    """None, or why the reference's parameters would not show a difference."""
    start = flat(Problem.make(case, world).weights)
    if (theirs[0] - start).abs().max() < 10 * case.tolerance:
        return "moved its parameters by less than ten times the tolerance: the case proves nothing"
    if plain is not None and (theirs[0] - plain).abs().max() < 3 * case.tolerance:
        return f"ends within {(theirs[0] - plain).abs().max():.2g} of plain averaging: the case proves nothing"
    return None


def check_unknown(program, folder):
    """A hook that does not exist must fail, and say so: else the table could pass without running."""
    unknown = dataclasses.replace(cases.CASES[0], hook="no_such_hook")
    [answer] = train_with_gradwire(program, [(0, unknown)], 1, folder)
    if not isinstance(answer, str):
        return "is accepted"
    return None if "no_such_hook" in answer else f"fails without naming it: {answer}"


def run_world(program, world, chosen, folder):
    # As copies of this process, which has imported torch and has no threads yet.
    torch.multiprocessing.start_processes(pytorch_rank, args=(world, chosen, str(folder)), nprocs=world, start_method="fork")
    failures = 0
    for (number, case), ours in zip(chosen, train_with_gradwire(program, chosen, world, folder)):
        results = [torch.load(folder / f"{number}.{world}.{rank}.pt") for rank in range(world)]
        theirs = torch.stack([result[0] for result in results])
        label = f"{case.hook}, {world} ranks, widths {case.widths}, cap {case.cap} MiB, {case.lanes} lanes"
        wrong = ours if isinstance(ours, str) else compare(case, ours, theirs)
        wrong = wrong or vacuous(case, world, theirs, results[0][1] if case.lossy else None)
        failures += wrong is not None
        error = f" (off by {((ours - theirs).abs() / (1 + theirs.abs())).max().item():.2g})" if wrong is None else ""
        print(f"{'FAILED' if wrong else 'ok'}: {label}{': ' + wrong if wrong else error}", flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replay_hook", type=pathlib.Path, help="the program that runs gradwire's half")
    parser.add_argument("--world", type=int, action="append", help="only this number of ranks")
    parser.add_argument("--hook", help="only cases of this hook")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ran = failures = 0
    with tempfile.TemporaryDirectory(prefix="gradwire-parity-") as name:
        folder = pathlib.Path(name)
        wrong = check_unknown(options.replay_hook, folder)
        if wrong is not None:
            sys.exit(f"compare_hooks: a hook that does not exist {wrong}")
        for world in options.world or cases.WORLDS:
            chosen = [(number, case) for number, case in enumerate(cases.CASES)
                      if world in case.worlds and options.hook in (None, case.hook.partition(":")[0])]
            if chosen:
                failures += run_world(options.replay_hook, world, chosen, folder)
                ran += len(chosen)
    print(f"{ran} comparisons, {failures} failed")
    if ran == 0:
        sys.exit("compare_hooks: nothing to compare")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
