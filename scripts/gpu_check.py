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
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The Python whose torch is used.
PYTHON = next((str(path) for path in [ROOT / ".venv" / "bin" / "python"] if path.exists()), sys.executable)
TARGETS = ["gradwire", "gradwire-run", "device_check", "cuda_launch_test", "device_tests"]
# The files of device_tests that run on any device; the others look into the fake one.
DEVICE_TESTS = ["device_hooks_test.cc", "device_training_test.cc", "device_staging_test.cc", "staged_calls_test.cc",
                "checkpoint_device_test.cc"]
SANITIZERS = ["memcheck", "racecheck", "synccheck", "initcheck"]
TRAINING_STEPS = 8
CALL_MINUTES = 9.5
STAGED_BYTES = 256 << 20
# A loss on the device may differ from the CPU's by this part of it: sums of the matrix products have another order. Random choices of
# `auto`, which follow times, are not compared.
LOSS_TOLERANCE = 0.02
NOT_COMPARED = {"auto"}
PYTHON_CHECK = ROOT / "tests" / "devices" / "python_check.py"
ELASTIC_CHECK = ROOT / "tests" / "devices" / "elastic_check.py"


class Failed(Exception):
    """A step that went wrong; the text says how. `output` is what the command printed, `found` what the step found all the same."""

    def __init__(self, text, output="", found=None):
        super().__init__(text)
        self.output, self.found = output, found


class NotRun(Exception):
    """A step that has nothing to run on this machine; the text says why."""


def find_tool(name):
    """A program on PATH, or where CUDA's own installer puts it; else the name."""
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return shutil.which(name) or next((path for place in places if place and os.access(path := f"{place}/bin/{name}", os.X_OK)), name)


