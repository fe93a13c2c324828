#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of what gradwire.report reads of gradwire-run --record: the record agrees with what char_lm itself wrote, the page
shows the record, the trace is one by the rules of the Trace Event Format, and files that are no records are refused. The
environment names the build folder: GRADWIRE_BUILD."""

import dataclasses
import io
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import unittest
from xml.etree import ElementTree

from test_report import BUILD, ROOT, ReportTest, command, records

sys.path.insert(0, str(ROOT / "python" / "gradwire"))

from report import choice_sections, chrome_trace, job_pictures, matched_steps, record_sections, recorded  # noqa: E402

RANKS = 3
STEPS = 12


def record(folder, name, *options, steps=STEPS, ranks=RANKS, launch=()):
    """A short run whose ranks record; returns the folder of the record and the lines of --json."""
    target, lines = folder / name, folder / f"{name}.jsonl"
    text = folder / "text"
    text.write_text("".join(f"{i} green bottles hang on wall number {i % 7}.\n" for i in range(400)))
    done = subprocess.run(
        [BUILD / "bin" / "gradwire-run", "-n", str(ranks), *launch, "--record", target, BUILD / "bin" / "char_lm", "--text", text,
         "--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch", str(4 * RANKS), "--threads", "1",
         "--generate", "0", "--eval-batches", "1", "--log-every", "1", "--bucket-cap-mb", "0.01", "--steps", str(steps),
         "--json", lines, *options],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target, records(lines)


def trace_of(ranks):
    return json.loads("".join(chrome_trace.pieces_of_trace(ranks)))


class Recorded(ReportTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.target, cls.lines = record(cls.folder, "job", "--hook", "fp16_compress")
        cls.ranks = recorded.read_folder(str(cls.target))

    def of_type(self, kind):
        return [line for line in self.lines if line["type"] == kind]

    def test_every_rank_has_every_step_bucket_and_collective(self):
        self.assertEqual([rank.rank for rank in self.ranks], list(range(RANKS)))
        for rank in self.ranks:
            self.assertEqual((rank.world, rank.total.steps, rank.lost), (RANKS, STEPS, 0))
            self.assertEqual([event.step for event in rank.of_kind(recorded.STEP)], list(range(STEPS)))
            self.assertEqual(rank.hooks, ["fp16_compress"])
            self.assertEqual(sum(row.steps for row in rank.course), STEPS)
            for step, timeline in enumerate(self.of_type("timeline")):
                buckets = [event for event in rank.of_kind(recorded.BUCKET) if event.step == step]
                self.assertEqual(sorted(event.bytes for event in buckets),
                                 sorted(bucket["bytes"] for bucket in timeline["buckets"]))
                calls = [event for event in rank.of_kind(recorded.CALL) if event.step == step and event.bucket is not None]
                self.assertEqual([call.name for call in calls], ["all_reduce"] * len(buckets))
                # fp16 halves what is sent.
                self.assertEqual(sum(2 * call.bytes for call in calls), sum(event.bytes for event in buckets))

    def test_times_are_those_that_the_program_wrote(self):
        rank = self.ranks[0]
        for event, timeline in zip(rank.of_kind(recorded.STEP), self.of_type("timeline")):
            forward, backward, wait, end = (time - event.begin for time in event.times)
            self.assertAlmostEqual(event.end - event.begin, timeline["seconds"], 8)
            self.assertAlmostEqual(forward, timeline["forward"][0], 8)
            self.assertAlmostEqual(backward, timeline["backward"][0], 8)
            self.assertAlmostEqual(wait, timeline["wait"][0], 8)
            self.assertAlmostEqual(end, timeline["optimizer"][0], 8)
        for step, row in zip(self.of_type("step"), rank.course):
            for part, value in step["split_seconds"].items():
                self.assertAlmostEqual(getattr(record_sections.split_of(row), part), value, 8)
            self.assertEqual(row.sent, step["bytes_per_step"])
            self.assertAlmostEqual(row.loss, step["loss"], 12)
        # The rest has what comes before the forward pass too.
        self.assertAlmostEqual(rank.total.forward + rank.total.backward + rank.total.wait + rank.total.rest, rank.total.whole, 6)

    def test_page_shows_the_job(self):
        page = self.page(self.target)
        job = page.one(id="job")
        rows = [row.words() for row in job.all("tr")][1:]
        self.assertEqual([row.split()[:2] for row in rows], [["rank", str(rank)] for rank in range(RANKS)])
        for rank, row in zip(self.ranks, rows):
            self.assertIn(f"{rank.total.loss:.4f}", row)
        for name in ("verdict", "time", "loss", "bytes", "collectives", "hooks", "last-step", "buckets-0", "buckets-2"):
            page.one("section", id=name)
        pieces = page.one(id="time").all(class_="piece")
        shown = [float(piece.attributes["data-value"]) for piece in pieces]
        expected = [value for rank in self.ranks for value in (
            rank.total.compute / STEPS, rank.total.communication / STEPS, rank.total.hook_wait / STEPS)]
        self.assertEqual(shown, expected)
        self.assertEqual(len(page.one(id="last-step").all(class_="gantt-track")), RANKS)

    def test_steps_per_second_count_what_lies_between_steps(self):
        folder = self.folder / "pauses"
        folder.mkdir()
        for number in range(RANKS):
            whole = bytearray((self.target / f"rank-{number}.record").read_bytes())
            begin = struct.unpack_from("<Q", whole, 128 + 16)[0]
            struct.pack_into("<Q", whole, 128 + 24, begin + 8 * 10**9)  # the last step ends 8 s after the first one began
            (folder / f"rank-{number}.record").write_bytes(whole)
        heads, *rows = self.page(folder).one(id="job").all("tr")
        column = [cell.words() for cell in heads.all("th")].index("steps/s")
        for row in rows:
            self.assertEqual((row.all("th") + row.all("td"))[column].words(), f"{STEPS / 8:.2f}")

    def test_trace_keeps_the_rules_of_its_format(self):
        file = self.folder / "trace.json"
        done = command(self.target, "-o", self.folder / "page.html", "--trace", file)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        trace = json.loads(file.read_text(), parse_constant=lambda word: self.fail(f"{word} is no JSON"))
        self.assertEqual(problems_of(trace), [])
        events = trace["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, {rank + 1 for rank in range(RANKS)})
        steps = [event for event in events if event.get("cat") == "step"]
        self.assertEqual(len(steps), RANKS * STEPS)
        buckets = [event for event in events if event.get("cat") == "bucket" and event["ph"] == "X"]
        self.assertEqual(len(buckets), sum(len(rank.of_kind(recorded.BUCKET)) for rank in self.ranks))
        self.assertTrue(any(event["name"] == "all_reduce" and "bucket" in event["args"] for event in events))
        # On one clock, a step of one rank overlaps the same step of all others: they wait for each other in it.
        for step in range(1, STEPS):
            spans = [(event["ts"], event["ts"] + event["dur"]) for event in steps if event["args"]["step"] == step]
            self.assertLess(max(begin for begin, _ in spans), min(end for _, end in spans))

    def test_without_lanes_the_trace_keeps_them_too(self):
        target, _ = record(self.folder, "here", "--lanes", "0", "--hook", "power_sgd:start=2,min_rate=1")
        self.assertEqual(problems_of(trace_of(recorded.read_folder(str(target)))), [])

    def test_what_is_no_record(self):
        def refused(*parts):
            done = command(self.folder / "bad", "-o", self.folder / "page.html")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            for part in parts:
                self.assertIn(part, done.stderr)

        bad = self.folder / "bad"
        bad.mkdir()
        refused("bad", "no rank-K.record", "--record")
        whole = (self.target / "rank-0.record").read_bytes()
        (bad / "rank-0.record").write_bytes(whole[:1000])
        refused("rank-0.record", "1000 bytes")
        (bad / "rank-0.record").write_bytes(bytes(len(whole)))
        refused("rank-0.record", "no record yet: its rank ended before it had begun to write")
        (bad / "rank-0.record").write_bytes(b"no magic" + whole[8:])
        refused("rank-0.record", "it is no record\n")
        for newer in (b"GRWREC02" + whole[8:], b"GRWREC10" + whole[8:] + bytes(4096)):
            (bad / "rank-0.record").write_bytes(newer)
            refused("rank-0.record", f"another version of gradwire wrote it ({newer[:8].decode()})")
        # Any bytes after the magic: a page, or a sentence.
        for seed in range(20):
            noise = bytearray(whole)
            for i in range(200):
                noise[40 + (seed * 7919 + i * 104729) % (len(whole) - 40)] ^= 255
            (bad / "rank-0.record").write_bytes(noise)
            self.assertEqual(len(recorded.read_folder(str(bad))), 1)

    def test_files_of_an_earlier_larger_job_are_left_out(self):
        mixed = self.folder / "mixed"
        mixed.mkdir()
        for number in range(RANKS):
            whole = bytearray((self.target / f"rank-{number}.record").read_bytes())
            if number < 2:  # a later job of two ranks
                struct.pack_into("<2Q", whole, 16, number << 32 | 2, struct.unpack_from("<Q", whole, 24)[0])
                struct.pack_into("<Q", whole, 32, struct.unpack_from("<Q", whole, 32)[0] + 10**12)
                struct.pack_into("<Q", whole, 120, 77)
            (mixed / f"rank-{number}.record").write_bytes(whole)
        self.assertEqual([rank.rank for rank in recorded.read_folder(str(mixed))], [0, 1])

    def test_files_of_an_earlier_larger_run_with_the_same_job_id_are_left_out(self):
        for ranks in (RANKS, RANKS - 1):
            target, _ = record(self.folder, "night", steps=1, ranks=ranks, launch=("--job-id", "night"))
            self.assertEqual(len(recorded.read_folder(str(target))), ranks)

    def test_ranks_of_a_host_that_joined_the_job_are_shown_also_where_a_process_of_the_first_host_is_the_newest(self):
        shared = self.folder / "shared"
        shared.mkdir()
        for number in range(RANKS):
            whole = bytearray((self.target / f"rank-{number}.record").read_bytes())
            self.assertNotEqual(struct.unpack_from("<Q", whole, 120)[0], 0, "gradwire-run says which job it is")
            if number == 0:  # began later, and knows of no other host
                struct.pack_into("<Q", whole, 16, 1)
                struct.pack_into("<Q", whole, 32, struct.unpack_from("<Q", whole, 32)[0] + 10**12)
            (shared / f"rank-{number}.record").write_bytes(whole)
        self.assertEqual([rank.rank for rank in recorded.read_folder(str(shared))], list(range(RANKS)))

    def test_a_record_that_ends_before_another_begins_may_be_of_an_earlier_job(self):
        note = "may be of an earlier job"
        self.assertNotIn(note, self.page(self.target).one(id="job").words())
        folder = self.folder / "two-jobs"
        folder.mkdir()
        for number in range(RANKS):
            whole = bytearray((self.target / f"rank-{number}.record").read_bytes())
            if number == 1:  # the clock of the same host, two hours before
                struct.pack_into("<Q", whole, 32, struct.unpack_from("<Q", whole, 32)[0] - 7200 * 10**9)
            (folder / f"rank-{number}.record").write_bytes(whole)
        words = self.page(folder).one(id="job").words()
        self.assertEqual(words.count(note), 1, words)
        self.assertRegex(words, r"The record of rank 1 ends [0-9.]+ .* before that of rank [02] begins: it may be of an earlier job")

    def test_a_job_that_was_killed_before_its_first_step(self):
        folder = self.folder / "killed"
        folder.mkdir()
        head = (self.target / "rank-0.record").read_bytes()[:recorded.HEADER]
        whole = bytearray(head + bytes(recorded.FILE_BYTES - recorded.HEADER))
        whole[40:128] = bytes(88)
        whole[128:256] = bytes(120) + struct.pack("<Q", recorded.NO_LOSS)
        (folder / "rank-0.record").write_bytes(whole)
        (folder / "rank-1.record").write_bytes(bytes(len(whole)))
        words = self.page(folder).words()
        self.assertIn("No step was recorded: the job ended before its first one", words)
        self.assertIn("of which 2 ranks left no record", words)

    def with_losses(self, name, word_of):
        """The job's record, with the words of losses that `word_of` returns for a step."""
        folder = self.folder / name
        folder.mkdir()
        for number in range(RANKS):
            whole = bytearray((self.target / f"rank-{number}.record").read_bytes())
            course = recorded.HEADER + struct.unpack_from("<Q", whole, 96)[0] * recorded.ROWS * recorded.ROW_BYTES
            for step in range(STEPS):
                struct.pack_into("<Q", whole, course + step * recorded.ROW_BYTES + 120, word_of(step))
            struct.pack_into("<Q", whole, 128 + 120, word_of(STEPS - 1))
            (folder / f"rank-{number}.record").write_bytes(whole)
        return folder

    def test_a_loss_that_is_not_finite_is_said_to_be_so(self):
        finite, nan = struct.unpack("<Q", struct.pack("<d", 2.5))[0], recorded.NO_LOSS + 1
        page = self.page(self.with_losses("diverged", lambda step: finite if step < 6 else nan))
        part = page.one("section", id="loss")
        self.assertIn("Rank 0: the loss was not finite, the first time in step 6.", part.words())
        self.assertEqual(len(part.all("circle")), 2 * RANKS * 6, "dots for a desk and for a phone")
        self.assertIn("not finite", page.one(id="job").all("tr")[1].words())
        page = self.page(self.with_losses("never", lambda step: nan))
        self.assertIn("No value is finite.", page.one("section", id="loss").words())
        page = self.page(self.with_losses("untold", lambda step: recorded.NO_LOSS))
        self.assertEqual(page.all("section", id="loss"), [])

    def test_steps_of_a_process_that_came_later_are_matched_by_time(self):
        def shifted(name, seconds):
            """The job as if rank 0's process had replaced another: it counts 4 steps more, or has run at another time."""
            folder = self.folder / name
            folder.mkdir()
            for number in range(RANKS):
                # All have the times of rank 0: on a busy machine, ranks do a step one after another.
                whole = bytearray((self.target / "rank-0.record").read_bytes())
                struct.pack_into("<Q", whole, 16, number << 32 | RANKS)
                begin = recorded.HEADER + 2 * recorded.ROWS * recorded.ROW_BYTES
                for place in range(recorded.RECORDS if number == 0 else 0):
                    at = begin + place * recorded.RECORD_BYTES
                    words = list(struct.unpack_from("<12Q", whole, at))
                    if not words[0]:
                        continue
                    words[4] += 4
                    times = (2, 3, 8, 9, 10, 11) if words[1] & 0xFF == recorded.STEP else (2, 3)
                    for word in times:
                        words[word] += seconds * 10**9 if words[word] else 0
                    struct.pack_into("<12Q", whole, at, *words)
                (folder / f"rank-{number}.record").write_bytes(whole)
            return folder

        folder = shifted("replaced", 0)
        part = self.page(folder).one(id="last-step")
        self.assertIn(f"Step {STEPS + 3} of rank 0, {STEPS - 1} of rank 1, {STEPS - 1} of rank 2: matched by time", part.words())
        last = matched_steps.matched_steps(recorded.read_folder(str(folder)))[-1]
        self.assertLess(max(event.begin for event in last), min(event.end for event in last))
        self.assertEqual([event.step for event in last], [STEPS + 3, STEPS - 1, STEPS - 1])
        part = self.page(shifted("apart", 10000)).one(id="last-step")
        self.assertIn("Left out: the records have no step that all ranks made at one moment.", part.words())

    def test_trace_needs_one_job(self):
        done = command(self.folder / "job.jsonl", "-o", self.folder / "page.html", "--trace", self.folder / "none.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--trace", done.stderr)
        self.assertFalse((self.folder / "none.json").exists())


