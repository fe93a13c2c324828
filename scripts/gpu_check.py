#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Checks gradwire on a machine with a GPU, and writes one report: REPORT/gpu_check.md and gpu_check.json.

    scripts/gpu_check.py [--report FOLDER] [--steps NAME,NAME] [--without-gpu]

Runs in a checkout or in an unpacked bundle (scripts/bundle.sh), without a network. It needs CMake, Ninja, a C++ compiler, nvcc and a
torch 2.11 or newer with CUDA in .venv or for the Python that runs it (or GRADWIRE_TORCH_DIR). Each step has a time limit, a step that fails
does not stop the later ones, and a call ends within --minutes: what did not fit is named in the report, and a later call with the same
--report goes on (the build keeps what is built) and adds its results to those that are there.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The Python whose torch is used.
PYTHON = next((str(path) for path in [ROOT / ".venv" / "bin" / "python"] if path.exists()), sys.executable)
TARGETS = ["gradwire", "gradwire-run", "device_check", "cuda_launch_test"]
STAGED_BYTES = 256 << 20
# A loss on the device may differ from the CPU's by this part of it: sums of the matrix products have another order. Random choices of
# `auto`, which follow times, are not compared.
LOSS_TOLERANCE = 0.02
NOT_COMPARED = {"auto"}


class Failed(Exception):
    """A step that went wrong; the text says how."""


class Check:
    """The places of one call, and how its steps run programs."""

    def __init__(self, options):
        self.gpu = not options.without_gpu
        self.build = pathlib.Path(options.build).resolve()
        self.report = pathlib.Path(options.report).resolve()
        self.deadline = time.monotonic() + 60 * options.minutes
        self.limit = 0.0  # of the step that runs

    def run(self, *command, env=None):
        """The standard output of a command, which ends within the limit of the step, with every process that it started."""
        left = min(self.limit, self.deadline) - time.monotonic()
        if left < 1:
            raise Failed("no time was left")
        process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env={**os.environ, **(env or {})}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise Failed(f"{command[0]} did not end within {left:.0f} s\n{output[-2000:]}") from None
        if process.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))} ended with {process.returncode}\n{output[-3000:]}")
        return output

    def program(self, name):
        path = self.build / "bin" / "tests" / name
        if not path.exists():
            raise Failed(f"{path} is not built; run the step build")
        return path

    def ranks(self, count, *arguments):
        """The lines of JSON that device_check prints on `count` ranks."""
        output = self.run(self.build / "bin" / "gradwire-run", "-n", count, self.program("device_check"), *arguments)
        return [json.loads(line[line.index("{"):]) for line in output.splitlines() if '"world"' in line]


def line_of(check, number, *command):
    """Line `number` of what a command prints, or why there is none."""
    try:
        return (check.run(*command).strip().splitlines() or [""])[number]
    except (Failed, OSError) as problem:
        return f"none ({str(problem).splitlines()[0]})"


