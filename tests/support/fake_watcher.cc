// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_watcher.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "gradwire/base/strings.h"

namespace gradwire::testing::fake {

StreamName name_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

void Watcher::allocated(void* memory, std::size_t size, std::byte* bytes, const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  allocations_[begin] = {begin + size, bytes, name_of(stream), {}, {}};
}

std::byte* Watcher::bytes_at(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const auto after = allocations_.upper_bound(address);
  TORCH_CHECK(after != allocations_.begin(), "no memory of the fake device");
  const auto& [begin, allocation] = *std::prev(after);
  TORCH_CHECK(address <= allocation.end, "no memory of the fake device");
  return allocation.bytes + (address - begin);
}

std::span<std::byte> Watcher::freed(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == allocations_.end()) return {};
  const Allocation& gone = found->second;
  for (const Access& access : gone.accesses) {
    if (access.stream == gone.stream || gone.recorded.contains(access.stream)) continue;
    if (clocks_[gone.stream][access.stream] < access.time)
      report("memory of ", gone.stream, " was freed while it may be in use on ", access.stream);
  }
  const std::span<std::byte> bytes(gone.bytes, gone.end - found->first);
  allocations_.erase(found);
  return bytes;
}

void Watcher::recorded(const void* memory, const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (Allocation* allocation = find(reinterpret_cast<std::uintptr_t>(memory)))
    allocation->recorded.insert(name_of(stream));
}

void Watcher::accessed(const void* memory, std::size_t bytes, const c10::Stream& stream, bool writes) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  Allocation* allocation = find(begin);
  if (allocation == nullptr || bytes == 0) return;
  const StreamName name = name_of(stream);
  Clock& clock = clocks_[name];
  const Access now{begin, begin + bytes, name, ++clock[name], writes};
  std::erase_if(allocation->accesses, [&](const Access& before) {
    if (before.end <= now.begin || now.end <= before.begin) return false;
    if (before.stream != name && (before.writes || writes) && clock[before.stream] < before.time) {
      report(writes ? "written by " : "read by ", name, before.writes ? " while written by " : " while read by ",
             before.stream);
    }
    return writes && now.begin <= before.begin && before.end <= now.end && clock[before.stream] >= before.time;
  });
  allocation->accesses.push_back(now);
}

void Watcher::spend(const c10::Stream& stream, double seconds) {
  const std::lock_guard lock(mutex_);
  ends_[name_of(stream)] += seconds;
}

double Watcher::end_of(const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  return ends_[name_of(stream)];
}

void Watcher::ends_after(const c10::Stream& stream, double seconds) {
  const std::lock_guard lock(mutex_);
  double& end = ends_[name_of(stream)];
  end = std::max(end, seconds);
}

Clock Watcher::snapshot(const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  return clocks_[name_of(stream)];
}

void Watcher::follows(const c10::Stream& stream, const Clock& before) {
  const std::lock_guard lock(mutex_);
  Clock& clock = clocks_[name_of(stream)];
  for (const auto& [name, time] : before) clock[name] = std::max(clock[name], time);
}

void Watcher::hang(const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  const StreamName name = name_of(stream);
  hanging_[name] = clocks_[name][name];
}

void Watcher::let_go(const StreamName& stream) {
  const std::lock_guard lock(mutex_);
  hanging_.erase(stream);
}

bool Watcher::ended(const Clock& event) {
  const std::lock_guard lock(mutex_);
  if (!captured_.empty()) reports_.push_back("an event was asked while a stream was captured");
  return std::all_of(hanging_.begin(), hanging_.end(), [&](const auto& kernel) {
    const auto reached = event.find(kernel.first);
    return reached == event.end() || reached->second < kernel.second;
  });
}

void Watcher::queue(const c10::Stream& stream, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  const StreamName name = name_of(stream);
  queued_.push_back({name, clocks_[name][name], std::move(work)});
}

void Watcher::finish_all(c10::DeviceIndex device) {
  Clock everything;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, clock] : clocks_) {
      if (stream.first != device) continue;
      for (const auto& [name, time] : clock) everything[name] = std::max(everything[name], time);
    }
    for (auto& [stream, clock] : clocks_) {
      if (stream.first == device) clock = everything;
    }
  }
  finish(everything);
}

void Watcher::finish(const Clock& event) {
  const std::lock_guard lock(mutex_);
  if (!captured_.empty()) reports_.push_back("the host waited for an event while a stream was captured");
  std::erase_if(queued_, [&](const Queued& each) {
    const auto reached = event.find(each.stream);
    if (reached == event.end() || reached->second < each.time) return false;
    each.work();  // under the lock: another thread that waits for the event does not return before
    return true;
  });
}

void Watcher::capture(const c10::Stream& stream, bool begin) {
  const std::lock_guard lock(mutex_);
  if (begin) captured_.insert(name_of(stream));
  if (!begin) captured_.erase(name_of(stream));
}

bool Watcher::is_captured(const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  return captured_.contains(name_of(stream));
}

std::vector<std::string> Watcher::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

Watcher::Allocation* Watcher::find(std::uintptr_t memory) {
  auto after = allocations_.upper_bound(memory);
  if (after == allocations_.begin()) return nullptr;
  --after;
  return memory < after->second.end ? &after->second : nullptr;
}

void Watcher::report(const char* what, const StreamName& one, const char* how, const StreamName& other) {
  reports_.push_back(
      concat("device ", int{one.first}, ": ", what, "stream ", one.second, how, "stream ", other.second));
}

Watcher& watcher() {
  static Watcher* const one = new Watcher;
  return *one;
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.numel() == 0)
    return tensor.is_cpu() ? tensor : at::empty(tensor.sizes(), tensor.dtype());
  return at::from_blob(watcher().bytes_at(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()));
}

}  // namespace gradwire::testing::fake