class Choices(ReportTest):
    """The hook "auto" in the record and on the page."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        target, _ = record(cls.folder, "auto", "--hook", "auto", steps=60)
        cls.target, cls.ranks = target, recorded.read_folder(str(target))

    def test_all_ranks_record_the_same_decisions(self):
        choices = self.ranks[0].choices
        for rank in self.ranks[1:]:
            self.assertEqual(rank.choices, choices)
        measured = [choice for choice in choices if choice.kind == recorded.HOOK_MEASURED]
        self.assertEqual({choice.hook for choice in measured}, {"allreduce", "bf16_compress", "int8"})
        self.assertTrue(all(choice.cost > 0 for choice in measured))
        self.assertEqual([choice.iteration for choice in measured], sorted(choice.iteration for choice in measured))
        shapes = {(choice.cap_bytes, choice.lanes) for choice in choices if choice.kind == recorded.SHAPE_MEASURED}
        self.assertEqual(shapes, {(0, 0), (0, 2)}, "the program gives the buckets, and only lanes are free")
        decisions = [choice for choice in choices if choice.kind == recorded.CHOSEN]
        self.assertGreaterEqual(len(decisions), 2, "the hook, and the lanes")
        self.assertLessEqual(decisions[1].iteration, 50)

    def test_page_draws_what_was_tried_and_chosen(self):
        part = self.page(self.target).one("section", id="choices")
        choices = self.ranks[0].choices
        measured = [choice for choice in choices if choice.kind != recorded.CHOSEN]
        dots = part.all("circle")
        self.assertEqual(len(dots), 2 * len(measured), "for a desk and for a phone")
        titles = [dot.words() for dot in dots]
        for choice in measured:
            name = choice.hook if choice.kind == recorded.HOOK_MEASURED else choice_sections.shape_text(choice)
            self.assertTrue(any(title.startswith(f"{name}:") and title.endswith(f"step {choice.iteration}") for title in titles))
        decisions = [choice for choice in choices if choice.kind == recorded.CHOSEN]
        rows = [line.words() for line in part.one("table").all("tr")][1:]
        self.assertEqual(len(rows), len(decisions))
        for line, choice in zip(rows, decisions):
            self.assertTrue(line.startswith(f"{choice.iteration} {choice.hook}"), line)
        for name in ("allreduce", "bf16_compress", "int8"):
            self.assertIn(name, rows[0])
        self.assertGreaterEqual(len(part.all(class_="mark")), 2)

    def test_trace_marks_the_decisions(self):
        trace = trace_of(self.ranks)
        self.assertEqual(problems_of(trace), [])
        marks = [event for event in trace["traceEvents"] if event.get("cat") == "choice"]
        chosen = [choice for choice in self.ranks[0].choices if choice.kind == recorded.CHOSEN]
        self.assertEqual(len(marks), RANKS * len(chosen))
        steps = {(event["pid"], event["args"]["step"]): event for event in trace["traceEvents"] if event.get("cat") == "step"}
        for mark in marks:  # a decision is made at the end of the step before the first with the choice
            before = steps[mark["pid"], mark["args"]["from step"] - 1]
            self.assertLessEqual(before["ts"], mark["ts"])
            self.assertLessEqual(mark["ts"], before["ts"] + before["dur"])

    def test_a_job_without_auto_has_no_such_section(self):
        made = self.page(record(self.folder, "plain")[0])
        self.assertEqual(made.all("section", id="choices"), [])

    def test_pictures_of_the_job(self):
        pictures = self.folder / "pictures"
        done = command(self.target, "-o", self.folder / "page.html", "--pictures", pictures)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual({file.name for file in pictures.iterdir()}, {"step.svg", "time.svg", "choices.svg"})
        words = {file.stem: " ".join(drawing_of(self, file).itertext()) for file in pictures.iterdir()}
        for number in range(RANKS):
            self.assertIn(f"rank {number}", words["step"])
            self.assertIn(f"rank {number}", words["time"])
        self.assertIn("bucket 0", words["step"])
        self.assertIn(record_sections.verdict(self.ranks)[0], " ".join(words["time"].split()))
        for choice in self.ranks[0].choices:
            if choice.kind == recorded.CHOSEN:
                self.assertIn(f"Chosen from step {choice.iteration} on: {choice_sections.choice_text(choice)}.", words["choices"])
        done = command(self.target, self.target, "-o", self.folder / "page.html", "--pictures", pictures)
        self.assertEqual(done.returncode, 2)
        self.assertIn("one recorded job", done.stderr)

    def test_texts_of_shapes(self):
        def text(cap, lanes):
            return choice_sections.shape_text(recorded.Choice(recorded.CHOSEN, 1, "int8", cap, lanes, 0))

        self.assertEqual(text(0, 0), "own buckets")
        self.assertEqual(text(2 << 20, 4), "buckets of 2 MiB, 4 lanes")
        self.assertEqual(text(1 << 40, 1), "one bucket, 1 lane")


def row(compute, communication, steps=10):
    """All that is computed is the rest of the step."""
    whole = compute + communication
    return recorded.Row(0, steps, 0, 1, whole, 0, 0, communication, compute, compute, communication, 0, 0, 0, 0, None)


def rank(number, compute, communication):
    return recorded.RankRecord("", number, 3, 1, "h", "p", 0, 0, "rest", 0, row(compute, communication), [], [], 0)


class Verdict(unittest.TestCase):
    def test_the_rank_that_the_others_wait_for_is_named(self):
        said = record_sections.verdict([rank(0, 1.0, 2.0), rank(1, 3.0, 0.0), rank(2, 1.0, 2.0)])
        self.assertEqual(len(said), 2)
        self.assertIn("Rank 1 computes 3.00 times as long", said[1])
        self.assertIn("the rest of the step", said[1])
        self.assertIn("55.6% is computing", said[0])
        self.assertIn("44.4% is waiting", said[0])

    def test_a_slow_rank_is_in_the_picture_of_many(self):
        ranks = [rank(number, 2.0 if number == 11 else 1.0, 1.0) for number in range(12)]
        words = " ".join(job_pictures.draw_time(ranks).split())
        for expected in (*record_sections.verdict(ranks), "rank 11", "4 more ranks are not shown."):
            self.assertIn(expected, " ".join(ElementTree.fromstring(words).itertext()))

    def test_without_buckets_nothing_is_said_of_them(self):
        others = [rank(0, 1.0, 1.0), rank(1, 1.0, 1.0)]
        for each in others:
            # A step of 2 s, and a collective in it.
            times = (10.0, 10.5, 11.0, 11.5)
            each.events = [
                recorded.Event(recorded.CALL, 10.6, 10.7, 9, None, -1, 1, "all_reduce", 4000, 3000, ()),
                recorded.Event(recorded.STEP, 10.0, 12.0, 9, None, -1, 1, "", 0, 0, times),
            ]
            # Of a step that is not whole, and before the step.
            each.events.insert(0, dataclasses.replace(each.events[0], step=8, sent=50))
            each.events.insert(1, dataclasses.replace(each.events[1], begin=9.8, end=9.9, sent=50))
        with_buckets = [dataclasses.replace(each, total=dataclasses.replace(each.total, hook=1.0, sent=70)) for each in others]
        for ranks, known in ((others, False), (with_buckets, True)):
            main = ElementTree.Element("main")
            record_sections.add_record_sections(main, "job", ranks)
            page = " ".join(text for part in main.iter() for text in (part.text, part.get("title")) if text)
            step, time = (draw(ranks) for draw in (job_pictures.draw_step, job_pictures.draw_time))
            note = "PyTorch's DistributedDataParallel tells of no buckets and hooks, and that of gradwire has none where it has one rank alone."
            for text in (page, " ".join(ElementTree.fromstring(step).itertext())):
                self.assertEqual(note in text, not known)
                self.assertEqual("waiting for averages" in text, not known)
                self.assertEqual("waiting for buckets" in text, known)
            self.assertEqual("7 B" in page, known)
            self.assertEqual("3 kB, mean of the last 1 step" in page, not known)
            for text in (page, time):
                self.assertEqual("the rest of averaging" in text, known)
            self.assertNotIn("its buckets", step)
            self.assertNotIn("on its way", step)
            self.assertEqual(record_sections.facts_of(ranks[0])[9:11], ["100 ms", "7 B"] if known else ["-", "-"])
            (traced,) = [each for each in trace_of(ranks[:1])["traceEvents"] if each.get("cat") == "step"]
            self.assertEqual("sent" in traced["args"], known)

    def test_no_phase_is_named_where_none_is_longer(self):
        slow, other = rank(0, 3.0, 0.0), rank(1, 1.0, 0.0)
        same = [dataclasses.replace(each, total=dataclasses.replace(each.total, rest=1.0)) for each in (slow, other)]
        self.assertTrue(record_sections.verdict(same)[1].endswith("the others wait for it."))

    def test_nobody_is_named_where_all_are_alike(self):
        self.assertEqual(len(record_sections.verdict([rank(0, 1.0, 0.1), rank(1, 1.05, 0.05)])), 1)
        self.assertEqual(len(record_sections.verdict([rank(0, 1.0, 0.0)])), 1)


def event(kind, begin, thread, bucket=None, lane=-1, name="all_reduce"):
    times = (begin, begin + 0.5) if kind == recorded.BUCKET else (0.0,) * 4
    return recorded.Event(kind, begin, begin + 1, 0, bucket, lane, thread, name, 8, 8, times)


class RowsOfATrace(unittest.TestCase):
    """Each thread has a row of its own, whatever the kernel calls it: in a container thread ids are as small as rows."""

    def setUp(self):
        main, helper, lane, other_lane = 1, 3, 7, 2
        events = [
            # Two DistributedDataParallel: each has a lane 0, with a bucket 0.
            event(recorded.CALL, 1, lane, bucket=0, lane=0), event(recorded.BUCKET, 1, lane, 0, 0, "of the first"),
            event(recorded.CALL, 1, other_lane, bucket=0, lane=0), event(recorded.BUCKET, 1, other_lane, 0, 0, "of the second"),
            event(recorded.BUCKET, 1.25, main, bucket=1, name="without a lane"),
            event(recorded.CALL, 1, helper, name="broadcast"),
            event(recorded.CALL, 3, main, name="barrier"),
            event(recorded.STEP, 0, main),
        ]  # fmt: skip
        self.trace = trace_of([dataclasses.replace(rank(0, 1.0, 0.0), events=events)])
        self.names = {event["tid"]: event["args"]["name"] for event in self.trace["traceEvents"] if event["name"] == "thread_name"}

    def row_of(self, name):
        [row] = {event["tid"] for event in self.trace["traceEvents"] if event["ph"] == "X" and event["name"].endswith(name)}
        return row

    def test_no_two_threads_share_a_row(self):
        self.assertEqual(sorted(self.names.values()), ["lane 0", "lane 0", "thread 3", "training thread"])
        self.assertEqual(problems_of(self.trace), [])

    def test_events_are_on_the_row_of_their_thread(self):
        lanes = [self.row_of("of the first"), self.row_of("of the second")]
        self.assertEqual([self.names[row] for row in lanes], ["lane 0", "lane 0"])
        self.assertNotEqual(*lanes)
        self.assertEqual(self.names[self.row_of("broadcast")], "thread 3")
        for name in ("without a lane", "barrier", "step 0"):
            self.assertEqual(self.names[self.row_of(name)], "training thread", name)
        calls = [event["tid"] for event in self.trace["traceEvents"] if event["ph"] == "X" and event["name"] == "all_reduce"]
        self.assertEqual(sorted(calls), sorted(lanes))


def drawing_of(test, file):
    """The SVG, in which nothing is outside."""
    svg = ElementTree.parse(file).getroot()
    width, height = (float(number) for number in svg.get("viewBox").split()[2:])
    for box in svg.iter("{http://www.w3.org/2000/svg}rect"):
        if box.get("class") != "page":
            test.assertLessEqual(float(box.get("x")) + float(box.get("width")), width, file)
            test.assertLessEqual(float(box.get("y")) + float(box.get("height")), height, file)
    for text in svg.iter("{http://www.w3.org/2000/svg}text"):
        test.assertLess(float(text.get("y")), height, file)
    return svg


class LastCalls(ReportTest):
    """A folder of --flight-dir: rank 1 of 2 has not come to the call in which rank 0 is."""

    def setUp(self):
        self.target = self.folder / self.id()
        self.target.mkdir()

    def write_rank(self, number, process, *calls, run="", version=1, world=2):
        lines = [{"type": "rank", "version": version, "rank": number, "world": world, "run": run, "wall_offset": 10**18,
                  "process": process},
                 {"type": "group", "path": "default"}]
        for begin, end, outcome, *more in calls:
            lines.append({"type": "call", "operation": "all_reduce", "count": 1024, "dtype": "f32", "group": "default",
                          "line": "train.py:41 (main)", "called": begin, "ended": end, "outcome": outcome}
                         | (more[0] if more else {}))
        (self.target / f"rank-{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def test_page_and_picture_show_who_is_in_a_call(self):
        self.write_rank(0, {"state": "S", "system_call": "futex"}, (10**6, 2 * 10**6, "good"), (3 * 10**6, 0, "none"))
        self.write_rank(1, {"state": "T"}, (10**6, 2 * 10**6, "good"), (2 * 10**6, 25 * 10**5, "peer"))
        done = command(self.target, "-o", self.folder / "page.html", "--pictures", self.folder / "hang")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        part = self.page(self.target).one("section", id="calls")
        said = "rank 0 is in all_reduce(1024 f32) at train.py:41 (main)."
        self.assertIn(said, part.words())
        self.assertEqual([label.words() for label in part.all(class_="gantt-label")][1:],
                         ["rank 0: waits in futex()", "rank 1: stopped"])
        self.assertEqual(len(part.all(class_="block")), 4)
        svg = drawing_of(self, self.folder / "hang" / "hang.svg")
        words = " ".join(svg.itertext())
        other = "rank 1 is in no call; the last was all_reduce(1024 f32) at train.py:41 (main)."
        for expected in (said, other, "has not ended", "500 µs, peer", "rank 1: stopped"):
            self.assertIn(expected, words)

    def test_a_call_under_way_is_shown_however_many_calls_others_made_since(self):
        self.write_rank(0, {"state": "S", "system_call": "futex"}, (10**6, 0, "none"))
        later = [(step * 10**6, step * 10**6 + 10, "good") for step in range(2, 40)]
        self.write_rank(1, {"state": "T"}, *later)
        done = command(self.target, "-o", self.folder / "page.html", "--pictures", self.folder / "hang")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        said = "rank 0 is in all_reduce(1024 f32) at train.py:41 (main)."
        self.assertIn(said, self.page(self.target).one("section", id="calls").words())
        self.assertIn(said, " ".join(drawing_of(self, self.folder / "hang" / "hang.svg").itertext()))

    def test_a_rank_is_in_the_call_that_it_waits_for(self):
        early = {"operation": "recv", "waited": "no", "line": "train.py:17"}
        self.write_rank(0, {"state": "R"}, (10**6, 0, "none", early))
        barrier = {"operation": "barrier", "count": 0, "dtype": "", "waited": "yes"}
        self.write_rank(1, {"state": "S"}, (10**6, 0, "none", early), (2 * 10**6, 0, "none", barrier))
        part = self.page(self.target).one("section", id="calls")
        self.assertIn("rank 0: recv(1024 f32) at train.py:17 is under way, and no thread waits for it.", part.words())
        self.assertIn("rank 1 is in barrier at train.py:41 (main).", part.words())

    def test_messages_are_named_with_their_partner_and_their_tag(self):
        tagged = {"operation": "recv", "root": 1, "message_tag": 3, "waited": "yes"}
        default = {"operation": "send", "root": 0, "message_tag": 0, "waited": "yes"}
        self.write_rank(0, {"state": "S"}, (10**6, 0, "none", tagged))
        self.write_rank(1, {"state": "S"}, (10**6, 0, "none", default))
        words = self.page(self.target).one("section", id="calls").words()
        self.assertIn("rank 0 is in recv(1024 f32, rank 1, tag 3) at train.py:41 (main).", words)
        self.assertIn("rank 1 is in send(1024 f32, rank 0) at train.py:41 (main).", words)

    def test_the_picture_of_many_ranks_has_those_that_are_unlike_the_others(self):
        for number in range(12):
            self.write_rank(number, {"state": "S"}, (10**6, 2 * 10**6, "good"), (3 * 10**6, 0, "none"), world=12)
        self.write_rank(10, {"state": "T"}, (10**6, 2 * 10**6, "good"), world=12)
        done = command(self.target, "-o", self.folder / "page.html", "--pictures", self.folder / "hang")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        words = " ".join(drawing_of(self, self.folder / "hang" / "hang.svg").itertext())
        self.assertIn("rank 10: stopped", words)
        self.assertIn("rank 10 is in no call", words)
        self.assertIn("4 more ranks are not shown.", words)

    def test_ranks_that_the_last_job_did_not_have_are_left_out(self):
        for number in range(3):
            self.write_rank(number, {"state": "T"}, (10**6, 2 * 10**6, "good"))
        os.utime(self.target / "rank-2.jsonl", (1, 1))  # of an earlier job with three ranks
        labels = [label.words() for label in self.page(self.target).one("section", id="calls").all(class_="gantt-label")]
        self.assertEqual(labels[1:], ["rank 0: stopped", "rank 1: stopped"])

    def test_ranks_of_a_host_that_joined_the_job_are_shown(self):
        for number in range(3):
            self.write_rank(number, {"state": "T"}, (10**6, 2 * 10**6, "good"), run="one")
        os.utime(self.target / "rank-2.jsonl", (1, 1))  # the launcher of rank 0 knows of two ranks
        labels = [label.words() for label in self.page(self.target).one("section", id="calls").all(class_="gantt-label")]
        self.assertEqual(labels[1:], ["rank 0: stopped", "rank 1: stopped", "rank 2: stopped"])

    def test_a_rank_that_made_no_call(self):
        self.write_rank(0, {"has_ended": True, "code": 3})
        self.assertIn("No rank has made a call", self.page(self.target).one("section", id="calls").words())

    def test_what_is_no_such_folder(self):
        (self.target / "rank-0.jsonl").write_text(json.dumps({"type": "group"}) + "\n")
        done = command(self.target, "-o", self.folder / "page.html")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no line says which rank", done.stderr)
        (self.target / "rank-0.jsonl").write_text(json.dumps({"type": "call"}) + "\n")
        done = command(self.target, "-o", self.folder / "page.html")
        self.assertEqual(done.returncode, 2)
        self.assertIn("rank-0.jsonl:1", done.stderr)
        self.write_rank(0, {}, version=2)
        done = command(self.target, "-o", self.folder / "page.html")
        self.assertEqual(done.returncode, 2)
        self.assertIn("rank-0.jsonl:1: another version of gradwire wrote it", done.stderr)


class Changing:
    """A file of which each look shows the next of `versions`."""

    def __init__(self, versions):
        self.versions, self.reads = list(versions), 0

    def look(self):
        return bytes(recorded.VERSION) + (self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]).to_bytes(8, "little")

    def read_bytes(self):
        self.reads += 1
        return self.look()

    def open(self, _mode):
        return io.BytesIO(self.look())


class Format(unittest.TestCase):
    def test_sums_are_read_again_until_they_belong_together(self):
        for versions, reads in (([4, 4], 1), ([3, 3, 4, 6, 6, 6], 3), ([4, 5, 6, 6], 2), ([7], recorded.ATTEMPTS)):
            file = Changing(versions)
            data = recorded.bytes_of(file)
            self.assertEqual((file.reads, recorded.version_in(data)), (reads, versions[-1]), versions)

    def test_records_that_are_being_written_are_left_out(self):
        data = bytearray(recorded.FILE_BYTES)
        begin = recorded.HEADER + 2 * recorded.ROWS * recorded.ROW_BYTES
        # Place 1 holds ticket 32769, place 2 is being written, and place 3 has the number of another place.
        for place, state in ((1, recorded.RECORDS + 2), (2, 0), (3, 9)):
            struct.pack_into("<12Q", data, begin + place * recorded.RECORD_BYTES, state, recorded.WAIT, *([7] * 10))
        events = recorded.whole_records(bytes(data))
        self.assertEqual([event[1] for event in events], [recorded.WAIT])


# --- the Trace Event Format, by its documentation --------------------------------------------------------------------


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def problem_of(event):
    """What is wrong with one event, or nothing."""
    for name, kind in (("ph", str), ("name", str), ("pid", int), ("tid", int), ("args", dict)):
        if not isinstance(event.get(name), kind):
            return f"'{name}' is no {kind.__name__}"
    if not isinstance(event.get("cat", ""), str):
        return "'cat' is no text"
    kind, facts = event["ph"], event["args"]
    if kind == "M":
        wanted = {"process_name": ("name", str), "thread_name": ("name", str), "process_sort_index": ("sort_index", int)}
        name, of = wanted.get(event["name"], ("", str))
        return None if isinstance(facts.get(name), of) else "a metadata event of a kind that is not known"
    if not is_number(event.get("ts")) or event["ts"] < 0:
        return "'ts' is no time"
    if kind == "X":
        return None if is_number(event.get("dur")) and event["dur"] >= 0 else "'dur' is no duration"
    if kind == "i":
        return None if event.get("s") in ("g", "p", "t") else "'s' is no scope"
    if kind == "C":
        return None if facts and all(map(is_number, facts.values())) else "a counter without numbers"
    return f"'{kind}' is no type that we write"


def nanoseconds(microseconds):
    """As Perfetto reads a time."""
    return math.floor(1000 * microseconds)


def problems_of(trace):
    if not isinstance(trace, dict) or trace.get("displayTimeUnit") not in ("ms", "ns"):
        return ["not the object form of the format"]
    found = [f"{problem}: {event}" for event in trace["traceEvents"] if (problem := problem_of(event))]
    if found:
        return found
    # Complete events of a thread lie within each other, or apart.
    threads = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in threads.values():
        open_ends = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            begin = nanoseconds(event["ts"])
            while open_ends and open_ends[-1][0] <= begin:
                open_ends.pop()
            end = begin + nanoseconds(event["dur"])
            if open_ends and end > open_ends[-1][0]:
                found.append(f"{event} ends after {open_ends[-1][1]}, in which it began")
            open_ends.append((end, event))
    return found


class Rules(unittest.TestCase):
    """The rules above can fail."""

    def test_they_refuse_what_is_wrong(self):
        def event(**changes):
            made = {"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 0.0, "dur": 2.0, "args": {}}
            return {**made, **changes}

        def problems(*events):
            return problems_of({"displayTimeUnit": "ms", "traceEvents": list(events)})

        self.assertEqual(problems(event(), event(ts=1.0, dur=1.0), event(ts=3.0)), [])
        for wrong in (event(ph="Q"), event(dur=-1.0), event(ts=None), event(pid="0"), event(ph="C"), event(ph="i"),
                      event(ph="M"), event(ts=float("inf"))):
            self.assertEqual(len(problems(wrong)), 1, wrong)
        self.assertEqual(len(problems(event(), event(ts=1.0))), 1)
        self.assertEqual(len(problems(event(), event(ts=1.0, dur=1.0015))), 1)
        self.assertEqual(len(problems_of([])), 1)


if __name__ == "__main__":
    unittest.main()
