# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The codecs' kernels and the tests of devices."""
import json
import os
import re

from gpu_steps.check import Failed, find_tool

# The files of device_tests that run on any device; the others look into the fake one.
DEVICE_TESTS = ["device_hooks_test.cc", "device_training_test.cc", "device_staging_test.cc", "staged_calls_test.cc",
                "checkpoint_device_test.cc"]
SANITIZERS = ["memcheck", "racecheck", "synccheck", "initcheck"]


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
