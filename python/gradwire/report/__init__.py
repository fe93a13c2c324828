# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A page out of the JSON lines of char_lm and gradwire-bench: `python -m gradwire.report run.jsonl -o report.html`.

Needs nothing but the standard library. docs/report.md says what the page shows.
"""
