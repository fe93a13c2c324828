// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a GroupOverC10d begins, multiplies, fails and ends.
#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "gradwire/base/call_name.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/sigpipe.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_error_internal.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/group_over_c10d_internal.h"
#include "gradwire/process_group/ordered_calls_internal.h"
#include "gradwire/process_group/outer_ranks_internal.h"
#include "gradwire/process_group/parked_threads_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

using BackendPtr = GroupOverC10d::BackendPtr;

// Whether a receive from `peer` missed its timeout, as it should.
bool lets_a_receive_be_late(c10d::Backend& engine, int peer) {
  try {
    Tensors byte{at::zeros({1}, at::TensorOptions(at::kByte))};
    constexpr int kNoTagOfUsers = std::numeric_limits<int>::max();
    engine.recv(byte, peer, kNoTagOfUsers)->wait(Milliseconds{1});
  } catch (...) {
    try {
      std::rethrow_exception(error_from_c10d("closing", std::current_exception(), false));
    } catch (const TimeoutError&) {
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  return false;
}

// A Gloo receive that misses its timeout closes all connections of its group: what is under way here fails at once,
// and so does what the others have under way. Gloo has no other way to end a call early. A connection that has broken
// cannot be late, so another peer's is tried then.
void close_gloo(c10d::Backend& engine) {
  const NoSigpipe quiet;
  for (int peer = 0; peer < engine.getSize(); ++peer) {
    if (peer != engine.getRank() && lets_a_receive_be_late(engine, peer)) return;
  }
}

// Every rank sends every other one byte, so that an engine which connects when it is first used is connected.
void connect_all(c10d::Backend& engine, Milliseconds timeout) {
  at::Tensor from = at::zeros({engine.getSize()}, at::TensorOptions(at::kByte));
  at::Tensor to = at::zeros({engine.getSize()}, at::TensorOptions(at::kByte));
  std::vector<std::int64_t> even;
  c10d::AllToAllOptions options;
  options.timeout = timeout;
  engine.alltoall_base(to, from, even, even, options)->wait();
}

// Gloo writes the new group's ranks into the options that it is given, which are the origin's own; put back what was
// there, or the origin cannot split again.
BackendPtr split_engine(c10d::Backend& origin, const c10::intrusive_ptr<c10d::Store>& store,
                        const std::vector<int>& members) {
  const auto options = origin.getBackendOptions();
  auto& ranks = options->global_ranks_in_group;
  const std::vector<std::uint64_t> before = ranks;
  if (ranks.size() != static_cast<std::size_t>(origin.getSize())) {
    ranks.resize(static_cast<std::size_t>(origin.getSize()));
    std::iota(ranks.begin(), ranks.end(), std::uint64_t{0});
  }
  BackendPtr made = origin.split(store, members, options);
  ranks = before;
  return made;
}

// The engine of `origin`'s ranks `members`, which hold `meeting`; connected.
BackendPtr make_engine(c10d::Backend& origin, const EngineMaker& maker, const EngineMeeting& meeting,
                       const std::vector<int>& members) {
  const NoSigpipe quiet;  // as make_gloo()
  if (maker) return maker(meeting);
  BackendPtr made = split_engine(origin, store_to_c10d(meeting.store), members);
  connect_all(*made, meeting.timeout);
  return made;
}

// Drops an engine; not on a thread of its own, which it could not join.
void let_go(BackendPtr engine) {
  if (!in_engine_callback()) return;
  auto held = std::make_shared<BackendPtr>(std::move(engine));
  park_thread(Thread("gw-c10d-end", [held = std::move(held)] { held->reset(); }));
}

}  // namespace

GroupOverC10d::GroupOverC10d(BackendPtr backend, std::shared_ptr<Store> store, EngineMaker maker,
                             std::vector<std::string> processes)
    : CallGroup(backend->getRank(), backend->getSize()),
      name_(backend->getBackendName()),
      traits_(traits_of(name_)),
      maker_(std::move(maker)),
      end_(std::make_shared<EndRecord>(store, backend->getRank(), backend->getSize(), std::move(processes))),
      ledger_(std::make_shared<C10dLedger>([end = end_](const std::string& what, std::exception_ptr error,
                                                        bool at_call) { return end->explain(what, error, at_call); })),
      waiters_(std::make_shared<MessageWaiters>()),
      backend_(own(std::move(backend))),
      store_(std::move(store)) {}

GroupOverC10d::EnginePtr GroupOverC10d::own(BackendPtr backend) {
  c10d::Backend* const engine = backend.get();
  return {engine, [held = std::move(backend)](c10d::Backend*) mutable { let_go(std::move(held)); }};
}

GroupOverC10d::~GroupOverC10d() {
  if (!owner_.is_current()) {
    // A forked child: an engine that ends here would wait for threads that are not here, and speak for the parent.
    // Without the mutex: one of those threads may hold it for ever.
    static_cast<void>(std::make_unique<EnginePtr>(std::move(backend_)).release());
    return;
  }
  EnginePtr engine;
  {
    MutexLock lock(mutex_);
    engine = backend_;
  }
  if (engine && ledger_->under_way() > 0)
    abort("the group was let go with work under way; call shutdown() to finish it first");
  waiters_->join();
  MutexLock lock(mutex_);
  backend_.reset();  // `engine` is the last one now, and goes before the other members
}

std::string GroupOverC10d::describe(const char* operation) const {
  return name_group(*this).append(": ").append(call_name(operation));
}

GroupOverC10d::EnginePtr GroupOverC10d::engine(const char* operation) const {
  owner_.require_current("a process group");
  MutexLock lock(mutex_);
  if (!backend_) {
    lock.unlock();
    throw InvalidArgument(concat(describe(operation), ": the group was shut down; make a new one"));
  }
  return backend_;
}

bool GroupOverC10d::supports(c10::DeviceType device) const {
  if (device == c10::DeviceType::CPU) return traits_.serves_cpu;
  return traits_.serves_others || stages(*this, device);
}

void GroupOverC10d::abort(const std::string& reason) {
  if (!owner_.is_current()) return;
  EnginePtr engine;
  bool first = false;
  {
    MutexLock lock(mutex_);
    engine = backend_;
    first = engine && !std::exchange(closed_, true);
  }
  if (first) {
    const bool well = !ledger_->failure();
    const std::exception_ptr error = ledger_->fail(
        "", std::make_exception_ptr(AbortedError(concat(name_group(*this), " aborted: ", reason))), false);
    if (well) end_->say_aborted(reason);
    // After an error of the engine's, too: other calls may be under way on connections that are whole.
    if (traits_.is_gloo) {
      close_gloo(*engine);
    } else {
      engine->abort();
      ledger_->end_all(error);
    }
  }
  duplicates_.abort_all(*this, reason);
}

// The engine has no turn for a copy. A callback of the engine's runs on the thread that ends the calls, and must not
// wait.
void GroupOverC10d::before_next_call(const Tensors& inputs, std::function<void()> copy) {
  if (!owner_.is_current()) return;  // the call that comes is refused
  if (!in_engine_callback()) {
    try {
      ledger_->wait_for_writers(inputs);
    } catch (const AbortedError&) {
      abort(kInterrupted);
      throw;
    }
  }
  copy();
}

void GroupOverC10d::shutdown() {
  if (!owner_.is_current()) return;
  const bool interrupted = wait_for_calls();
  waiters_->join();
  EnginePtr engine;
  std::shared_ptr<Store> store;
  MutexLock lock(mutex_);
  std::swap(engine, backend_);
  store.swap(store_);
  lock.unlock();  // what goes here may take its time
  duplicates_.release(*this);
  if (interrupted) throw_interrupted_shutdown(*this);
}

bool GroupOverC10d::wait_for_calls() {
  try {
    ledger_->wait_all();
    return false;
  } catch (const AbortedError&) {
    abort(kInterrupted);
  }
  // The calls end soon now.
  const InterruptCheckScope uninterrupted(nullptr);
  ledger_->wait_all();
  return true;
}

bool GroupOverC10d::is_open() const {
  MutexLock lock(mutex_);
  return backend_ != nullptr;
}

void GroupOverC10d::require_well() {
  if (const std::exception_ptr error = ledger_->failure()) std::rethrow_exception(error);
  if (!traits_.tells_errors) return;
  const c10d::ErrorType error = engine("the end of a step")->getError();
  if (error == c10d::ErrorType::SUCCESS) return;
  const std::string what = concat(describe("a call on the device"), " failed after it had returned: ");
  if (error == c10d::ErrorType::TIMEOUT) throw TimeoutError(concat(what, "it missed its deadline"));
  throw PeerError(
      concat(what, error == c10d::ErrorType::REMOTE_ERROR ? "another rank or its network is gone"
                                                          : "the engine reports an error; its log says more"),
      {});
}

std::shared_ptr<GroupOverC10d> GroupOverC10d::make_group(const char* operation, int color,
                                                         const std::vector<int>& members) {
  const EnginePtr origin = engine(operation);
  std::shared_ptr<Store> store;
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    store = store_;
    number = made_++;
  }
  if (store == nullptr || (!maker_ && !origin->supportsSplitting())) return nullptr;
  if (const std::exception_ptr error = ledger_->failure()) std::rethrow_exception(error);
  if (members.empty()) return nullptr;
  auto prefixed = std::make_shared<PrefixStore>(concat("made/", number, "/", color), std::move(store));
  EngineMeeting meeting;
  meeting.store = std::make_shared<PrefixStore>("engine", prefixed);
  meeting.rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  meeting.size = static_cast<int>(members.size());
  meeting.timeout = timeout();
  meeting.deadline = Deadline::after(meeting.timeout);
  for (const int member : members) {
    if (!end_->processes().empty()) meeting.processes.push_back(end_->processes()[static_cast<std::size_t>(member)]);
  }
  meeting.check = [ledger = ledger_, end = end_, members, what = describe(operation)] {
    std::exception_ptr ended = ledger->failure();
    if (!ended) ended = end->told(what, "while the ranks of a new group met");
    if (ended) ended = in_inner_ranks(ended, members);
    if (ended) std::rethrow_exception(ended);
  };
  try {
    BackendPtr made = make_engine(*origin, maker_, meeting, members);
    auto group = std::make_shared<GroupOverC10d>(std::move(made), std::move(prefixed), maker_, meeting.processes);
    group->set_timeout(timeout());
    group->set_group_desc(group_desc());
    return group;
  } catch (...) {
    const auto error = error_from_c10d(describe(operation), std::current_exception(), false);
    std::rethrow_exception(in_outer_ranks(error, members));
  }
}

