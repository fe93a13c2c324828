# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines, and fields that are what they should be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class ReportError(Exception):
    """One sentence that says what is wrong with an input, and where it is."""


@dataclass(frozen=True)
class Line:
    """One record: a JSON object, or one inside of it."""

    file: str
    number: int  # from 1
    fields: dict[str, Any]
    what: str = "record"  # for messages

    def fail(self, problem: str) -> ReportError:
        return ReportError(f"{self.file}:{self.number}: {problem}")

    def _get(self, name: str, kind: str, fits: bool) -> Any:
        if not fits:
            state = "is not" if name in self.fields else "is missing, which should be"
            raise self.fail(f"'{name}' of the {self.what} {state} {kind}")
        return self.fields[name]

    def number_at(self, name: str) -> float:
        value = self.fields.get(name)
        return float(self._get(name, "a number", is_number(value)))

    def count_at(self, name: str) -> int:
        value = self.fields.get(name)
        return int(self._get(name, "a whole number", is_number(value) and float(value or 0).is_integer()))

    def number_or_none(self, name: str) -> float | None:
        """A number; None where it is null, or not finite."""
        value = self.fields.get(name, "")
        self._get(name, "a number or null", value is None or isinstance(value, float) or is_number(value))
        return float(value) if is_number(value) else None

    def text_at(self, name: str) -> str:
        return str(self._get(name, "a text", isinstance(self.fields.get(name), str)))

    def inner(self, name: str) -> Line:
        value = self._get(name, "an object", isinstance(self.fields.get(name), dict))
        return Line(self.file, self.number, value, f"{self.what}'s {name}")

    def inner_list(self, name: str) -> list[Line]:
        value = self.fields.get(name)
        fits = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        return [
            Line(self.file, self.number, item, f"{self.what}'s {name}")
            for item in self._get(name, "a list of objects", fits)
        ]

    def span_at(self, name: str) -> Span:
        value = self.fields.get(name)
        return Span(*map(float, self._get(name, "a pair of numbers in order", is_span(value))))

    def spans_at(self, name: str) -> list[Span]:
        value = self.fields.get(name)
        fits = isinstance(value, list) and all(map(is_span, value))
        return [Span(*map(float, item)) for item in self._get(name, "a list of pairs of numbers in order", fits)]


@dataclass(frozen=True)
class Span:
    """Seconds since a step's begin."""

    begin: float
    end: float


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and bool(value[0] <= value[1])


def read_lines(file: str) -> Iterator[Line]:
    """The records of a file; empty lines do not count. Throws ReportError."""
    try:
        with open(file, encoding="utf-8") as stream:
            texts = list(enumerate(stream, 1))
    except UnicodeDecodeError:
        raise ReportError(f"{file}: it is no text in UTF-8, so it cannot hold JSON lines") from None
    except OSError as error:
        raise ReportError(f"{file}: it cannot be read: {error.strerror}") from None
    texts = [(number, text) for number, text in texts if text.strip()]
    if not texts:
        raise ReportError(f"{file}: it is empty, where JSON lines of char_lm or gradwire-bench should be")
    for number, text in texts:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", "nested too deep")
            raise ReportError(
                f"{file}:{number}: this line is no JSON ({why}); was the writer stopped, or is it a log?"
            ) from None
        if not isinstance(fields, dict):
            raise ReportError(
                f"{file}:{number}: this line is no JSON object, as every record of char_lm and gradwire-bench is"
            )
        yield Line(file, number, fields)
