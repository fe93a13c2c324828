// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The victim's machine refuses threads, descriptors, memory or shared memory: an error that says so, on all ranks where
// all were to have it, and the group goes on.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/messages.h"
#include "tests/chaos/play.h"

namespace gradwire::testing {
namespace {

constexpr std::size_t kMuch = 64'000'000;

// Lowers a soft limit of this process while it lives.
class Limit {
 public:
  Limit(int resource, rlim_t value) : resource_(resource) {
    ::getrlimit(resource_, &old_);
    const rlimit low{value, old_.rlim_max};
    if (::setrlimit(resource_, &low) != 0) throw ResourceError("the test cannot set a limit");
  }
  ~Limit() { ::setrlimit(resource_, &old_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  const int resource_;
  rlimit old_{};
};

rlim_t address_space() {
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return static_cast<rlim_t>(pages) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// How many descriptors this process must be left, to have no further one.
rlim_t descriptors_in_use() {
  const int next = ::dup(0);
  ::close(next);
  return static_cast<rlim_t>(next);
}

// Runs a call that the limit on the victim must make fail on all ranks, alike.
void expect_refused(const std::function<void()>& call) {
  try {
    call();
    Member::report(Complaint::wrong, "the call went well");
  } catch (const ResourceError&) {
  } catch (const std::exception& error) {
    Member::report(Complaint::wrong, "no ResourceError but " + describe(error));
  }
}

// All ranks make memory or a channel while the victim has `resource` limited to `value()`; then they make it again.
void refused_together(Member& self, int resource, const std::function<rlim_t()>& value,
                      const std::function<void()>& call, const std::function<void()>& call_that_fits = nullptr) {
  self.join();
  self.warm_up();
  {
    std::optional<Limit> limit;
    if (self.is_victim()) limit.emplace(resource, value());
    expect_refused(call);
  }
  call_that_fits != nullptr ? call_that_fits() : call();
  self.after_nothing();
}

void no_descriptors(Member& self) {
  const bool channels = self.random().below(2) == 0;
  refused_together(self, RLIMIT_NOFILE, descriptors_in_use, [&] {
    if (channels) {
      self.channel().duplicate(guarded());
    } else {
      self.channel().allocate(kMuch / 64, guarded());
    }
  });
}

void no_memory(Member& self) {
  refused_together(
      self, RLIMIT_AS, [] { return address_space() + kMuch / 4; }, [&] { self.channel().allocate(kMuch, guarded()); });
}

// Rank 0 makes the file that all map.
void no_file_size(Member& self) {
  std::signal(SIGXFSZ, SIG_IGN);  // as in Python
  refused_together(
      self, RLIMIT_FSIZE, [] { return rlim_t{1'000'000}; }, [&] { self.channel().allocate(kMuch, guarded()); });
}

// The folder for shared memory is small: a file system of its own, which only this process sees.
void no_room_in_folder(Member& self) {
  if (self.is_victim()) {
    const std::string folder = std::filesystem::temp_directory_path();
    std::signal(SIGXFSZ, SIG_IGN);
    ::setenv("GRADWIRE_SHM_FOLDER", folder.c_str(), 1);
    if (::unshare(CLONE_NEWNS) == 0) {
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
      ::mount("none", folder.c_str(), "tmpfs", 0, "size=48m");
    }
  }
  // Where a container allows no mount, the limit does the same.
  refused_together(
      self, RLIMIT_FSIZE, [] { return kMuch; }, [&] { self.channel().allocate(kMuch, guarded()); },
      [&] { self.channel().allocate(kMuch / 64, guarded()); });
}

// With the signal at its default the kernel ends the process: a death like any other.
void ended_by_file_size(Member& self) {
  self.join();
  self.warm_up();
  if (self.is_victim()) {
    const Limit limit(RLIMIT_FSIZE, 4096);
    self.stage().death.stamp();
    self.channel().allocate(kMuch, guarded());
  }
  self.learn([&] { self.channel().allocate(kMuch, guarded()); });
  self.after_death();
}

// No thread can be started where messages need one: the call says so, touches nothing, and can be made again.
void no_threads(Member& self) {
  become_nobody();  // root has no limit
  self.join();
  const int sender = (self.victim() + 1) % self.size();
  const bool send = self.random().below(2) == 0;
  const std::size_t bytes = self.random().below(2) == 0 ? 300 : 300'000;
  const Bytes sent = make_input(DType::u8, bytes, 1, 7);
  Bytes got(bytes);
  const auto start = [&] {
    return send ? self.channel().isend(sent.data(), bytes, sender, kTag)
                : self.channel().irecv(got.data(), bytes, sender, kTag);
  };
  if (self.is_victim()) {
    std::shared_ptr<Request> request;
    {
      const Limit limit(RLIMIT_NPROC, 1);
      try {
        request = start();
      } catch (const ResourceError&) {
      } catch (const std::exception& error) {
        Member::report(Complaint::wrong, "no ResourceError but " + describe(error));
      }
    }
    if (request == nullptr) request = start();
    self.stage().ready.raise();
    request->wait(guard());
    if (!send && got != sent) Member::report(Complaint::wrong, "the message differs");
  } else if (self.rank() == sender) {
    self.stage().ready.await(1);
    const auto request = send ? self.channel().irecv(got.data(), bytes, self.victim(), kTag)
                              : self.channel().isend(sent.data(), bytes, self.victim(), kTag);
    request->wait(guard());
    if (send && got != sent) Member::report(Complaint::wrong, "the message differs");
  }
  self.after_nothing();
}

// Messages that the victim does not take for a while, more than it has memory for.
void no_memory_for_messages(Member& self) {
  constexpr std::size_t kBytes = 16'000;
  constexpr std::size_t kCount = kMuch / kBytes;
  self.join();
  self.warm_up();
  const int sender = (self.victim() + 1) % self.size();
  const Bytes sent = make_input(DType::u8, kBytes, 1, 7);
  if (self.rank() == sender) {
    std::vector<std::shared_ptr<Request>> sends;
    for (std::size_t i = 0; i < kCount; ++i) {
      sends.push_back(self.channel().isend(sent.data(), kBytes, self.victim(), kTag));
    }
    self.stage().ready.raise();
    for (const auto& send : sends) send->wait(guard());
  } else if (self.is_victim()) {
    char unused = 0;
    const auto other = self.channel().irecv(&unused, 1, sender, kTag + 1);  // somebody who looks at what comes
    const Limit limit(RLIMIT_AS, address_space() + kMuch / 3);
    self.stage().ready.await(1);
    Bytes got(kBytes);
    for (std::size_t i = 0; i < kCount; ++i) {
      self.channel().irecv(got.data(), kBytes, sender, kTag)->wait(guard());
      if (got != sent) return Member::report(Complaint::wrong, "a message differs");
    }
  }
  self.after_nothing();
}

// No descriptor for the rendezvous: the victim says so, and the others say who is missing.
void no_descriptors_to_meet(Member& self) {
  constexpr Milliseconds kMeeting{2500};
  if (self.is_victim()) {
    const Limit limit(RLIMIT_NOFILE, descriptors_in_use() + self.random().below(3));
    self.stage().death.stamp();
    try {
      self.join(kMeeting);
      Member::report(Complaint::wrong, "the rendezvous went well");
    } catch (const ResourceError&) {
    } catch (const StoreError&) {  // no descriptor for the store's file or connection either
    } catch (const std::exception& error) {
      Member::report(Complaint::wrong, "no ResourceError but " + describe(error));
    }
    return;
  }
  self.fail_to_meet(kMeeting);
}

constexpr FaultClass kLimitFaults[] = {
    {.name = "limit: no descriptors for a call", .ending = Ending::well, .weight = 3, .play = no_descriptors},
    {.name = "limit: no descriptors to meet", .ending = Ending::well, .weight = 2, .play = no_descriptors_to_meet},
    {.name = "limit: no memory", .ending = Ending::well, .weight = 3, .play = no_memory},
    {.name = "limit: no memory for messages", .ending = Ending::well, .weight = 2, .play = no_memory_for_messages},
    {.name = "limit: no shared memory",
     .ending = Ending::well,
     .weight = 2,
     .play = no_file_size,
     .strikes_rank_0 = true},
    {.name = "limit: no room in GRADWIRE_SHM_FOLDER",
     .ending = Ending::well,
     .weight = 2,
     .play = no_room_in_folder,
     .strikes_rank_0 = true,
     .needs_root = true},
    {.name = "limit: ended by SIGXFSZ",
     .ending = Ending::gone,
     .weight = 1,
     .play = ended_by_file_size,
     .strikes_rank_0 = true},
    {.name = "limit: no threads", .ending = Ending::well, .weight = 3, .play = no_threads, .needs_root = true},
};

}  // namespace

std::span<const FaultClass> limit_faults() { return kLimitFaults; }

}  // namespace gradwire::testing
