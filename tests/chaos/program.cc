// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/program.h"

#include <unistd.h>

#include <array>

#include "gradwire/backend/registry.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"
#include "tests/chaos/leftovers.h"
#include "tests/conformance/child_process.h"

namespace gradwire::testing {
namespace {

constexpr std::size_t kLargest = 20'000;  // elements
constexpr std::size_t kMessageBytes[] = {0, 1, 500, 20'000, 70'000, 300'000};
constexpr std::size_t kMostDuplicates = 2;

}  // namespace

Program::Program(RankContext& context, Stage& stage, std::uint64_t seed)
    : context_(context), stage_(stage), random_(seed) {}

void Program::note(const char* what) {
  stage_.doing[static_cast<std::size_t>(context_.rank())].store(what);
  stage_.calls[static_cast<std::size_t>(context_.rank())].fetch_add(1);
  ++calls_;
}

void Program::make_call() {
  const std::size_t kind = random_.below(32);
  if (kind < 16) {
    collective();
  } else if (kind < 20) {
    placed();
  } else if (kind < 26) {
    exchange();
  } else if (kind < 28) {
    duplicate();
  } else if (kind < 29) {
    allocate();
  } else if (kind < 31) {
    use_store();
  } else {
    fork_child();
  }
}

Channel& Program::any_channel() {
  const std::size_t which = random_.below(1 + duplicates_.size());
  return which == 0 ? context_.channel() : *duplicates_[which - 1];
}

void Program::collective() {
  RandomCalls calls(context_, any_channel(), kLargest);
  note(RandomCalls::kKinds[calls.draw(random_)]);
  calls.make();
}

void Program::placed() {
  if (arena_ == nullptr) allocate();
  const std::size_t count = random_.below((kLargest >> random_.below(8)) + 1);
  const std::uint64_t seed = random_.below(1'000'000);
  const std::vector<Bytes> inputs = make_inputs(DType::f32, count, context_.size(), seed);
  const auto own = static_cast<std::size_t>(context_.rank());
  arena_->start(kPlacements[random_.below(std::size(kPlacements))], 4 * random_.below(4));
  if (random_.below(2) == 0) {
    note("all_reduce of placed memory");
    std::byte* const data = arena_->add(inputs[own]);
    context_.channel().all_reduce(data, count, DType::f32, ReduceOp::sum(), guarded());
    EXPECT_EQ(difference(data, combine(DType::f32, ReduceOp::sum(), inputs), DType::f32), "");
  } else {
    note("all_gather of placed memory");
    std::vector<void*> outputs;
    for (std::size_t r = 0; r < ranks(); ++r) outputs.push_back(arena_->add(inputs[own].size()));
    context_.channel().all_gather(arena_->add(inputs[own]), outputs, count, DType::f32, guarded());
    for (std::size_t r = 0; r < ranks(); ++r) {
      EXPECT_EQ(difference(static_cast<const std::byte*>(outputs[r]), inputs[r], DType::f32), "");
    }
  }
  arena_->expect_fences();
}

void Program::exchange() {
  note(kMessages);
  const std::size_t bytes = kMessageBytes[random_.below(std::size(kMessageBytes))];
  const std::uint64_t seed = random_.below(1'000'000);
  const bool from_any = random_.below(2) == 0;
  const bool send_first = random_.below(2) == 0;
  Channel& channel = any_channel();
  if (context_.size() == 1) return;
  const int next = (context_.rank() + 1) % context_.size();
  const int before = (context_.rank() + context_.size() - 1) % context_.size();
  const Bytes sent = make_input(DType::u8, bytes, context_.rank(), seed);
  Bytes got(bytes);
  std::shared_ptr<Request> send;
  if (send_first) send = channel.isend(sent.data(), bytes, next, calls_);
  const std::shared_ptr<Request> receive = channel.irecv(got.data(), bytes, from_any ? kAnySource : before, calls_);
  if (!send_first) send = channel.isend(sent.data(), bytes, next, calls_);
  const Request::Status status = receive->wait(guarded().deadline);
  EXPECT_EQ(status.source, before);
  EXPECT_EQ(status.bytes, bytes);
  EXPECT_EQ(difference(got.data(), make_input(DType::u8, bytes, before, seed), DType::u8), "");
  send->wait(guarded().deadline);
}

void Program::duplicate() {
  note("duplicate");
  if (duplicates_.size() == kMostDuplicates) return duplicates_.clear();
  duplicates_.push_back(any_channel().duplicate(guarded()));
}

void Program::split() {
  note(kSplit);
  const int part = context_.rank() % 2;
  // As a process group does: which process each rank is, so that one which dies on its way is not waited for.
  std::array<char, 256> process{};
  process_identity().copy(process.data(), process.size() - 1);
  std::vector<std::array<char, 256>> all(ranks());
  std::vector<void*> outputs;
  for (auto& one : all) outputs.push_back(one.data());
  context_.channel().all_gather(process.data(), outputs, process.size(), DType::u8, guarded());
  std::vector<std::string> processes;
  for (std::size_t r = static_cast<std::size_t>(part); r < ranks(); r += 2) processes.emplace_back(all[r].data());

  BackendOptions options;
  options.store = std::make_shared<PrefixStore>(concat("split", calls_, "/", part), context_.store().clone());
  options.rank = context_.rank() / 2;
  options.size = (context_.size() + 1 - part) / 2;
  options.timeout = kGuard;
  rendezvous::register_processes(*options.store, processes);
  try {
    const auto backend = make_backend(context_.backend().name(), options);
    const std::vector<Bytes> inputs = make_inputs(DType::f32, 100, options.size, calls_);
    Bytes data = inputs[static_cast<std::size_t>(options.rank)];
    backend->channel().all_reduce(data.data(), 100, DType::f32, ReduceOp::sum(), guarded());
    EXPECT_EQ(difference(data.data(), combine(DType::f32, ReduceOp::sum(), inputs), DType::f32), "");
  } catch (const PeerError& error) {
    // Its numbers are those of the part.
    std::vector<int> peers;
    std::string names;
    for (const int peer : error.peers()) {
      peers.push_back(2 * peer + part);
      names += concat("rank ", peers.back(), ", ");
    }
    throw PeerError(concat("a split failed for ", names, "in whose group: ", error.what()), peers);
  }
}

void Program::allocate() {
  note("allocate");
  arena_ = std::make_unique<Arena>(context_, (2 + ranks()) * kLargest * sizeof(float));
}

void Program::use_store() {
  note("the store");
  const std::string own = concat("own/", context_.rank());
  const std::string value(random_.below(10'000), 'v');
  Store& store = context_.store();
  store.set(own, value);
  EXPECT_EQ(store.get(own), value);
  EXPECT_GE(store.add(concat("visits/", calls_), 1), 1);
}

void Program::fork_child() {
  note("a forked child");
  const bool mine = random_.below(ranks()) == static_cast<std::size_t>(context_.rank());
  if (!mine || !has_processes(context_.world().kind)) return;
  EXPECT_TRUE(run_forked([this] { expect_refused_in_child(context_.channel()); })) << "a forked child hangs";
}

bool run_forked(const std::function<void()>& body) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw ResourceError("the test cannot fork");
  if (child == 0) {
    end_with_parent(parent);
    body();
    ::_exit(0);
  }
  return reap(child);
}

void expect_refused_in_child(Channel& channel) {
  EXPECT_THROW(channel.barrier(guarded()), InvalidArgument);
  char byte = 0;
  EXPECT_THROW(channel.irecv(&byte, 1, 0, 0), InvalidArgument);
}

}  // namespace gradwire::testing
