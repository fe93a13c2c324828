// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which cores each rank gets.
#pragma once

#include <vector>

namespace gradwire::launch {

// The cores (logical CPUs, as the kernel numbers them) that this process may run on, in ascending order. Throws
// LaunchError.
std::vector<int> allowed_cpus();

// Returns the cores of `rank`, one of `ranks` ranks. With C cores, these are the cores with index rank*C/ranks up to
// (rank+1)*C/ranks in `cpus`: neighbouring cores. The shares of all ranks cover all cores and differ in size by at most
// one core. With more ranks than cores, each rank gets the one core with index rank*C/ranks: neighbouring ranks share a
// core, and the numbers of ranks on two cores differ by at most one. `cpus` is not empty.
std::vector<int> share_of_rank(const std::vector<int>& cpus, int rank, int ranks);

// Returns the number of threads for a rank's computation: cores / ranks, at least 1.
int threads_per_rank(const std::vector<int>& cpus, int ranks) noexcept;

// A set of cores ready to be applied between fork and exec, where memory must not be allocated.
class CpuSet {
 public:
  CpuSet() = default;  // no set: apply() does not change the affinity
  explicit CpuSet(const std::vector<int>& cpus);
  // Pins the calling thread. Returns false, with errno set, when the kernel refuses.
  bool apply() const noexcept;

 private:
  std::vector<unsigned long> bits_;
};

}  // namespace gradwire::launch
