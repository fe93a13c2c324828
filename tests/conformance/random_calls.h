// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random collectives, the same on all ranks, each checked against the oracle.
#pragma once

#include "tests/conformance/conformance.h"

namespace gradwire::testing {

class RandomCalls {
 public:
  // The names of the kinds of calls, for tests that count the kinds.
  static constexpr const char* kKinds[] = {"barrier",    "broadcast",          "all_reduce",     "reduce",
                                           "all_gather", "gather and scatter", "reduce_scatter", "all_to_all"};

  // Calls have up to `largest` elements.
  RandomCalls(RankContext& context, Channel& channel, std::size_t largest)
      : context_(context), channel_(channel), largest_(largest) {}

  // Draws a call from `random`, which must be in the same state on all ranks, makes the call, and expects the oracle's
  // result.
  void call(Random& random) {
    draw(random);
    make();
  }
  // The two parts of call(), for tests that need the kind of the call: an index into kKinds.
  std::size_t draw(Random& random);
  void make();

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(context_.size()); }
  std::size_t own() const { return static_cast<std::size_t>(context_.rank()); }
  bool is_root() const { return context_.rank() == root_; }
  std::vector<Bytes> inputs() const;
  void expect(const Bytes& actual, const Bytes& expected) const;
  void broadcast();
  void all_reduce();
  void reduce();
  void all_gather();
  void gather_and_scatter();
  void reduce_scatter();
  void all_to_all();

  RankContext& context_;
  Channel& channel_;
  const std::size_t largest_;
  std::size_t kind_ = 0;
  DType dtype_ = DType::f32;
  ReduceOp op_;
  std::size_t count_ = 0;
  int root_ = 0;
  std::uint64_t seed_ = 0;
  CallTag tag_;
};

}  // namespace gradwire::testing
