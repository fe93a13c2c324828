// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <system_error>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

namespace {

// getpid() is a system call, too dear for every collective and message; a handler in the child keeps these up to date.
std::atomic<unsigned> forks{0};
std::atomic<pid_t> this_process{0};

void count_forks() noexcept {
  static const int registered = [] {
    this_process.store(::getpid(), std::memory_order_relaxed);
    return ::pthread_atfork(nullptr, nullptr, [] {
      forks.fetch_add(1, std::memory_order_relaxed);
      this_process.store(::getpid(), std::memory_order_relaxed);
    });
  }();
  static_cast<void>(registered);
}

}  // namespace

OwnerProcess::OwnerProcess() noexcept {
  count_forks();
  pid_ = this_process.load(std::memory_order_relaxed);
  generation_ = forks.load(std::memory_order_relaxed);
}

bool OwnerProcess::is_current() const noexcept { return forks.load(std::memory_order_relaxed) == generation_; }

void OwnerProcess::require_current(const char* what) const {
  if (is_current()) return;
  throw InvalidArgument(
      concat(what, " was made by process ", pid_, " and is used in its forked child ", ::getpid(),
             "; a forked child has no part in its parent's groups: initialise a group of its own there"));
}

Thread::Thread(std::string name, std::function<void()> body) {
  try {
    thread_ = std::thread([name, body = std::move(body)] {
      ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
      body();
    });
  } catch (const std::system_error& error) {
    throw ResourceError(concat("the machine refused the thread '", name, "' to process ", ::getpid(), ": ",
                               error.what(), "; raise the limit on processes (ulimit -u) or start fewer ranks"));
  }
}

Thread& Thread::operator=(Thread&& other) noexcept {
  join();
  thread_ = std::move(other.thread_);
  owner_ = other.owner_;
  return *this;
}

Thread::~Thread() { join(); }

void Thread::join() {
  if (!thread_.joinable()) return;
  if (owner_.is_current()) {
    thread_.join();
  } else {
    // A forked child: there is no such thread here, and joining it would wait for ever. Detaching it would mean
    // whichever thread of this process has been given its stack since.
    static_cast<void>(std::make_unique<std::thread>(std::move(thread_)).release());
  }
}

}  // namespace gradwire
