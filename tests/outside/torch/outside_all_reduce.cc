// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Every rank brings rank + 1; all see the same sum. Exits with 1 where the sum is wrong.
#include <ATen/ATen.h>

#include <cstdio>
#include <exception>

#include "gradwire/process_group/init.h"

int main() try {
  const auto group = gradwire::init_process_group();
  at::Tensor numbers = at::full({1024}, group->rank() + 1.0F);
  group->all_reduce({numbers})->wait();
  const double expected = group->size() * (group->size() + 1) / 2.0;
  const bool right = at::all(numbers == expected).item<bool>();
  std::printf("rank %d of %d over %s: %g, %s\n", group->rank(), group->size(), group->name().c_str(),
              numbers[0].item<double>(), right ? "right" : "WRONG");
  gradwire::destroy_process_group();
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "outside_all_reduce: %s\n", error.what());
  return 1;
}
