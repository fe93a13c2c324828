// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ranges that a profiler of PyTorch's, such as Kineto, sees of calls from C++, and the trace points around them.
#include "gradwire/process_group/watched_call_internal.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/process_group/backend_names.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/profiled_by_caller.h"
#include "gradwire/store/hash_store.h"
#include "tests/support/ranks.h"

namespace gradwire::watched_call_test {
namespace {

// What this thread does within gradwire's ranges, as a profiler's callback sees it.
class Profiler {
 public:
  Profiler() {
    seen().clear();
    at::RecordFunctionCallback callback(
        [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
          if (std::string(range.name()).starts_with("gradwire:")) seen().emplace_back(range.name());
          return nullptr;
        },
        [](const at::RecordFunction& range, at::ObserverContext*) {
          if (std::string(range.name()).starts_with("gradwire:")) seen().emplace_back("end");
        });
    handle_ = at::addThreadLocalCallback(callback.scopes({at::RecordScope::USER_SCOPE}));
  }
  ~Profiler() { at::removeCallback(handle_); }
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  static std::vector<std::string>& seen() {
    thread_local std::vector<std::string> names;
    return names;
  }

 private:
  at::CallbackHandle handle_;
};

std::shared_ptr<ProcessGroup> group_of_one() {
  return make_process_group("threads", std::make_shared<HashStore>(), 0, 1);
}

TEST(WatchedCall, AProfilerSeesEachCallAsARange) {
  const auto group = group_of_one();
  const Profiler profiler;
  group->all_reduce({at::ones({3})})->wait();
  group->barrier()->wait();
  EXPECT_EQ(Profiler::seen(), (std::vector<std::string>{"gradwire:all_reduce", "end", "gradwire:barrier", "end"}));
}

TEST(WatchedCall, ACallerThatMakesTheRangeItselfIsTheOnlyOne) {
  const auto group = group_of_one();
  const Profiler profiler;
  {
    const ProfiledByCaller here;
    group->all_reduce({at::ones({3})})->wait();
  }
  EXPECT_EQ(Profiler::seen(), std::vector<std::string>());
  group->all_reduce({at::ones({3})})->wait();
  EXPECT_EQ(Profiler::seen().size(), 2U);
}

struct Points {
  std::vector<std::string> names;
  std::uint64_t bytes = 0;
  std::uint64_t kind = 0;

  Points() { trace::set_sink(&Points::on_event, this); }
  ~Points() { trace::set_sink(nullptr, nullptr); }
  Points(const Points&) = delete;
  Points& operator=(const Points&) = delete;

  static void on_event(void* context, const trace::Event& event) noexcept {
    auto& self = *static_cast<Points*>(context);
    const std::string name = event.name;
    if (!name.starts_with("group.")) return;
    self.names.push_back(name);
    if (name == "group.call") {
      self.bytes = event.details.bytes;
      self.kind = event.details.kind;
    }
  }
};

// The points of this thread's waits.
struct Waits {
  int begun = 0;
  int ended = 0;

  Waits() { trace::set_sink(&Waits::on_event, this); }
  ~Waits() { trace::set_sink(nullptr, nullptr); }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  static void on_event(void* context, const trace::Event& event) noexcept {
    auto& self = *static_cast<Waits*>(context);
    if (std::this_thread::get_id() != self.thread) return;
    if (std::string_view(event.name) == "work.wait") ++self.begun;
    if (std::string_view(event.name) == "work.waited") ++self.ended;
  }
  const std::thread::id thread = std::this_thread::get_id();
};

// Else the recorder would take the wait for computing, and the rule for slow ranks would name the rank that waits.
TEST(WatchedCall, AWaitForAnyWorkPassesItsPoints) {
  for (const std::string backend : {"threads", "gloo"}) {
    if (!is_backend_built(backend)) continue;
    test_support::run_ranks("threads", 2, [&](int rank, const std::shared_ptr<Store>& store) {
      const auto group = make_process_group(backend, store, rank, 2);
      at::Tensor tensor = at::ones({1});
      const auto message = [&] { return rank == 0 ? group->send({tensor}, 1) : group->recv({tensor}, 0); };
      const auto collective = [&] { return group->all_reduce({tensor}); };
      const std::function<std::shared_ptr<Work>()> calls[] = {message, collective};
      for (const auto& call : calls) {
        const auto work = call();
        if (rank == 1) {
          const Waits waits;
          work->wait();
          EXPECT_GE(waits.begun, 1) << backend;
          EXPECT_EQ(waits.ended, waits.begun) << backend;
        } else {
          work->wait();
        }
      }
      group->barrier()->wait();
      group->shutdown();
    });
  }
}

TEST(WatchedCall, PointsEncloseACallAlsoOneThatThrows) {
  const auto group = group_of_one();
  Points points;
  group->all_reduce({at::ones({3})})->wait();
  EXPECT_EQ(points.names, (std::vector<std::string>{"group.call", "group.return"}));
  EXPECT_EQ(points.bytes, 12U);
  EXPECT_EQ(points.kind, static_cast<std::uint64_t>(observe::CallKind::all_reduce));
  group->shutdown();
  EXPECT_THROW(group->all_reduce({at::ones({3})})->wait(), Error);
  EXPECT_EQ(points.names, (std::vector<std::string>{"group.call", "group.return", "group.call", "group.return"}));
}

}  // namespace
}  // namespace gradwire::watched_call_test
