// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a BackendGroup begins, takes its turns, multiplies and ends.
#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <utility>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/backend_group_internal.h"
#include "gradwire/process_group/ends_with_group_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/outer_ranks_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

// What takes less time than waking a thread.
constexpr std::size_t kSmallCall = 16 << 10;

at::Tensor tensor_over(Allocation allocation, std::int64_t numel, const at::TensorOptions& options) {
  void* data = allocation.data.get();
  return at::from_blob(
      data, {numel}, [held = std::move(allocation.data)](void*) mutable { held.reset(); }, options);
}

// A duplicate, which must go before the backend it came from.
struct OwnedChannel {
  std::shared_ptr<Channel> origin;
  std::unique_ptr<Channel> channel;
};

// What a rank asks of a split, and which process it is: a rank that dies on its way to the new group is not waited for.
struct SplitRequest {
  SplitRequest() = default;
  SplitRequest(int its_color, int its_key) : color(its_color), key(its_key) {
    const std::string name = process_identity();
    if (name.size() < process.size()) std::copy(name.begin(), name.end(), process.begin());
  }
  std::int32_t color = 0;
  std::int32_t key = 0;
  std::array<char, 248> process{};  // empty: not known
};

std::shared_ptr<Channel> own(std::shared_ptr<Channel> origin, std::unique_ptr<Channel> channel) {
  auto owned = std::make_shared<OwnedChannel>(OwnedChannel{std::move(origin), std::move(channel)});
  return {owned, owned->channel.get()};
}

}  // namespace

std::shared_ptr<BackendGroup> make_backend_group(std::shared_ptr<Backend> backend, std::shared_ptr<Store> store) {
  std::string name(backend->name());
  Channel& first = backend->channel();
  const bool in_place = backend->capabilities().in_place_memory;
  return std::make_shared<BackendGroup>(std::shared_ptr<Channel>(std::move(backend), &first), std::move(name), in_place,
                                        std::move(store));
}

BackendGroup::BackendGroup(std::shared_ptr<Channel> channel, std::string backend_name, bool in_place,
                           std::shared_ptr<Store> store)
    : CallGroup(channel->rank(), channel->size()),
      backend_name_(std::move(backend_name)),
      in_place_(in_place),
      watcher_(std::make_shared<CompletionWatcher>()),
      channel_(std::move(channel)),
      store_(std::move(store)),
      calls_("gw-collectives") {}

BackendGroup::~BackendGroup() {
  if (!owner_.is_current()) {
    // A forked child: whatever the channel or the store would say at their end, they would say for the parent. Without
    // the mutex: a thread that is not here may hold it for ever.
    auto inherited = std::make_unique<std::pair<std::shared_ptr<Channel>, std::shared_ptr<Store>>>();
    inherited->first = std::move(channel_);
    inherited->second = std::move(store_);
    static_cast<void>(inherited.release());
    return;
  }
  calls_.close();
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(mutex_);
    channel = channel_;
  }
  if (channel != nullptr && calls_.under_way())
    channel->abort("the group was let go with work under way; call shutdown() to finish it first");
  calls_.finish();
  watcher_->stop(false, "the group was let go with messages under way");
}

std::string BackendGroup::describe(const char* operation) const {
  return name_group(*this).append(": ").append(operation);
}

void BackendGroup::fail_shut_down(const char* operation) const {
  throw InvalidArgument(concat(describe(operation), ": the group was shut down; make a new one"));
}

std::shared_ptr<Channel> BackendGroup::channel(const char* operation) const {
  owner_.require_current("a process group");
  MutexLock lock(mutex_);
  if (channel_ == nullptr) {
    lock.unlock();
    fail_shut_down(operation);
  }
  return channel_;
}

CallOptions BackendGroup::call_options(const CollectiveOptions& options, Deadline::Clock::time_point begin) const {
  return {Deadline::after(options.timeout.count() == 0 ? timeout() : options.timeout, begin), options.tag};
}

std::shared_ptr<Work> BackendGroup::post(const char* operation, const CollectiveOptions& options, Outputs outputs,
                                         Body body) {
  const auto start = outputs.bytes() <= kSmallCall ? Executor::Start::soon : Executor::Start::now;
  auto run_body = [channel = channel(operation), call = call_options(options, when_called()),
                   body = std::move(body)](const Outputs& given) { body(*channel, call, given); };
  auto work = calls_.post(operation, std::move(outputs), std::move(run_body), shared_from_this(), start);
  if (work == nullptr) fail_shut_down(operation);
  return work;
}

void BackendGroup::in_turn(const char* operation, const PlainBody& body, const CollectiveOptions& options) {
  const std::shared_ptr<Channel> channel = this->channel(operation);
  const CallOptions call = call_options(options, Deadline::Clock::now());
  const auto abort_all = [this] { abort(kInterrupted); };
  if (!calls_.in_turn([&] { body(*channel, call); }, abort_all)) fail_shut_down(operation);
}

void BackendGroup::before_next_call(const Tensors&, std::function<void()> copy) {
  calls_.before_next(std::move(copy), shared_from_this());
}

void BackendGroup::abort(const std::string& reason) {
  if (!owner_.is_current()) return;
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(mutex_);
    channel = channel_ != nullptr ? channel_ : ended_channel_.lock();
  }
  if (channel != nullptr) channel->abort(reason);
  duplicates_.abort_all(*this, reason);
}

