// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the fake device knows of its memory, streams and events: vector clocks, and the accesses that no event orders.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::testing::fake {

using StreamName = std::pair<c10::DeviceIndex, c10::StreamId>;
// How far each stream has got, as another stream knows, or an event.
using Clock = std::map<StreamName, std::uint64_t>;

StreamName name_of(const c10::Stream& stream);

// Thread-safe.
class Watcher {
 public:
  // Memory at `memory` was handed out on `stream`; `bytes` is what the device finds there.
  void allocated(void* memory, std::size_t size, std::byte* bytes, const c10::Stream& stream);
  // What the device finds at an address of its memory. Throws for any other address.
  std::byte* bytes_at(const void* memory);
  // Memory returns to the allocator. Returns the bytes of the allocation; empty for unknown memory.
  std::span<std::byte> freed(void* memory);
  // The allocator was told that `stream` uses the memory.
  void recorded(const void* memory, const c10::Stream& stream);
  // A kernel of `stream` reads or writes `bytes` bytes.
  void accessed(const void* memory, std::size_t bytes, const c10::Stream& stream, bool writes);

  // Work of `stream` takes so many seconds, on a clock of the device's own that nothing else moves. When the work that
  // `stream` has queued ends, and that it does not end before `seconds`.
  void spend(const c10::Stream& stream, double seconds);
  double end_of(const c10::Stream& stream);
  void ends_after(const c10::Stream& stream, double seconds);

  // An event: what `stream` has behind it, and that `stream` follows what an event has behind it.
  Clock snapshot(const c10::Stream& stream);
  void follows(const c10::Stream& stream, const Clock& before);

  // The last kernel of `stream` does not end before let_go().
  void hang(const c10::Stream& stream);
  void let_go(const StreamName& stream);
  bool ended(const Clock& event);

  // Work that `stream` has queued, such as a copy to the host. It is done in the first finish() of an event behind it.
  void queue(const c10::Stream& stream, std::function<void()> work);
  // The host waits for an event.
  void finish(const Clock& event);

  // The host waits for all streams of a device.
  void finish_all(c10::DeviceIndex device);

  // `stream` is captured into a graph from now on, or no longer.
  void capture(const c10::Stream& stream, bool begin);
  bool is_captured(const c10::Stream& stream);

  // The races so far; clears the list.
  std::vector<std::string> take();

 private:
  struct Access {
    std::uintptr_t begin, end;
    StreamName stream;
    std::uint64_t time;
    bool writes;
  };
  struct Allocation {
    std::uintptr_t end;
    std::byte* bytes;
    StreamName stream;              // the allocator hands the memory out anew to this one, when it goes
    std::set<StreamName> recorded;  // and not before these are done
    std::vector<Access> accesses;
  };
  struct Queued {
    StreamName stream;
    std::uint64_t time;
    std::function<void()> work;
  };

  Allocation* find(std::uintptr_t memory);
  void report(const char* what, const StreamName& one, const char* how, const StreamName& other);

  std::mutex mutex_;
  std::map<StreamName, Clock> clocks_;
  std::map<StreamName, double> ends_;            // in seconds
  std::map<StreamName, std::uint64_t> hanging_;  // the time of the kernel that does not end
  std::set<StreamName> captured_;
  std::vector<Queued> queued_;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::vector<std::string> reports_;
};

// The one of this process. It lives as long as the process: tensors of other statics may go after any static.
Watcher& watcher();

// The memory of a tensor on the fake device, as the CPU sees it; a tensor on the CPU as it is.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace gradwire::testing::fake