std::shared_ptr<ProcessGroup> GroupOverC10d::do_dup() {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  auto group = make_group("dup", 0, all);
  if (group != nullptr) duplicates_.add(group);
  return group;
}

std::shared_ptr<ProcessGroup> GroupOverC10d::do_split(int color, int key, const std::optional<std::string>& desc) {
  const auto longs = at::TensorOptions(at::kLong);
  const at::Tensor all = at::zeros({size(), 2}, longs);
  const at::Tensor mine = at::zeros({2}, longs);
  mine[0].fill_(color);
  mine[1].fill_(key);
  all_gather_into_tensor(all, mine)->wait();
  const auto* asked = all.const_data_ptr<std::int64_t>();
  std::vector<int> members;
  for (int rank = 0; rank < size(); ++rank) {
    if (color >= 0 && asked[2 * rank] == color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return asked[2 * a + 1] < asked[2 * b + 1]; });
  auto group = make_group("split", color, members);
  if (group == nullptr && !members.empty()) {
    throw UnsupportedError(concat(describe("split"), ": the engine '", name_,
                                  "' was handed over without a store, or without a way to make another"));
  }
  if (group != nullptr && desc) group->set_group_desc(*desc);
  return group;
}

at::Tensor GroupOverC10d::do_allocate(std::int64_t numel, at::ScalarType dtype) {
  engine("allocate");  // refuses, where there is none
  if (const std::exception_ptr error = ledger_->failure()) std::rethrow_exception(error);
  return ProcessGroup::do_allocate(numel, dtype);
}

void GroupOverC10d::do_monitored_barrier(Milliseconds timeout, bool wait_all) {
  const EnginePtr engine = this->engine("monitored_barrier");
  if (const std::exception_ptr error = ledger_->failure()) std::rethrow_exception(error);
  std::shared_ptr<Store> store;
  {
    MutexLock lock(mutex_);
    store = store_;
  }
  // Through the store, because a message of Gloo's that misses its timeout ends the group.
  if (store != nullptr) {
    const std::string what = describe("monitored_barrier");
    const auto check = [&] {
      throw_if_interrupted(what);
      if (const std::exception_ptr error = ledger_->failure()) std::rethrow_exception(error);
      if (const std::exception_ptr error = end_->told(what, "while ranks waited")) std::rethrow_exception(error);
    };
    const auto has_died = [&](int peer) { return end_->has_died(peer); };
    return barriers_.meet(*this, *store->clone(), timeout, wait_all, {check, has_died});
  }
  try {
    c10d::BarrierOptions options;
    options.timeout = timeout;
    engine->monitoredBarrier(options, wait_all);
  } catch (...) {
    std::rethrow_exception(ledger_->fail(describe("monitored_barrier"), std::current_exception(), false));
  }
}

}  // namespace gradwire::internal
