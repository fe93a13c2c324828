// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench all_reduce: measures all-reduce of a Backend, and of PyTorch's Gloo and OpenMPI in the same run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::bench {

struct AllReduceOptions {
  std::string backend = "shm";
  int world = 2;
  std::vector<std::size_t> bytes{4096, std::size_t{1} << 20, std::size_t{25} << 20, std::size_t{100} << 20};
  std::string dtype = "f32";
  std::string op = "sum";
  bool in_place = true;
  bool staged = true;
  bool cold = false;
  bool peers = false;
  bool json = false;
  bool pin = true;
  int rounds = 5;
  std::string python;  // a Python with torch, for Gloo
};

// Measures and prints. Throws std::runtime_error and InvalidArgument.
void run_all_reduce(const AllReduceOptions& options);

}  // namespace gradwire::bench
