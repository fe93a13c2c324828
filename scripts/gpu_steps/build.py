# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the machine has, and the build."""
import os
import re

from gpu_steps.check import PYTHON, ROOT, Failed, find_tool

TARGETS = ["gradwire", "gradwire-run", "device_check", "cuda_launch_test", "device_tests"]


def line_of(check, number, *command):
    """Line `number` of what a command prints, or why there is none."""
    try:
        return (check.run(*command).strip().splitlines() or [""])[number]
    except (Failed, OSError) as problem:
        return f"none ({str(problem).splitlines()[0]})"


def step_machine(check):
    """What the machine has."""
    return {"gpu": line_of(check, 0, "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
            "nvcc": line_of(check, -1, find_tool("nvcc"), "--version"),
            "torch": line_of(check, -1, PYTHON, "-c", "import torch; print(torch.__version__, 'with CUDA', torch.version.cuda, 'finds',"
                             " torch.cuda.device_count(), 'GPUs')"),
            "cmake": line_of(check, 0, "cmake", "--version"), "cores": os.cpu_count()}


def step_build(check):
    """Configures and builds the libraries, the launcher and what the other steps run."""
    torch = os.environ.get("GRADWIRE_TORCH_DIR") or check.run(
        PYTHON, "-c", "import os, torch; print(os.path.dirname(torch.__file__))").strip().splitlines()[-1]
    # AUTO: one part that is missing must not keep the others from being checked.
    said = check.run("cmake", "-G", "Ninja", "-S", ROOT, "-B", check.build, f"-DGRADWIRE_TORCH_DIR={torch}",
                     "-DGRADWIRE_PYTHON=ON", "-DGRADWIRE_TESTS=ON", "-DGRADWIRE_CUDA=AUTO", "-DGRADWIRE_CUDA_KERNELS=AUTO", *check.cmake)
    python = re.search(r"gradwire: Python package for (.*)", said)
    no_python = re.search(r"gradwire: (no Python package.*)", said)
    missing = re.findall(r"gradwire: (no (?:CUDA kernels|backend 'nccl').*)", said)
    targets = TARGETS + ([] if any("kernels" in reason for reason in missing) else ["codec_speed"])
    found = {"torch": torch, "targets": " ".join(targets), "CUDA": "; ".join(missing) or "the kernels and the backend nccl",
             **({"Python": python[1]} if python else {"without": no_python[1] if no_python else "no Python package"})}
    ninja = ["ninja", "-C", check.build, *([f"-j{check.jobs}"] if check.jobs else [])]
    for old in (check.build / "python" / "gradwire").glob("_C*.so"):  # of another Python, or of sources that no longer compile
        old.unlink()
    try:
        check.run(*ninja, *targets)
        if python:  # by itself, so that what it lacks keeps no other part from being built
            check.run(*ninja, "gradwire_python")
    except Failed as failed:
        failed.found = found
        raise
    if missing and check.gpu:
        raise Failed(f"all else is built, but there is {'; '.join(missing)}", found=found)
    return found
