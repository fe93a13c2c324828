# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m gradwire` and `gradwire-run --info` say the same; a program without a launcher is one rank."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import gradwire

BUILD = pathlib.Path(gradwire.__file__).parent.parent.parent
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GRADWIRE_RENDEZVOUS")


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=300, check=False)


def test_the_module_says_what_the_launcher_says() -> None:
    said = run([sys.executable, "-m", "gradwire"])
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"gradwire {gradwire.__version__}\nbuild: ")
    assert "\nbackend shm: usable\n" in said.stdout
    launcher = BUILD / "bin" / "gradwire-run"
    if not launcher.exists():
        pytest.fail(f"{launcher} is not built")
    assert run([str(launcher), "--info"]).stdout == said.stdout


def test_the_reports_need_no_torch() -> None:
    without_torch = "import runpy, sys; sys.modules['torch'] = None; "
    for module in ("gradwire.report", "gradwire.plan"):
        said = run([sys.executable, "-c", without_torch + f"sys.argv = ['x', '--help']; runpy.run_module('{module}', run_name='__main__')"])
        assert said.returncode == 0 and said.stdout.startswith("usage: "), said.stderr
    said = run([sys.executable, "-c", without_torch + "import gradwire; gradwire.nn"])
    assert "gradwire.nn needs the C++ runtime" in said.stderr and "a Python that has torch" in said.stderr


PROGRAM = """
import torch, gradwire.distributed as dist
dist.init_process_group()
x = torch.full((3,), 2.0)
dist.all_reduce(x)
print(dist.get_rank(), dist.get_world_size(), x.tolist())
dist.destroy_process_group()
"""


def test_without_a_launcher_there_is_one_rank() -> None:
    alone = run([sys.executable, "-c", PROGRAM])
    assert alone.stdout == "0 1 [2.0, 2.0, 2.0]\n", alone.stderr
    lost = run([sys.executable, "-c", PROGRAM], LOCAL_RANK="1")
    assert lost.returncode != 0
    assert "LOCAL_RANK is set, so this process is not alone" in lost.stderr
