// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/cpu_share.h"

#include <sched.h>

#include <algorithm>
#include <climits>

#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

// Eight times glibc's fixed cpu_set_t: the kernel refuses a buffer that is smaller than its own mask.
constexpr int kMaxCpus = 8192;
constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<unsigned long> bits(kMaxCpus / kBitsPerWord);
  const std::size_t bytes = bits.size() * sizeof(unsigned long);
  auto* set = reinterpret_cast<cpu_set_t*>(bits.data());
  if (::sched_getaffinity(0, bytes, set) != 0) throw_errno("cannot read which cores this process may use");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> share_of_rank(const std::vector<int>& cpus, int rank, int ranks) {
  const auto count = static_cast<long>(cpus.size());
  const long first = rank * count / ranks;
  const long last = std::max(first + 1, (rank + 1) * count / ranks);
  return {cpus.begin() + first, cpus.begin() + last};
}

int threads_per_rank(const std::vector<int>& cpus, int ranks) noexcept {
  return std::max(1, static_cast<int>(cpus.size()) / ranks);
}

CpuSet::CpuSet(const std::vector<int>& cpus) : bits_(kMaxCpus / kBitsPerWord) {
  for (const int cpu : cpus) bits_[cpu / kBitsPerWord] |= 1UL << (cpu % kBitsPerWord);
}

bool CpuSet::apply() const noexcept {
  if (bits_.empty()) return true;
  const auto* set = reinterpret_cast<const cpu_set_t*>(bits_.data());
  return ::sched_setaffinity(0, bits_.size() * sizeof(unsigned long), set) == 0;
}

}  // namespace gradwire::launch