def step_machine(check):
    """What the machine has."""
    return {"gpu": line_of(check, 0, "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
            "nvcc": line_of(check, -1, "nvcc", "--version"),
            "torch": line_of(check, -1, PYTHON, "-c", "import torch; print(torch.__version__, torch.version.cuda)"),
            "cmake": line_of(check, 0, "cmake", "--version"), "cores": os.cpu_count()}


def step_build(check):
    """Configures and builds the libraries, the launcher and what the other steps run."""
    torch = os.environ.get("GRADWIRE_TORCH_DIR") or check.run(
        PYTHON, "-c", "import os, torch; print(os.path.dirname(torch.__file__))").strip().splitlines()[-1]
    # Also where the folder is configured: a folder of a call without a GPU has no kernels.
    check.run("cmake", "-G", "Ninja", "-S", ROOT, "-B", check.build, f"-DGRADWIRE_TORCH_DIR={torch}", "-DGRADWIRE_PYTHON=OFF",
              f"-DGRADWIRE_CUDA={'AUTO' if check.gpu else 'OFF'}", f"-DGRADWIRE_CUDA_KERNELS={'ON' if check.gpu else 'AUTO'}")
    check.run("ninja", "-C", check.build, *TARGETS, *(["codec_speed"] if check.gpu else []))
    return {"torch": torch, "targets": TARGETS}


def require_tests(output):
    """Throws unless tests ran, and none was skipped."""
    if "[  SKIPPED ]" in output or re.search(r"\b0 tests", output):
        raise Failed("the kernels are not built, or found no GPU that they run on\n" + output[-1000:])


def step_bytes(check):
    """The bytes of the codecs' kernels beside those of the CPU; without a GPU, of the same arithmetic on the host."""
    place = "cuda" if check.gpu else "host"
    output = check.run(check.program("cuda_launch_test"), f"--gtest_filter=*/{place}", "--gtest_brief=1")
    require_tests(output)
    return {"place": place, "tests": output.strip().splitlines()[-1]}


def step_sanitizer(check):
    """compute-sanitizer over the kernels' test: accesses beyond memory, then uninitialized memory."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not pathlib.Path(tool).exists():
        raise Failed("there is no compute-sanitizer")
    found = {}
    for kind in ("memcheck", "initcheck"):
        output = check.run(tool, "--tool", kind, "--error-exitcode", "9", check.program("cuda_launch_test"), "--gtest_filter=*/cuda",
                           "--gtest_brief=1")
        require_tests(output)
        found[kind] = next((line for line in output.splitlines() if "ERROR SUMMARY" in line), output[-300:])
    return found


def step_speed(check):
    """The times of the kernels as multiples of a copy of the values on the device."""
    rows = []
    for line in check.run(check.program("codec_speed")).splitlines():
        measured = json.loads(line)
        copy = measured["copy_s"]
        rows.append({"codec": measured["codec"], "copy GB/s": round(8 * measured["values"] / copy / 1e9),
                     **{f"{name} / copy": round(measured[f"{name}_s"] / copy, 2) for name in ("encode", "decode", "add")}})
    return {"rows": rows}


def compare_losses(check, world, device, backend, hooks=()):
    """Each hook's losses on the device beside those on the CPU, over shm."""
    measured = check.ranks(world, "train", device, backend, 8, *hooks)
    expected = {line["hook"]: line for line in check.ranks(world, "train", "cpu", "shm", 8, *hooks)}
    rows, wrong = [], []
    for line in measured:
        hook = line["hook"]
        if ("refused" in line) != ("refused" in expected.get(hook, {})):
            wrong.append(f"{hook}: refused on one of the two alone")
        if "refused" in line or "refused" in expected.get(hook, {}):
            rows.append({"hook": hook, "refused": line.get("refused") or expected[hook]["refused"]})
            continue
        pairs = list(zip(line["losses"], expected[hook]["losses"]))
        if any(one is None or other is None for one, other in pairs):  # JSON has neither NaN nor infinity
            rows.append({"hook": hook, "losses": line["losses"]})
            wrong.append(f"{hook}: not finite")
            continue
        off = max(abs(one - other) / max(abs(other), 1e-9) for one, other in pairs)
        rows.append({"hook": hook, "last loss": line["losses"][-1], "on the CPU": expected[hook]["losses"][-1], "largest difference": off})
        if hook not in NOT_COMPARED and not off <= LOSS_TOLERANCE:
            wrong.append(f"{hook}: {off:.3g}")
    if wrong or len(rows) != len(expected):
        raise Failed(f"losses differ from the CPU's by more than {LOSS_TOLERANCE:g}, or are missing: {', '.join(wrong)}\n{json.dumps(rows)}")
    return {"world": world, "device": device, "backend": backend, "rows": rows}


def step_hooks(check):
    """Two ranks that share the GPU train over shm with every hook."""
    return compare_losses(check, 2, "cuda" if check.gpu else "cpu", "shm")


def step_four_ranks(check):
    """Four ranks that share the GPU train over shm."""
    return compare_losses(check, 4, "cuda" if check.gpu else "cpu", "shm", ("allreduce", "int8", "top_k"))


def step_nccl(check):
    """One rank trains over NCCL."""
    return compare_losses(check, 1, "cuda", "nccl")


def step_staging(check):
    """An all-reduce of two ranks through staging memory, as a share of what copies over PCIe take."""
    line = check.ranks(2, "all_reduce", "cuda" if check.gpu else "cpu", "shm", STAGED_BYTES)[0]
    rate = {name: line["bytes"] / line[f"{name}_s"] / 1e9 for name in ("to_host", "to_device", "all_reduce")}
    copies = line["to_host_s"] + line["to_device_s"]
    share = "share of PCIe" if check.gpu else "share of copies in the host's memory"
    return {**{f"{name} GB/s": round(value, 2) for name, value in rate.items()}, share: round(copies / line["all_reduce_s"], 2)}


# Name, seconds at most, needs a GPU.
STEPS = [("machine", step_machine, 60, False), ("build", step_build, 570, False), ("bytes", step_bytes, 120, False),
         ("speed", step_speed, 120, True), ("sanitizer", step_sanitizer, 300, True), ("hooks", step_hooks, 300, False),
         ("nccl", step_nccl, 180, True), ("four_ranks", step_four_ranks, 180, False), ("staging", step_staging, 120, False)]


def has_gpu():
    """Whether torch finds a GPU."""
    question = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([PYTHON, "-c", question], capture_output=True, check=False).returncode == 0


def table(rows):
    """Rows of a step as a table of Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = lambda value: f"{value:.6g}" if isinstance(value, float) else str(value)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(text(row.get(name, "")) for name in names) + " |" for row in rows]


def write_report(folder, results):
    """Writes both files from the results of all calls."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_check.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = ["# gpu_check", ""]
    for name, step, _, _ in STEPS:
        if name not in results:
            continue
        result = results[name]
        lines += [f"## {name}: {result['state']} ({result['seconds']} s)", "", step.__doc__, ""]
        lines += [f"- {key}: {value}" for key, value in result.get("found", {}).items() if key != "rows"]
        if result.get("found", {}).get("rows"):
            lines += [""] + table(result["found"]["rows"])
        if "problem" in result:
            lines += ["```", result["problem"], "```"]
        lines.append("")
    (folder / "gpu_check.md").write_text("\n".join(lines), encoding="utf-8")


def run_step(check, step, seconds):
    """The result of one step, for the report."""
    started = time.monotonic()
    check.limit = started + seconds
    result = {"state": "ok"}
    try:
        result["found"] = step(check)
    except Exception as problem:
        result.update(state="FAILED", problem=f"{type(problem).__name__}: {problem}")
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def main():
    names = [name for name, *_ in STEPS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", default=ROOT / "build-gpu" / "report", help="the folder of the report")
    parser.add_argument("--build", default=ROOT / "build-gpu", help="the build folder")
    parser.add_argument("--steps", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument("--minutes", type=float, default=9.5, help="how long this call may take")
    parser.add_argument("--without-gpu", action="store_true", help="what can be checked without a GPU, on the CPU")
    options = parser.parse_args()
    wanted = options.steps.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(names)}")
    if not options.without_gpu and not has_gpu():
        sys.exit("gpu_check: torch finds no GPU on this machine; --without-gpu builds and checks on the CPU what it can")
    check = Check(options)
    kept = check.report / "gpu_check.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for name, step, seconds, needs_gpu in STEPS:
        if name not in wanted:
            continue
        if needs_gpu and not check.gpu:
            results[name] = {"state": "not run: it needs a GPU", "seconds": 0}
        else:
            results[name] = run_step(check, step, seconds)
        print(f"gpu_check: {name}: {results[name]['state']} ({results[name]['seconds']} s)", flush=True)
        write_report(check.report, results)
    print(f"gpu_check: the report is {check.report}/gpu_check.md")
    return 1 if any(results[name]["state"] == "FAILED" for name in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
