# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Training from C++ on a device, beside the same training on the CPU."""
import json
import math

from gpu_steps.check import Failed

TRAINING_STEPS = 8
STAGED_BYTES = 256 << 20
# A loss on the device may differ from the CPU's by this part of it: sums of the matrix products have another order. Random choices of
# `auto`, which follow times, are not compared.
LOSS_TOLERANCE = 0.02
NOT_COMPARED = {"auto"}


def losses_of(check, world, command, device, backend, hooks):
    """The lines of a command by hook. A hook that fails ends its ranks, so the hooks after it run in others."""
    found, left = {}, list(hooks)
    while left:
        lines, problem = check.ranks(world, command, "train", device, backend, TRAINING_STEPS, *left)
        found.update({line["hook"]: line for line in lines})
        left = left[len(lines):]
        if left:
            found[left[0]] = {"hook": left[0], "failed": problem or "it printed no losses"}
        elif problem:
            raise Failed(f"the ranks failed after the last hook: {problem}")
        left = left[1:]
    return found


def compare_losses(check, world, command, device, backend, hooks=()):
    """Each hook's losses on the device beside those on the CPU, over shm."""
    lines, problem = check.ranks(world, command, "train", "cpu", "shm", TRAINING_STEPS, *hooks)
    if problem or not lines:
        raise Failed(f"training on the CPU failed, so there is nothing to compare with: {problem}")
    expected = {line["hook"]: line for line in lines}
    measured = losses_of(check, world, command, device, backend, expected)
    rows, wrong = [], []
    for hook, on_cpu in expected.items():
        row, problem = compare_hook(hook, measured[hook], on_cpu)
        rows.append(row)
        if problem:
            wrong.append(problem)
    if wrong:
        raise Failed(f"losses differ from the CPU's by more than {LOSS_TOLERANCE:g}, or are missing: {'; '.join(wrong)}\n{json.dumps(rows)}")
    return {"world": world, "device": device, "backend": backend, "rows": rows}


def compare_hook(hook, line, on_cpu):
    """The row of one hook for the report, and what is wrong with it (empty: nothing)."""
    if "failed" in line:
        return {"hook": hook, "failed": line["failed"]}, f"{hook}: {line['failed']}"
    if "refused" in line or "refused" in on_cpu:
        alone = ("refused" in line) != ("refused" in on_cpu)
        return ({"hook": hook, "refused": line.get("refused") or on_cpu["refused"]}, f"{hook}: refused on one of the two alone" if alone else "")
    pairs = list(zip(line["losses"], on_cpu["losses"]))
    values = line["losses"] + on_cpu["losses"]
    if not pairs or 2 * len(pairs) != len(values) or not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        return {"hook": hook, "losses": line["losses"]}, f"{hook}: not finite, or not as many"
    off = max(abs(one - other) / max(abs(other), 1e-9) for one, other in pairs)
    row = {"hook": hook, "last loss": line["losses"][-1], "on the CPU": on_cpu["losses"][-1], "largest difference": off}
    return row, "" if hook in NOT_COMPARED or off <= LOSS_TOLERANCE else f"{hook}: {off:.3g}"


def step_hooks(check):
    """Two ranks that share the GPU train over shm with every hook."""
    return compare_losses(check, 2, check.device_check(), "cuda" if check.gpu else "cpu", "shm")


def step_four_ranks(check):
    """Four ranks that share the GPU train over shm."""
    return compare_losses(check, 4, check.device_check(), "cuda" if check.gpu else "cpu", "shm", ("allreduce", "int8", "top_k"))


def step_nccl(check):
    """One rank trains over NCCL."""
    return compare_losses(check, 1, check.device_check(), "cuda", "nccl")


def step_staging(check):
    """An all-reduce of two ranks through staging memory, as a share of what copies over PCIe take."""
    lines, problem = check.ranks(2, check.device_check(), "all_reduce", "cuda" if check.gpu else "cpu", "shm", STAGED_BYTES)
    if problem or not lines:
        raise Failed(problem or "device_check printed no times")
    line = lines[0]
    rate = {name: line["bytes"] / line[f"{name}_s"] / 1e9 for name in ("to_host", "to_device", "all_reduce")}
    copies = line["to_host_s"] + line["to_device_s"]
    share = "share of PCIe" if check.gpu else "share of copies in the host's memory"
    return {**{f"{name} GB/s": round(value, 2) for name, value in rate.items()}, share: round(copies / line["all_reduce_s"], 2)}
