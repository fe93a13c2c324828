#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/gpu_check.py where there is no GPU: every step runs with programs that stand for the driver's, CUDA's and the build's.
Each of them notes how it was called, and prints what the real one prints."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.py"
STEPS = ["machine", "build", "bytes", "tests", "speed", "hooks", "nccl", "four_ranks", "staging", "python", "elastic", "graph", "peers", "sanitizer"]
HOOKS = ["allreduce", "int8", "auto"]
PASSED = "[==========] 4 tests from 1 test suite ran. (12 ms total)\n[  PASSED  ] 4 tests.\n"
# Stands for gradwire-run with device_check and python_check.py: rank 0's lines, with the launcher's prefix. FAIL names a hook that ends the ranks, DRIFT one whose
# losses are others on the GPU.
LAUNCHER = f"""
    import json, os, sys
    words = sys.argv[sys.argv.index("-n") + 1:]
    program = next(at for at, word in enumerate(words) if word.endswith(("device_check", "_check.py")))
    if words[program].endswith("elastic_check.py"):
        device, folder, ranks, way = words[program + 1:]
        drift = 0.5 if way == os.environ.get("DRIFT_ELASTIC") and device == "cuda" else 0
        print("[rank 0] " + json.dumps(dict(world=int(words[0]), hook=way, losses=[1.0 + drift])))
        sys.exit(0)
    world, (kind, device, backend, *rest) = int(words[0]), words[program + 1:]
    if kind == "collectives":
        print("[rank 0] " + json.dumps(dict(world=world, checked=["all_reduce", "broadcast"])))
        sys.exit("[rank 0] AssertionError: all_reduce gave 2" if os.environ.get("WRONG") == backend else 0)
    if kind == "graph":
        print("[rank 0] " + json.dumps(dict(world=world, losses=[1.0] * int(rest[0]))))
        sys.exit(0)
    if kind == "speed":
        print("[rank 0] " + json.dumps(dict(world=world, backend=backend, peer=rest[0], **{{"gradwire / PyTorch": 0.75}})))
        sys.exit(0)
    number, *hooks = rest
    if kind == "all_reduce":
        print("[rank 0] " + json.dumps(dict(world=world, bytes=int(number), to_host_s=0.01, to_device_s=0.01, all_reduce_s=0.04)))
        sys.exit(0)
    for hook in hooks or {HOOKS!r}:
        if hook == os.environ.get("FAIL") and device == "cuda":
            sys.exit(f"[rank 0] no kernel for {{hook}}")
        drift = 0.5 if hook == os.environ.get("DRIFT") and device == "cuda" else 0
        print("a warning of a library")
        losses = [1.0 + drift] * int(number)
        if hook == "int8" and device == "cuda" and "BAD" in os.environ:
            losses = dict(nan=losses[1:] + [float("nan")], inf=losses[1:] + [float("inf")], none=losses[1:] + [None], short=losses[1:])[os.environ["BAD"].lower()]
        print("[rank 0] " + json.dumps(dict(world=world, hook=hook, losses=losses)), flush=True)
"""
SPEED = """
    import sys
    print("a warning", file=sys.stderr)
    for codec in ("int8", "top_k"):
        print('{"codec": "%s", "values": 1000000, "copy_s": 0.001, "encode_s": 0.002, "decode_s": 0.001, "add_s": 0.0015}' % codec)
"""
SANITIZER = f"""
    import os, sys
    broken = os.environ.get("BROKEN") == sys.argv[2]
    print("{PASSED!r}".replace("\\\\n", chr(10)).strip("'"))
    print("========= ERROR SUMMARY: " + ("1 error" if broken else "0 errors"))
    sys.exit(9 if broken else 0)
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.calls, self.report = self.root / "calls", self.root / "report"
        self.program("path/cmake", "print('-- gradwire: ' + os.environ.get('LACKS', 'CUDA kernels for 80;90'))\n"
                     f"print('-- gradwire: ' + os.environ.get('PYTHON_LINE', 'Python package for {sys.executable}'))")
        self.package = self.root / "build/python/gradwire/_C.cpython.so"
        self.program("path/ninja", f"if 'gradwire_python' in sys.argv and 'NO_PACKAGE' not in os.environ: open({str(self.package)!r}, 'w')")
        self.program("path/nvidia-smi", "print('GPU 0: a fake one')")
        self.program("path/nvcc", "print('release 13.0')")
        self.program("path/compute-sanitizer", SANITIZER)
        self.program("build/bin/gradwire-run", LAUNCHER)
        for name, body in (("device_check", ""), ("codec_speed", SPEED), ("cuda_launch_test", f"print({PASSED!r})"),
                           ("device_tests", f"print({PASSED!r})")):
            self.program(f"build/bin/tests/{name}", body)
        self.package.parent.mkdir(parents=True)
        self.package.touch()

    def program(self, path, body):
        """A program that notes its arguments and its device for tests, and then runs `body`."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        note = f"open({str(self.calls)!r}, 'a').write(' '.join(sys.argv) + ' ' + os.environ.get('GRADWIRE_TEST_DEVICE', '') + chr(10))"
        file.write_text(f"#!{sys.executable}\nimport os, sys\n{note}\n{textwrap.dedent(body)}\n")
        file.chmod(0o755)

    def check(self, *arguments, **environment):
        """The exit code, what the script printed, and the results by step."""
        path = f"{self.root / 'path'}:{os.environ['PATH']}"
        result = subprocess.run([sys.executable, str(SCRIPT), "--build", str(self.root / "build"), "--report", str(self.report), *arguments],
                                env={**os.environ, "PATH": path, "GRADWIRE_TORCH_DIR": "/torch", **environment}, capture_output=True,
                                text=True, timeout=300, check=False)
        kept = self.report / "gpu_check.json"
        return result.returncode, result.stdout + result.stderr, json.loads(kept.read_text()) if kept.exists() else {}

    def states(self, results):
        return {name: result["state"] for name, result in results.items()}

    def test_every_step_runs_and_stands_in_the_report(self):
        code, output, results = self.check()
        self.assertEqual(self.states(results), dict.fromkeys(STEPS, "ok"), output)
        self.assertEqual(code, 0, output)
        calls = self.calls.read_text()
        for part in ("-DGRADWIRE_CUDA=AUTO", "-DGRADWIRE_CUDA_KERNELS=AUTO", "-DGRADWIRE_TORCH_DIR=/torch", "device_tests codec_speed", "build gradwire_python",
                     "device_staging_test.cc --gtest_brief=1 cuda", "staged_calls_test.cc --gtest_brief=1 cuda", "train cuda nccl 8 allreduce int8 auto",
                     "all_reduce cuda shm 268435456",
                     f"-n 2 env PYTHONPATH={self.root / 'build/python'}", f" {sys.executable} {SCRIPT.parents[1]}/tests/devices/python_check.py collectives cuda shm", "python_check.py collectives cuda nccl",
                     "python_check.py train cuda shm 8 allreduce int8 auto", "python_check.py speed cuda shm gloo", "speed cuda nccl nccl", "--elastic 1:2 -n 2 env PYTHONPATH=", "elastic_check.py cuda", "python_check.py graph cuda nccl 8", "--tool racecheck", "--tool initcheck", "--gtest_filter=*/cuda"):
            self.assertIn(part, calls)
        report = (self.report / "gpu_check.md").read_text()
        for part in ("a fake one", "| top_k | 8 | 2 | 1 | 1.5 |", "| int8 | 1 | 1 | 0 |", "share of PCIe: 0.5", "collectives of 1 over nccl: all_reduce, broadcast",
                     "| 2 over shm | int8 | 1 | 1 | 0 |", "| 2 | shm | gloo | 0.75 |", "ERROR SUMMARY: 0 errors"):
            self.assertIn(part, report)
        self.assertIn("a warning of a library", (self.report / "hooks.log").read_text())

    def test_a_later_call_runs_what_was_not_ok(self):
        self.assertEqual(self.check(DRIFT="int8")[0], 1)
        before = self.calls.read_text().count("\n")
        code, output, results = self.check()
        self.assertEqual(code, 0, output)
        self.assertEqual(self.states(results), dict.fromkeys(STEPS, "ok"))
        self.assertIn("speed: was ok in an earlier call", output)
        later = "\n".join(self.calls.read_text().splitlines()[before:])
        self.assertNotIn("codec_speed", later.replace("device_tests codec_speed", ""))
        self.assertIn("train cuda shm", later)
        self.check("--steps", "speed")
        self.assertIn("codec_speed", self.calls.read_text().splitlines()[-1])

    def test_a_test_that_ends_by_a_signal_runs_again_under_a_debugger(self):
        self.program("build/bin/tests/device_tests", "import signal\nif 'checkpoint_device_test.cc' in sys.argv: os.kill(os.getpid(), signal.SIGABRT)\n"
                     f"print({PASSED!r})")
        # The thread that failed comes last, behind those of a machine with many processors.
        self.program("path/gdb", "print('Thread 9: another one\\n' * 1000 + 'Thread 1: free() at malloc.c' if sys.argv[-4] == 'backtrace 60' else '')")
        code, output, results = self.check("--steps", "tests")
        self.assertEqual(code, 1, output)
        self.assertIn("Thread 1: free() at malloc.c", results["tests"]["problem"])
        self.assertIn("--args", self.calls.read_text())

    def test_an_elastic_job_that_ends_elsewhere_than_on_the_cpu_fails(self):
        code, output, results = self.check("--steps", "elastic", DRIFT_ELASTIC="zero")
        self.assertEqual(code, 1, output)
        self.assertIn("zero: 0.5", results["elastic"]["problem"])

    def test_a_hook_that_ends_its_ranks_does_not_hide_the_others(self):
        code, output, results = self.check("--steps", "hooks,nccl,staging", FAIL="int8")
        self.assertEqual(code, 1)
        self.assertEqual(self.states(results), {"hooks": "FAILED", "nccl": "FAILED", "staging": "ok"}, output)
        problem = results["hooks"]["problem"]
        self.assertIn("no kernel for int8", problem)
        self.assertIn('{"hook": "auto", "last loss": 1.0', problem)
        self.assertIn("train cuda shm 8 auto", self.calls.read_text())

    def test_losses_that_differ_are_named_but_for_those_that_follow_times(self):
        for hook, state in (("int8", "FAILED"), ("auto", "ok")):
            _, output, results = self.check("--steps", "hooks", DRIFT=hook)
            self.assertEqual(results["hooks"]["state"], state, output)
            self.assertEqual("int8: 0.5" in results["hooks"].get("problem", ""), state == "FAILED")

    def test_a_tool_that_finds_something_does_not_stop_the_others(self):
        _, _, results = self.check("--steps", "sanitizer", BROKEN="racecheck")
        self.assertEqual(results["sanitizer"]["state"], "FAILED")
        self.assertIn("racecheck: ", results["sanitizer"]["problem"])
        self.assertIn("initcheck: ========= ERROR SUMMARY: 0 errors", results["sanitizer"]["problem"])

    def test_tests_that_fail_are_named_and_tests_that_are_skipped_fail(self):
        self.program("build/bin/tests/device_tests", f"if 'staged' in sys.argv[1]: sys.exit('[  FAILED  ] A/B.c/0, where GetParam() = 1 (3 ms)')\nprint({PASSED!r})")
        self.program("build/bin/tests/cuda_launch_test", "print('[  SKIPPED ] 4 tests')")
        _, _, results = self.check("--steps", "bytes,tests")
        self.assertIn("staged_calls_test.cc: failed: A/B.c/0\n", results["tests"]["problem"])
        self.assertIn("device_hooks_test.cc: [  PASSED  ] 4 tests.", results["tests"]["problem"])
        self.assertIn("tests were skipped", results["bytes"]["problem"])

    def test_what_hangs_is_ended_with_its_children_and_the_rest_is_named(self):
        self.program("build/bin/tests/codec_speed", "import subprocess; subprocess.run(['sleep', '600'])")
        started = time.monotonic()
        code, _, results = self.check("--steps", "speed,staging", "--minutes", "0.1")
        self.assertLess(time.monotonic() - started, 120)
        self.assertEqual(code, 1)
        self.assertIn("did not end within", results["speed"]["problem"])
        self.assertIn("no time was left", results["staging"]["problem"])

    def test_a_part_that_cannot_be_built_does_not_keep_the_others_from_being_built(self):
        lacks = "no CUDA kernels, for there is no nvcc"
        _, output, results = self.check("--steps", "build,tests", LACKS=lacks)
        self.assertEqual(self.states(results), {"build": "FAILED", "tests": "ok"}, output)
        self.assertIn(lacks, results["build"]["problem"])
        self.assertEqual(results["build"]["found"]["Python"], sys.executable)
        built = next(line for line in self.calls.read_text().splitlines() if "/ninja " in line)
        self.assertIn("device_tests", built)
        self.assertNotIn("codec_speed", built)

    def test_a_collective_that_is_wrong_from_python_fails_and_the_rest_runs(self):
        _, output, results = self.check("--steps", "build,python", WRONG="nccl")
        self.assertEqual(results["python"]["state"], "FAILED", output)
        self.assertIn("collectives of 1 over nccl: ", results["python"]["problem"])
        self.assertIn("all_reduce gave 2", results["python"]["problem"])
        self.assertNotIn("2 over shm", results["python"]["problem"])
        self.assertIn("train cuda nccl", self.calls.read_text())

    def test_where_no_python_package_can_be_built_the_report_says_so(self):
        code, output, results = self.check("--steps", "build,python,peers", PYTHON_LINE="no Python package: no headers")
        self.assertEqual(code, 0, output)
        self.assertEqual(results["build"]["found"]["without"], "no Python package: no headers")
        self.assertEqual(self.states(results), {"build": "ok", "python": "not run: no Python package: no headers",
                                                "peers": "not run: no Python package: no headers"})
        self.assertNotIn("gradwire_python", self.calls.read_text())

    def test_a_python_package_that_should_be_there_and_is_not_fails(self):
        code, output, results = self.check("--steps", "build,python", NO_PACKAGE="1")
        self.assertEqual((code, results["python"]["state"]), (1, "FAILED"), output)
        self.assertIn("the Python package is not built", results["python"]["problem"])

    def test_losses_that_are_no_numbers_fail(self):
        for bad in ("nan", "inf", "None", "short"):
            _, output, results = self.check("--steps", "hooks,python", BAD=bad)
            for step in ("hooks", "python"):
                self.assertEqual(results[step]["state"], "FAILED", output)
                self.assertIn("int8: not finite, or not as many", results[step]["problem"])

    def test_a_program_that_is_missing_is_a_sentence(self):
        (self.root / "build/bin/tests/codec_speed").unlink()
        _, _, results = self.check("--steps", "speed")
        self.assertIn("is not built; run the step build", results["speed"]["problem"])
        (self.root / "path/compute-sanitizer").write_text("#!/no/such/program\n")
        _, _, results = self.check("--steps", "sanitizer")
        self.assertIn("compute-sanitizer cannot be run: No such file", results["sanitizer"]["problem"])

    def test_without_a_gpu_the_script_says_so_and_checks_the_rest_when_asked(self):
        self.program("path/nvidia-smi", "sys.exit('no driver')")
        code, output, results = self.check()
        self.assertEqual((code, results), (1, {}))
        self.assertIn("finds a GPU on this machine; --without-gpu", output)
        code, output, results = self.check("--without-gpu", "--steps", "build,tests,speed,hooks")
        self.assertEqual(code, 0, output)
        self.assertEqual(results["speed"]["state"], "not run: it needs a GPU")
        calls = self.calls.read_text()
        self.assertIn("--gtest_brief=1 fake", calls)
        self.assertNotIn("cuda shm", calls)


if __name__ == "__main__":
    unittest.main()
