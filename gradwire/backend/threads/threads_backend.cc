// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/threads/threads_backend.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <utility>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/shared/shared_backend_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire {
namespace {

using shared::Region;

// What the ranks of one group have in common. Rank 0 makes it; the others find it by its number.
class Meeting {
 public:
  // Rank 0's part: makes the region. Zeroed pages that come with first use.
  Region make(std::uint64_t key, std::size_t stride, int size) {
    Entry entry{{}, {}, size - 1};
    try {
      auto mapping = std::make_shared<Mapping>(Mapping::anonymous(stride * static_cast<std::size_t>(size)));
      entry.region = {std::shared_ptr<std::byte>(mapping, mapping->data()), stride};
    } catch (const ResourceError& error) {
      entry.refusal = error.what();
    }
    const MutexLock lock(mutex_);
    if (size > 1) regions_[key] = entry;
    changed_.notify_all();
    return entry.take();
  }

  Region find(std::uint64_t key, Deadline deadline, const std::function<void()>& check) {
    constexpr Milliseconds kSlice{20};
    MutexLock lock(mutex_);
    for (;;) {
      const auto found = regions_.find(key);
      if (found != regions_.end()) {
        const Entry entry = found->second;
        if (--found->second.readers == 0) regions_.erase(found);
        return entry.take();
      }
      if (deadline.expired()) throw TimeoutError("the deadline passed while waiting for rank 0 to share memory", {0});
      changed_.wait_until(lock, deadline.earlier(Deadline::after(kSlice)).point());
      lock.unlock();
      check();
      lock.lock();
    }
  }

 private:
  struct Entry {
    Region region;
    std::string refusal;  // or why there is none
    int readers;

    Region take() const {
      if (!refusal.empty()) throw ResourceError(refusal);
      return region;
    }
  };
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::uint64_t, Entry> regions_ GRADWIRE_GUARDED_BY(mutex_);
};

// The meetings of this process. Weak: a group that is gone leaves nothing behind.
class Meetings {
 public:
  static Meetings& of_this_process() {
    static Meetings meetings;
    return meetings;
  }
  std::pair<std::uint64_t, std::shared_ptr<Meeting>> open() {
    const MutexLock lock(mutex_);
    std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
    auto meeting = std::make_shared<Meeting>();
    open_[++last_] = meeting;
    return {last_, meeting};
  }
  std::shared_ptr<Meeting> find(std::uint64_t number) {
    const MutexLock lock(mutex_);
    const auto found = open_.find(number);
    return found == open_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  std::uint64_t last_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::weak_ptr<Meeting>> open_ GRADWIRE_GUARDED_BY(mutex_);
};

class ThreadsWorld final : public shared::World {
 public:
  ThreadsWorld(int rank, int size, std::shared_ptr<Meeting> meeting) : World(rank, size), meeting_(std::move(meeting)) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    const bool known = ::sched_getaffinity(0, sizeof(cores), &cores) == 0;
    set_may_spin(known && CPU_COUNT(&cores) >= size);
  }
  bool shares_all_memory() const noexcept override { return true; }
  Region share_region(std::uint64_t key, std::size_t stride, Deadline deadline,
                      const std::function<void()>& check) override {
    return rank() == 0 ? meeting_->make(key, stride, size()) : meeting_->find(key, deadline, check);
  }
  bool is_gone(int /*peer*/) const noexcept override { return false; }
  int process_of(int /*peer*/) const noexcept override { return ::getpid(); }
  std::string describe_peer(int peer) const override { return concat("thread of rank ", peer); }

 private:
  std::shared_ptr<Meeting> meeting_;
};

constexpr std::uint64_t kFirstRegion = 0;
const std::string kMeetingKey = "threads/meeting";

std::string found_key(int rank) { return concat("threads/found/", rank); }

// Rank 0's part. Waits for all ranks, so that it hears when one of them cannot take part.
std::shared_ptr<Meeting> open_meeting(const BackendOptions& options, Deadline deadline) {
  auto [number, meeting] = Meetings::of_this_process().open();
  options.store->set(kMeetingKey, concat(::getpid(), " ", number));
  std::vector<std::string> keys;
  std::vector<int> others;
  for (int rank = 1; rank < options.size; ++rank) {
    keys.push_back(found_key(rank));
    others.push_back(rank);
  }
  if (others.empty()) return meeting;
  const std::vector<int> missing = rendezvous::await_keys(*options.store, keys, others, deadline);
  if (missing.empty()) return meeting;
  throw TimeoutError(concat("rendezvous failed: the deadline passed while waiting for ", name_ranks(missing)), missing);
}

std::shared_ptr<Meeting> find_meeting(const BackendOptions& options, Deadline deadline) {
  std::istringstream words(rendezvous::await_key(*options.store, kMeetingKey, 0, deadline));
  long process = 0;
  std::uint64_t number = 0;
  words >> process >> number;
  if (process != ::getpid()) {
    throw InvalidArgument(concat("backend threads on rank ", options.rank, ": rank 0 is in process ", process,
                                 ", this rank in ", ::getpid(),
                                 "; ranks of this backend are threads of one process (use shm)"));
  }
  std::shared_ptr<Meeting> meeting = Meetings::of_this_process().find(number);
  if (meeting == nullptr) {
    rendezvous::throw_if_failed(*options.store);
    throw PeerError(concat("backend threads on rank ", options.rank, ": rank 0 has given up the rendezvous"), {0});
  }
  options.store->set(found_key(options.rank), "");
  return meeting;
}

}  // namespace

std::unique_ptr<Backend> make_threads_backend(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  std::shared_ptr<Meeting> meeting;
  try {
    meeting = options.rank == 0 ? open_meeting(options, deadline) : find_meeting(options, deadline);
  } catch (const std::exception& error) {
    rendezvous::announce_failure(*options.store, options.rank, error);
    throw;
  }
  auto world = std::make_shared<ThreadsWorld>(options.rank, options.size, std::move(meeting));
  const Region region = world->share_region(kFirstRegion, shared::rendezvous_stride(options.size), deadline, [] {});
  trace::point("rendezvous.connected", options.rank);
  return std::make_unique<shared::SharedBackend>("threads", std::move(world), region, deadline);
}

}  // namespace gradwire
