#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Runs one program of the gallery on two ranks and on one, and looks at what it prints: the loss falls, and all ranks end with the
same numbers, to the last digit. Usage: gallery_test.py <gradwire-run> <program> [argument of the program...]"""
import os
import re
import subprocess
import sys
import unittest

LAUNCHER, *PROGRAM = sys.argv[1:]
NAME = os.path.splitext(os.path.basename(PROGRAM[-1]))[0]
# By how much the loss (or the cost) falls at least; the programs print it as "loss 0.123".
FALL = {"image_classification": 0.5, "gpt": 0.5, "reinforcement_learning": 0.6, "nanogpt": 0.6, "fsdp": 0.4}
LOSS = re.compile(r"(?:step|round) +\d+  (?:loss|cost of an episode) ([\d.]+)")
END = re.compile(r"rank (\d+) ends (?:with|over) (.*)")


def run(ranks):
    """Runs the program with a time limit; returns its output without the prefixes of the ranks."""
    command = [LAUNCHER, "-n", str(ranks), "--timeout", "300", *PROGRAM] if ranks else PROGRAM
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "GRADWIRE_RENDEZVOUS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment.setdefault("OMP_NUM_THREADS", "1")
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return re.sub(r"^\[rank \d+\] ", "", result.stdout, flags=re.MULTILINE)


class Gallery(unittest.TestCase):
    def expect_learning(self, output, ranks):
        losses = [float(loss) for loss in LOSS.findall(output)]
        self.assertGreaterEqual(len(losses), 4, output)
        self.assertLess(losses[-1], FALL.get(NAME, 0.2) * losses[0], output)
        ends = dict(END.findall(output))
        self.assertEqual(sorted(ends), [str(rank) for rank in range(ranks)], output)
        self.assertEqual(len(set(ends.values())), 1, f"the ranks differ:\n{output}")

    def test_two_ranks(self):
        output = run(2)
        self.expect_learning(output, 2)
        if NAME == "linear_regression":
            self.assertRegex(output, r"weights (2\.0|1\.9)\d* -(1\.0|0\.9)\d* (0\.5|0\.4)\d*, bias 0\.2")
        elif NAME == "image_classification":
            self.assertGreater(float(re.search(r"epoch 1  ([\d.]+)% right of 4000 images", output).group(1)), 90)
        elif NAME == "gpt":
            self.assertRegex(output, r"writes: .*(bucket|wire|gradient)")
        elif NAME == "reinforcement_learning":
            played = re.findall(r"rank \d played (\d+) episodes", output)
            self.assertEqual(len(set(played)), 2, f"the ranks played equally often, so Join had nothing to do:\n{output}")
        elif NAME == "own_hook":
            sent = re.search(r"rank 0 sent (\d+) bytes", output)
            self.assertLess(int(sent.group(1)), 301 * (17 * 64 + 65) * 4, "more than whole gradients")
        elif NAME == "own_process_group":
            self.assertIn("over 'store'", output)
        elif NAME == "zero":
            parts = [(int(kept), int(of)) for kept, of in re.findall(r"keeps (\d+) of (\d+) bytes", output)]
            self.assertEqual(sum(kept for kept, _ in parts), parts[0][1], output)
            self.assertTrue(all(0 < kept < of for kept, of in parts), output)
            norms = re.search(r"of norm (\S+), and after the restart of (\S+)", output)
            self.assertEqual(norms.group(1), norms.group(2), "the restart left a trace")
        elif NAME == "collectives_without_torch":
            self.assertRegex(output, r"rank 0 of 2 over shm: the rank before is 1")

    def test_alone_without_the_launcher(self):
        self.expect_learning(run(0), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
