# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What a training step would cost on other hosts: gradwire-plan. Needs Python's standard library alone, no torch.

`calibration` holds what was measured on one machine, `model` predicts an exchange of gradients from it, `step` a training
step, and `check` compares predictions with measurements. docs/plan.md states the model.
"""