void BackendGroup::shutdown() {
  if (!owner_.is_current()) return;
  bool interrupted = calls_.finish([this] { abort(kInterrupted); });
  if (watcher_->stop(true, "the group was shut down")) {
    interrupted = true;
    abort(kInterrupted);
  }
  std::shared_ptr<Channel> channel;
  std::shared_ptr<Store> store;
  MutexLock lock(mutex_);
  if (channel_ != nullptr) ended_channel_ = channel_;
  channel.swap(channel_);
  store.swap(store_);
  lock.unlock();  // what goes here may take its time
  staging_.release();
  duplicates_.release(*this);
  if (interrupted) throw_interrupted_shutdown(*this);
}

bool BackendGroup::is_open() const {
  MutexLock lock(mutex_);
  return channel_ != nullptr;
}

std::shared_ptr<ProcessGroup> BackendGroup::do_dup() {
  const std::shared_ptr<Channel> origin = channel("dup");
  std::unique_ptr<Channel> made;
  in_turn("dup", [&](Channel& channel, const CallOptions& call) { made = channel.duplicate(call); });
  MutexLock lock(mutex_);
  const std::uint64_t number = dups_++;
  std::shared_ptr<Store> store;
  if (store_ != nullptr) store = std::make_shared<PrefixStore>(concat("dup/", number), store_);
  auto group = std::make_shared<BackendGroup>(own(origin, std::move(made)), backend_name_, in_place_, std::move(store));
  lock.unlock();
  group->set_timeout(timeout());
  group->set_group_desc(group_desc());
  duplicates_.add(group);
  return group;
}

std::shared_ptr<ProcessGroup> BackendGroup::do_split(int color, int key, const std::optional<std::string>& desc) {
  {
    MutexLock lock(mutex_);
    if (channel_ != nullptr && store_ == nullptr) {
      lock.unlock();
      throw UnsupportedError(
          concat(describe("split"), ": this group was made without a store, in which the new one would meet"));
    }
  }
  const SplitRequest mine(color, key);
  std::vector<SplitRequest> all(static_cast<std::size_t>(size()));
  in_turn("split", [&](Channel& channel, const CallOptions& call) {
    std::vector<void*> places;
    for (SplitRequest& each : all) places.push_back(&each);
    channel.all_gather(&mine, places, sizeof(mine), DType::u8, call);
  });
  const auto request_of = [&all](int rank) -> const SplitRequest& { return all[static_cast<std::size_t>(rank)]; };
  std::shared_ptr<Store> store;
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = splits_++;
    store = store_;
  }
  if (store == nullptr) fail_shut_down("split");
  if (color < 0) return nullptr;
  std::vector<int> members;
  for (int rank = 0; rank < size(); ++rank) {
    if (request_of(rank).color == color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return request_of(a).key < request_of(b).key; });
  std::vector<std::string> processes;
  for (const int member : members) processes.emplace_back(request_of(member).process.data());
  const auto place = std::find(members.begin(), members.end(), rank());
  auto prefixed = std::make_shared<PrefixStore>(concat("split/", number, "/", color), std::move(store));
  std::shared_ptr<BackendGroup> group;
  const EndsWithGroup ends(*this);
  try {
    PrefixStore backend_store("backend", prefixed);
    rendezvous::register_processes(backend_store, processes);
    group = std::dynamic_pointer_cast<BackendGroup>(make_process_group(backend_name_, prefixed,
                                                                       static_cast<int>(place - members.begin()),
                                                                       static_cast<int>(members.size()), timeout()));
  } catch (const AbortedError&) {
    ends.throw_if_aborted(describe("split").c_str());
    throw;
  } catch (...) {
    std::rethrow_exception(in_outer_ranks(std::current_exception(), members));
  }
  group->set_group_desc(desc.value_or(group_desc()));
  return group;
}

at::Tensor BackendGroup::do_allocate(std::int64_t numel, at::ScalarType dtype) {
  const at::TensorOptions options = at::TensorOptions(dtype).device(at::kCPU);
  if (numel == 0) return at::zeros({0}, options);
  return tensor_over(allocation_of(static_cast<std::size_t>(numel) * at::elementSize(dtype)), numel, options);
}

Allocation BackendGroup::allocation_of(std::size_t bytes, const CollectiveOptions& options) {
  Allocation allocation;
  in_turn(
      "allocate", [&](Channel& channel, const CallOptions& call) { allocation = channel.allocate(bytes, call); },
      options);
  return allocation;
}

at::Tensor BackendGroup::in_place_memory(std::int64_t bytes, const CollectiveOptions& options) {
  Allocation allocation;
  try {
    allocation = allocation_of(static_cast<std::size_t>(bytes), options);
  } catch (const MismatchError& error) {
    throw MismatchError(concat(error.what(), "; allocate(", bytes,
                               " bytes) is for the staging memory of the first large call with tensors on devices"));
  } catch (const std::exception&) {
    return {};
  }
  return allocation.in_place ? tensor_over(std::move(allocation), bytes, at::kByte) : at::Tensor();
}

Tensors BackendGroup::do_symmetric_memory(const at::Tensor& tensor) {
  Tensors views;
  if (!tensor.is_cpu() || tensor.numel() == 0) return views;
  for (auto& memory : channel("symmetric_memory")->symmetric_memory(tensor.const_data_ptr(), tensor.nbytes())) {
    std::byte* const data = memory.get();
    views.push_back(at::from_blob(
        data, tensor.sizes(), [held = std::move(memory)](void*) mutable { held.reset(); },
        tensor.options().requires_grad(false)));
  }
  return views;
}

}  // namespace gradwire::internal
