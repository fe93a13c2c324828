// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/store_access.h"

#include <algorithm>
#include <array>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "launch/judgement.h"
#include "launch/launch_error.h"
#include "launch/rank_environment.h"
#include "launch/say.h"

namespace gradwire::launch {
namespace {

constexpr Milliseconds kTryTime{4000};
constexpr Milliseconds kTryAgain{100};
constexpr Milliseconds kConnectTime{2000};
// Tells the store of this launcher from that of another one.
const std::string kServerKey = "gradwire-run/server";

[[noreturn]] void refuse(const Refusal& refusal, const Error& problem) {
  throw LaunchError(kHostsFailedExit, concat(refusal.opening, ": ", problem.what(), refusal.advice));
}

}  // namespace

std::unique_ptr<TcpStore> serve_store(TcpStoreOptions options, const std::function<void(Milliseconds)>& pause,
                                      const ServeRefusals& refusals) {
  options.on_refusal = [](const std::string& sentence) {
    // All clients wait while the thread of the store does.
    say_unless_it_waits(concat(sentence, "; give all hosts of the job the same --secret-file"), Milliseconds(0));
  };
  const std::string mark = random_job_id();
  options.contents[kServerKey] = mark;
  const Deadline patience = Deadline::after(kTryTime);
  for (;;) {
    try {
      auto store = std::make_unique<TcpStore>(options);
      // Where the address is that of another host, the store of another job may answer there. Before anything is
      // written.
      if (store->check({&kServerKey, 1}) && store->get(kServerKey) == mark) return store;
      throw LaunchError(kHostsFailedExit, concat(refusals.unreachable.opening, ": another job's store answers there",
                                                 refusals.unreachable.advice));
    } catch (const StoreError& problem) {
      if (patience.expired()) refuse(refusals.not_served, problem);
    } catch (const TimeoutError& problem) {
      refuse(refusals.unreachable, problem);
    }
    pause(kTryAgain);
  }
}

std::unique_ptr<TcpStore> find_store(TcpStoreOptions options, const std::string& key, Milliseconds patience,
                                     const std::function<void()>& check, const FindRefusals& refusals) {
  const Deadline deadline = Deadline::after(patience);
  std::string reason;
  while (!deadline.expired()) {
    check();
    try {
      options.timeout = std::max(Milliseconds(1), std::min(kConnectTime, deadline.remaining()));
      auto store = std::make_unique<TcpStore>(options);
      store->wait(std::array{key}, options.timeout);
      return store;
    } catch (const TimeoutError& problem) {
      reason = problem.what();
    } catch (const StoreError& problem) {
      refuse(refusals.not_let_in, problem);
    }
  }
  throw LaunchError(kHostsFailedExit, concat(refusals.not_found.opening, " within ", seconds_text(patience), " (",
                                             reason, ")", refusals.not_found.advice));
}

}  // namespace gradwire::launch