class Check:
    """The places of one call, and how its steps run programs."""

    def __init__(self, options):
        self.gpu = not options.without_gpu
        self.build = pathlib.Path(options.build).resolve()
        self.report = pathlib.Path(options.report).resolve()
        self.jobs, self.cmake = options.jobs, options.cmake
        self.deadline = time.monotonic() + 60 * options.minutes
        self.patience = max(1.0, options.minutes / CALL_MINUTES)  # a long call is for a slow machine
        self.results = {}  # of the steps so far, those of earlier calls too
        self.step = ""  # that runs
        self.limit = 0.0  # of the step

    def begin(self, step, seconds):
        """The commands from now on are those of `step`, which may take `seconds`."""
        self.step = step
        self.limit = time.monotonic() + self.patience * seconds
        self.report.mkdir(parents=True, exist_ok=True)
        (self.report / f"{step}.log").unlink(missing_ok=True)

    def left(self):
        """The seconds that the step has left."""
        return min(self.limit, self.deadline) - time.monotonic()

    def run(self, *command, env=None, seconds=None):
        """What a command prints. It ends within the limit of the step (and `seconds`), with every process that it started."""
        left = min(self.left(), seconds or float("inf"))
        if left < 1:
            raise Failed("no time was left")
        words = [str(part) for part in command]
        try:
            process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, **(env or {})}, text=True, errors="replace",
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as problem:
            raise Failed(f"{words[0]} cannot be run: {problem.strerror}") from None
        try:
            output, _ = process.communicate(timeout=left)
            problem = f"{' '.join(words)} ended with {process.returncode}" if process.returncode != 0 else ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            problem = f"{' '.join(words)} did not end within {left:.0f} s"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        with open(self.report / f"{self.step}.log", "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(words)}\n{output}\n")
        if problem:
            raise Failed(f"{problem}\n{output[-3000:]}", output)
        return output

    def program(self, name):
        path = self.build / "bin" / "tests" / name
        if not path.exists():
            raise Failed(f"{path} is not built; run the step build")
        return path

    def device_check(self):
        """The command of device_check."""
        return [self.program("device_check")]

    def python_program(self, program):
        """The command of a Python program, for the Python that the package was built for."""
        built = self.results.get("build", {}).get("found", {})
        if "without" in built:
            raise NotRun(built["without"])
        if not list((self.build / "python" / "gradwire").glob("_C*.so")):
            raise Failed("the Python package is not built; run the step build")
        # The second: what tests of the package share.
        path = os.pathsep.join([str(self.build / "python"), str(ROOT / "python" / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
        return ["env", f"PYTHONPATH={path}", built.get("Python", PYTHON), program]

    def python_check(self):
        """The command of python_check.py."""
        return self.python_program(PYTHON_CHECK)

    def ranks(self, count, command, *arguments, options=()):
        """The lines of JSON that a command prints on `count` ranks, and how it failed; empty: it did not."""
        problem = ""
        try:
            output = self.run(self.build / "bin" / "gradwire-run", *options, "-n", count, *command, *arguments)
        except Failed as failed:
            output, problem = failed.output, str(failed)
        return [json.loads(line[line.index("{"):]) for line in output.splitlines() if '"world"' in line], problem


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


def require_tests(output):
    """Throws unless tests ran, and none was skipped."""
    if "[  SKIPPED ]" in output or re.search(r"\b0 tests", output):
        raise Failed("tests were skipped, or there are none: the kernels are not built, or found no GPU that they run on\n" + output[-1000:])


def step_bytes(check):
    """The bytes of the codecs' kernels beside those of the CPU; without a GPU, of the same arithmetic on the host."""
    place = "cuda" if check.gpu else "host"
    output = check.run(check.program("cuda_launch_test"), f"--gtest_filter=*/{place}", "--gtest_brief=1")
    require_tests(output)
    return {"place": place, "tests": output.strip().splitlines()[-1]}


def stack_of(check, env, command):
    """Where each thread was when a program ended by a signal, from a second run under a debugger; empty where there is no debugger."""
    debugger = next((tool for tool in map(find_tool, ("gdb", "cuda-gdb")) if os.access(tool, os.X_OK)), None)
    if debugger is None:
        return ""
    try:
        said = check.run(debugger, "-batch", "-ex", "run", "-ex", "thread apply all backtrace 40", "-ex", "backtrace 60", "--args", *command, env=env, seconds=120)
    except Failed as failed:
        said = failed.output
    return f"\nunder {debugger}:\n{said[-6000:]}"


def step_tests(check):
    """The tests of devices, on the GPU: codecs, states, training with every hook; without a GPU, on the fake device."""
    env = {"GRADWIRE_TEST_DEVICE": "cuda" if check.gpu else "fake"}
    found, problems = {"device": env["GRADWIRE_TEST_DEVICE"]}, []
    for file in DEVICE_TESTS:  # each is a process: the ranks of some are forked, before anything used autograd or CUDA
        try:
            output = check.run(check.program("device_tests"), file, "--gtest_brief=1", env=env)
            require_tests(output)
            found[file] = output.strip().splitlines()[-1]
        except Failed as failed:
            broken = sorted(set(re.findall(r"\[  FAILED  \] (\S+?)(?:,|\s|$)", failed.output)))
            stack = stack_of(check, env, [check.program("device_tests"), file]) if " ended with -" in str(failed) else ""
            problems.append(f"{file}: failed: {', '.join(broken)}\n{failed}{stack}")
    if problems:
        raise Failed("\n".join(problems + [f"{file}: {text}" for file, text in found.items()]))
    return found


def step_sanitizer(check):
    """compute-sanitizer over the kernels' test: accesses beyond memory, races in shared memory, barriers, uninitialized memory."""
    tool = find_tool("compute-sanitizer")
    found, problems = {}, []
    for number, kind in enumerate(SANITIZERS):
        try:
            output = check.run(tool, "--tool", kind, "--error-exitcode", "9", check.program("cuda_launch_test"), "--gtest_filter=*/cuda",
                               "--gtest_brief=1", seconds=check.left() / (len(SANITIZERS) - number))
            require_tests(output)
            found[kind] = next((line for line in output.splitlines() if "SUMMARY" in line), output[-300:])
        except Failed as failed:
            problems.append(f"{kind}: {failed}")
    if problems:
        raise Failed("\n".join(problems + [f"{kind}: {text}" for kind, text in found.items()]))
    return found


def step_speed(check):
    """The times of the kernels as multiples of a copy of the values on the device."""
    rows = []
    for measured in map(json.loads, re.findall(r"^\{.*\}$", check.run(check.program("codec_speed")), re.MULTILINE)):
        copy = measured["copy_s"]
        rows.append({"codec": measured["codec"], "copy GB/s": round(8 * measured["values"] / copy / 1e9),
                     **{f"{name} / copy": round(measured[f"{name}_s"] / copy, 2) for name in ("encode", "decode", "add")}})
    if not rows:
        raise Failed("codec_speed measured nothing")
    return {"rows": rows}


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
    """The line of an elastic job of two ranks on a device, of which one is killed and replaced."""
    with tempfile.TemporaryDirectory() as folder:
        lines, problem = check.ranks(2, check.python_program(ELASTIC_CHECK), device, folder, way, options=("--elastic", "1:2"))
    return lines[0] if lines and not problem else {"hook": way, "failed": problem or "nothing was printed"}


def step_elastic(check):
    """Elastic jobs from Python whose models are on the device: a rank is killed and replaced; losses beside the CPU's."""
    rows, problems = [], []
    for way in ("plain", "int8", "zero", "diloco"):
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


# Name, seconds at most, needs a GPU.
STEPS = [("machine", step_machine, 60, False), ("build", step_build, 570, False), ("bytes", step_bytes, 120, False),
         ("tests", step_tests, 300, False), ("speed", step_speed, 120, True), ("hooks", step_hooks, 300, False),
         ("nccl", step_nccl, 180, True), ("four_ranks", step_four_ranks, 180, False), ("staging", step_staging, 120, False),
         ("python", step_python, 180, False), ("elastic", step_elastic, 120, False), ("graph", step_graph, 60, True), ("peers", step_peers, 120, False),
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
        write_report(check.report, results)
    print(f"gpu_check: the report is {check.report}/gpu_check.md")
    return 1 if any(results[name]["state"] == "FAILED" for name in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
