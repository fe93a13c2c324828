# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Rates, sizes, times and lists as people write them on a command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar


class PlanError(Exception):
    """One sentence that says what is wrong with an input, and what to do."""


RATES = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3, "bit": 1.0}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
BYTES = {"": 1.0, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
UNLIMITED = "none"

Value = TypeVar("Value")


def quantity(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([^\s0-9.]*)", text.strip())
    if match is None or match.group(2) not in units:
        raise PlanError(f"'{text}' is no {what}; write {example}")
    return float(match.group(1)) * units[match.group(2)]


def positive(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    value = quantity(text, units, what, example)
    if value <= 0:
        raise PlanError(f"'{text}' is no {what}: it must be above 0")
    return value


def parse_rate(text: str) -> float:
    """Bits a second; infinity for "none"."""
    return math.inf if text == UNLIMITED else positive(text, RATES, "rate", "100mbit, 1gbit or none")


def parse_time(text: str) -> float:
    """Seconds."""
    return 0.0 if text == "0" else quantity(text, TIMES, "time", "45ms, 50us or 1s")


def parse_bytes(text: str) -> int:
    return round(positive(text, BYTES, "size", "256Ki, 25Mi or a number of bytes"))


def parse_parameters(text: str) -> int:
    return round(positive(text, COUNTS, "number of parameters", "6.3M, 350K or 1.2B"))


def parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise PlanError(f"'{text}' is no number of this kind; write a whole number from 1 on")
    return int(text)


def parse_list(text: str, parse: Callable[[str], Value]) -> list[Value]:
    return [parse(part) for part in text.split(",")]


def parse_hooks(text: str) -> list[str]:
    """Hooks in a list, where a part with "=" and no ":" goes on with the options of the hook before it."""
    hooks: list[str] = []
    for part in text.split(","):
        if hooks and "=" in part and ":" not in part:
            hooks[-1] += f",{part}"
        elif part.strip():
            hooks.append(part.strip())
    if not hooks:
        raise PlanError(f"'{text}' names no hook; write allreduce,int8")
    return hooks


def rate_text(rate: float) -> str:
    """As parse_rate() reads it."""
    if math.isinf(rate):
        return UNLIMITED
    unit, factor = next((unit, factor) for unit, factor in RATES.items() if rate >= factor or unit == "bit")
    return f"{rate / factor:g}{unit}"
