# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Training from Python on a device, beside the same training on the CPU and beside PyTorch."""
import json
import tempfile

from gpu_steps.check import ROOT, Failed
from gpu_steps.training import TRAINING_STEPS, compare_hook, compare_losses

ELASTIC_CHECK = ROOT / "tests" / "devices" / "elastic_check.py"


def places_of(check):
    """(ranks, device, backend) for the Python package: what one GPU can carry."""
    return [(2, "cuda", "shm"), (1, "cuda", "nccl")] if check.gpu else [(2, "cpu", "shm")]


def step_python(check):
    """The Python package: collectives, and training with its DDP, its hooks and PyTorch's DDP; losses beside the CPU's."""
    command = check.python_check()
    rows, checked, problems = [], {}, []
    for world, device, backend in places_of(check):
        name = f"{world} over {backend}"
        lines, problem = check.ranks(world, command, "collectives", device, backend)
        checked[f"collectives of {name}"] = ", ".join(lines[0]["checked"]) if lines else "none"
        if problem or not lines:
            problems.append(f"collectives of {name}: {problem or 'nothing was printed'}")
        try:
            rows += [{"ranks": name, **row} for row in compare_losses(check, world, command, device, backend)["rows"]]
        except Failed as failed:
            problems.append(f"training of {name}: {failed}")
    if problems:
        raise Failed("\n".join(problems))
    return {**checked, "rows": rows}


def elastic_line(check, device, way):
    """The line of an elastic job on a device, of whose ranks one is killed and replaced. A rank alone is not followed."""
    ranks = 3 if way == "follow" else 2
    with tempfile.TemporaryDirectory() as folder:
        lines, problem = check.ranks(ranks, check.python_program(ELASTIC_CHECK), device, folder, ranks, way, options=("--elastic", f"1:{ranks}"))
    return lines[0] if lines and not problem else {"hook": way, "failed": problem or "nothing was printed"}


def step_elastic(check):
    """Elastic jobs from Python whose models are on the device: a rank is killed and replaced; losses beside the CPU's."""
    rows, problems = [], []
    for way in ("plain", "int8", "zero", "diloco", "copies", "follow"):
        on_cpu = elastic_line(check, "cpu", way)
        measured = elastic_line(check, "cuda", way) if check.gpu and "failed" not in on_cpu else on_cpu
        row, problem = compare_hook(way, measured, on_cpu)
        rows.append(row)
        if problem:
            problems.append(problem)
    if problems:
        raise Failed("\n".join(problems) + f"\n{json.dumps(rows)}")
    return {"rows": rows}


def step_graph(check):
    """Steps of DDP from Python that a CUDA graph repeats, over NCCL; their losses beside those of ordinary steps."""
    lines, problem = check.ranks(1, check.python_check(), "graph", "cuda", "nccl", TRAINING_STEPS)
    if problem or not lines:
        raise Failed(problem or "nothing was printed")
    return {"losses": ", ".join(f"{loss:.6g}" for loss in lines[0]["losses"])}


def step_peers(check):
    """A step of gradwire's DDP from Python beside PyTorch's over Gloo and NCCL, in turn in one run; and a local step."""
    command = check.python_check()
    rows = []
    for world, device, backend in places_of(check):
        lines, problem = check.ranks(world, command, "speed", device, backend, "nccl" if backend == "nccl" else "gloo")
        if problem or not lines:
            raise Failed(f"{world} ranks over {backend}: {problem or 'nothing was printed'}")
        rows += lines
    return {"rows": rows}
