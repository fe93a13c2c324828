// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/name_lookup_internal.h"

#include <pthread.h>

#include <csignal>
#include <exception>
#include <map>
#include <memory>
#include <optional>

#include "gradwire/base/interrupt.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/process_bound_internal.h"

namespace gradwire::store_internal {

using asio::ip::tcp;

namespace {

struct Answer {
  std::vector<asio::ip::address> addresses;
  asio::error_code error;
  std::exception_ptr problem;  // what kept this process from asking
};

Answer ask_resolver(const std::string& host) {
  Answer answer;
  try {
    asio::io_context loop{1};
    tcp::resolver resolver(loop);
    for (const auto& entry : resolver.resolve(host, "0", tcp::resolver::numeric_service, answer.error)) {
      answer.addresses.push_back(entry.endpoint().address());
    }
  } catch (...) {
    answer.problem = std::current_exception();
  }
  return answer;
}

// One question to the system's resolver, on a thread of its own.
class Lookup final {
 public:
  explicit Lookup(std::string host) {
    thread_ = Thread("gw-lookup", [this, host = std::move(host)] {
      // The program's signal handlers run on its own threads.
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      Answer answer = ask_resolver(host);
      MutexLock lock(mutex_);
      answer_ = std::move(answer);
      answered_.notify_all();
    });
  }

  bool is_answered() {
    MutexLock lock(mutex_);
    return answer_.has_value();
  }

  // Nothing when `deadline` came first.
  std::optional<Answer> wait(Deadline deadline) {
    MutexLock lock(mutex_);
    while (!answer_ && !deadline.expired()) answered_.wait_until(lock, deadline.point());
    return answer_;
  }

 private:
  Mutex mutex_;
  ConditionVariable answered_;
  std::optional<Answer> answer_ GRADWIRE_GUARDED_BY(mutex_);
  Thread thread_;  // the last: it uses the others until it is joined
};

// The lookups under way, so that those who give up one after the other do not start a thread each.
class Lookups final {
 public:
  static Lookups& of_process() {
    static Lookups instance;
    static const int registered =
        ::pthread_atfork([] { instance.before_fork(); }, [] { instance.after_fork(); }, [] { instance.after_fork(); });
    static_cast<void>(registered);
    return instance;
  }

  std::shared_ptr<Lookup> find_or_start(const std::string& host) {
    MutexLock lock(mutex_);
    // An answer that nobody waited for is old. What a forked child has inherited is never answered.
    std::erase_if(under_way_, [](const auto& entry) {
      const ProcessBound<Lookup>& lookup = *entry.second;
      return !lookup.is_current() || lookup.get()->is_answered();
    });
    auto& lookup = under_way_[host];
    if (lookup == nullptr) {
      try {
        lookup = std::make_unique<ProcessBound<Lookup>>("a name lookup", std::make_shared<Lookup>(host));
      } catch (...) {
        under_way_.erase(host);
        throw;
      }
    }
    return lookup->get();
  }

 private:
  // A child that was forked while another thread held the lock would wait for that thread for ever.
  void before_fork() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void after_fork() GRADWIRE_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }

  Mutex mutex_;
  std::map<std::string, std::unique_ptr<ProcessBound<Lookup>>> under_way_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<asio::ip::address> look_up(const std::string& host, Deadline deadline, asio::error_code& error) {
  const asio::ip::address numeric = asio::ip::make_address(host, error);
  if (!error) return {numeric};
  const auto lookup = Lookups::of_process().find_or_start(host);
  std::optional<Answer> answer;
  while (!(answer = lookup->wait(deadline.earlier(Deadline::after(kInterruptLook)))) && !deadline.expired())
    throw_if_interrupted(concat("looking up the host ", host));
  if (!answer) {
    error = asio::error::operation_aborted;
    return {};
  }
  if (answer->problem != nullptr) std::rethrow_exception(answer->problem);
  error = answer->error;
  return answer->addresses;
}

}  // namespace gradwire::store_internal
