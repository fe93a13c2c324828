#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Checks gradwire on a machine with a GPU, and writes one report: REPORT/gpu_check.md and gpu_check.json.

    scripts/gpu_check.py [--report FOLDER] [--steps NAME,NAME] [--minutes N] [--jobs N] [--cmake=-DNAME=VALUE] [--without-gpu]

Runs in a checkout or in an unpacked bundle (scripts/bundle.sh), without a network. It needs CMake, Ninja, a C++ compiler, nvcc and a
torch 2.11 or newer with CUDA in .venv or for the Python that runs it (or GRADWIRE_TORCH_DIR). Each step has a time limit, a step that fails
does not stop the later ones, and a call ends within --minutes: what did not fit is named in the report. A later call with the same
--report goes on: the build keeps what is built, and steps that were ok are not run again unless --steps names them. The whole output of
a step is in REPORT/STEP.log.
"""
import argparse
import json
import subprocess
import sys
import time

from gpu_steps.build import step_build, step_machine
from gpu_steps.check import CALL_MINUTES, PYTHON, ROOT, Check, NotRun
from gpu_steps.kernels import step_bytes, step_sanitizer, step_speed, step_tests
from gpu_steps.python_package import step_elastic, step_graph, step_peers, step_python
from gpu_steps.report import write_report
from gpu_steps.training import step_four_ranks, step_hooks, step_nccl, step_staging

# Name, seconds at most, needs a GPU.
STEPS = [("machine", step_machine, 60, False), ("build", step_build, 570, False), ("bytes", step_bytes, 120, False),
         ("tests", step_tests, 300, False), ("speed", step_speed, 120, True), ("hooks", step_hooks, 300, False),
         ("nccl", step_nccl, 180, True), ("four_ranks", step_four_ranks, 180, False), ("staging", step_staging, 120, False),
         ("python", step_python, 180, False), ("elastic", step_elastic, 180, False), ("graph", step_graph, 60, True), ("peers", step_peers, 120, False),
         ("sanitizer", step_sanitizer, 420, True)]


def has_gpu():
    """Whether the driver's tool lists a GPU, or torch finds one."""
    for question in (["nvidia-smi", "-L"], [PYTHON, "-c", "import torch; print('GPU' if torch.cuda.is_available() else '')"]):
        try:
            answer = subprocess.run(question, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and "GPU" in answer.stdout:
            return True
    return False


def run_step(check, name, step, seconds):
    """The result of one step, for the report."""
    started = time.monotonic()
    check.begin(name, seconds)
    result = {"state": "ok", "gpu": check.gpu}
    try:
        result["found"] = step(check)
    except NotRun as reason:
        result["state"] = f"not run: {reason}"
    except Exception as problem:
        if getattr(problem, "found", None):
            result["found"] = problem.found
        result.update(state="FAILED", problem=f"{type(problem).__name__}: {problem}")
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def main():
    names = [name for name, *_ in STEPS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", default=ROOT / "build-gpu" / "report", help="the folder of the report")
    parser.add_argument("--build", default=ROOT / "build-gpu", help="the build folder")
    parser.add_argument("--steps", help=f"some of {','.join(names)}; without, all that are not ok in the report")
    parser.add_argument("--minutes", type=float, default=CALL_MINUTES, help="how long this call may take; the limits of steps grow with more")
    parser.add_argument("--jobs", type=int, help="how many compilations at a time; without, as many as Ninja likes")
    parser.add_argument("--cmake", action="append", default=[], help="an argument of the configuration: --cmake=-DNAME=VALUE; may be repeated")
    parser.add_argument("--without-gpu", action="store_true", help="what can be checked without a GPU, on the CPU")
    options = parser.parse_args()
    wanted = options.steps.split(",") if options.steps else names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(names)}")
    if not options.without_gpu and not has_gpu():
        sys.exit("gpu_check: neither nvidia-smi nor torch finds a GPU on this machine; --without-gpu builds and checks on the CPU what it can")
    check = Check(options)
    kept = check.report / "gpu_check.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    check.results = results
    for name, step, seconds, needs_gpu in STEPS:
        if name not in wanted:
            continue
        known = results.get(name, {})
        if not options.steps and name != "build" and known.get("state") == "ok" and known.get("gpu") == check.gpu:
            print(f"gpu_check: {name}: was ok in an earlier call", flush=True)
            continue
        if needs_gpu and not check.gpu:
            results[name] = {"state": "not run: it needs a GPU", "seconds": 0}
        else:
            results[name] = run_step(check, name, step, seconds)
        print(f"gpu_check: {name}: {results[name]['state']} ({results[name]['seconds']} s)", flush=True)
        write_report(check.report, results, {name: step for name, step, *_ in STEPS})
    print(f"gpu_check: the report is {check.report}/gpu_check.md")
    return 1 if any(results[name]["state"] == "FAILED" for name in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
