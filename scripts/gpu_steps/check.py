# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""One call of gpu_check.py: its places, and how its steps run programs."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The Python whose torch is used.
PYTHON = next((str(path) for path in [ROOT / ".venv" / "bin" / "python"] if path.exists()), sys.executable)
CALL_MINUTES = 9.5
PYTHON_CHECK = ROOT / "tests" / "devices" / "python_check.py"


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
