// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank of a contestant: a process or thread that sleeps until the coordinator asks it to measure.
//
// All contestants (gradwire and MPI; Gloo in Python) use the same protocol of lines over a Unix socket. So a contestant
// sleeps, and does not spin, while another one measures:
//   worker       "hello CONTESTANT RANK"
//   coordinator  "measure BYTES ITERATIONS WARM_UP VARIANT TEMPERATURE"      TEMPERATURE hot | cold
//   worker       "samples US US ..." (rank 0), "done" (others), "error TEXT"; "samples" may end with "bytes BYTES"
//   coordinator  "quit"
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace gradwire::bench {

struct Measurement {
  std::size_t bytes = 0;
  int iterations = 0;
  int warm_up = 0;
  std::string variant;  // of the measured work: "in-place", "staged", "alone", ...
  bool cold = false;
};

// The functions of a contestant, which are called on the worker's thread.
struct Subject {
  std::function<void(const Measurement&)> prepare;  // once a measurement
  std::function<void()> refill;                     // before each iteration, not timed
  std::function<void()> barrier;                    // after refill, not timed
  std::function<void()> run;                        // timed
  std::function<std::size_t()> bytes = nullptr;     // that the last run sent or made; for the reply
};

// Returns a subject whose functions are the members of `object` with those names; bytes() where the object has one.
// `object` must outlive the subject.
template <class Object>
Subject subject_of(Object& object) {
  Subject subject;
  subject.prepare = [&object](const Measurement& what) { object.prepare(what); };
  subject.refill = [&object] { object.refill(); };
  subject.barrier = [&object] { object.barrier(); };
  subject.run = [&object] { object.run(); };
  if constexpr (requires { object.bytes(); }) subject.bytes = [&object] { return object.bytes(); };
  return subject;
}

// Pins the calling thread to processor `index` modulo the number of processors.
void pin_to_processor(int index);

// Serves the coordinator at `socket_path` until the coordinator sends "quit" or ends.
void serve(const std::string& socket_path, const std::string& contestant, int rank, const Subject& subject);

}  // namespace gradwire::bench
