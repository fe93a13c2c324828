# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python/ train, with the commands that their first lines name."""
import re
import sys

import pytest

from conftest import ROOT, launch, torchrun

EXAMPLES = ROOT / "examples" / "python"


def number_in(pattern, output):
    found = re.search(pattern, output)
    assert found, output
    return float(found.group(1))


@pytest.mark.parametrize("hook", ["", "power_sgd:rank=4,start=20"])
def test_lightning_module(hook):
    status, output = launch([sys.executable, str(EXAMPLES / "lightning_module.py"), "--devices", "2", "--hook", hook])
    assert status == 0, output
    assert number_in(r"([0-9.]+)% right", output) > 90


@pytest.mark.parametrize("hook", ["", "int8"])
def test_accelerate_script(hook):
    status, output = launch(torchrun(EXAMPLES / "accelerate_script.py", "--hook", hook))
    assert status == 0, output
    assert number_in(r"are found to ([0-9.]+)", output) < 0.6  # a guess of their middle is wrong by 1.75


@pytest.mark.parametrize("hook", ["", "int8"])
def test_hugging_face_trainer(hook):
    status, output = launch(torchrun(EXAMPLES / "hugging_face_trainer.py", "--hook", hook))
    assert status == 0, output
    assert number_in(r"loss ([0-9.]+) for sums", output) < 0.6  # log(10) is 2.3


def test_each_example_is_one_file_of_at_most_150_lines():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 150, path
