// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench codecs: measures how fast codecs encode and decode on one core, in multiples of memcpy of the same
// values, and PyTorch's operators for the same work in the same run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::bench {

// "power_sgd:rank=R" means PowerSGD's matrix products, which are measured like a codec: encoding computes P = M Q and
// Q = M^T P of matrices of 1024 x 1024, decoding computes M = P Q^T, and a step computes all three.
inline constexpr const char* kProducts = "power_sgd";

struct CodecsCommandOptions {
  std::vector<std::string> codecs;  // names for make_codec(), or kProducts; empty: all
  std::vector<std::size_t> bytes{std::size_t{25} << 20};
  int rounds = 5;
  bool peers = false;
  bool json = false;
  bool pin = true;
  std::string python;  // a Python with torch
};

// Measures and prints. Throws std::runtime_error and InvalidArgument.
void run_codecs(const CodecsCommandOptions& options);

struct CodecWorkerOptions {
  std::string socket;
  bool pin = true;
};

// Serves as gradwire's contestant. Variants: "memcpy"; "encode/CODEC", "decode/CODEC"; of kProducts also "step/CODEC".
void run_codec_worker(const CodecWorkerOptions& options);

}  // namespace gradwire::bench
