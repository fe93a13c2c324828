// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/member.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::testing {
namespace {

constexpr std::array<const char*, kComplaints> kWords{"hang", "wrong", "unnamed", "left"};
constexpr int kCallsAfterwards = 4;
constexpr double kTooLateMs = 10'000;  // the promise is 2 s, the rest is for slow machines

std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

Member::Member(const Fault& fault, int rank, Stage& stage, const std::string& store_path,
               std::shared_ptr<Store> shared_store)
    : fault_(fault),
      stage_(stage),
      rank_(rank),
      world_{shared_store != nullptr ? Kind::threads : Kind::shm, fault.ranks},
      store_(shared_store != nullptr ? shared_store->clone() : open_store(store_path)),
      random_(fault.detail),
      context_(make_context(rank, fault.ranks)) {
  stage_.pids[static_cast<std::size_t>(rank)].store(::getpid());
  store_->add("came", 1);  // a store's own thread and connections come with first use
  before_ = footprint();
}

std::shared_ptr<Store> Member::open_store(const std::string& path) const {
  std::shared_ptr<Store> store;
  if (fault_.tcp_store) {
    TcpStoreOptions options;
    options.port = static_cast<std::uint16_t>(stage_.port.load());
    options.timeout = kGuard;
    store = std::make_shared<TcpStore>(options);
  } else {
    store = std::make_shared<FileStore>(path);
  }
  store->set_timeout(kGuard);
  return store;
}

std::unique_ptr<RankContext> Member::make_context(int rank, int size) const {
  auto context =
      std::make_unique<RankContext>(World{world_.kind, size}, rank, std::make_shared<PrefixStore>("test", store_));
  context->make_backend = [this, rank, size](int generation, Milliseconds timeout) {
    BackendOptions options;
    options.store = std::make_shared<PrefixStore>(concat("backend", generation), store_->clone());
    options.rank = rank;
    options.size = size;
    options.timeout = timeout;
    return make_backend(world_.kind == Kind::threads ? "threads" : "shm", options);
  };
  return context;
}

void Member::join(Milliseconds timeout) {
  stage_.doing[static_cast<std::size_t>(rank_)].store("the rendezvous");
  context_->join(0, timeout);
  program_ = std::make_unique<Program>(*context_, stage_, fault_.seed);
}

void Member::make_calls(int count) {
  for (int i = 0; i < count; ++i) program_->make_call();
}

void Member::warm_up() {
  make_calls(fault_.warm_up);
  channel().barrier(guarded());  // a receive from any rank ends with a death
}

void Member::make_calls_for_ever() {
  while (!::testing::Test::HasFailure()) program_->make_call();
}

void Member::die() {
  stage_.death.stamp();
  ::kill(::getpid(), SIGKILL);
}

void Member::learn(const std::function<void()>& body, bool also_timeout) {
  try {
    try {
      body();
    } catch (const PeerError& error) {
      if (!is_about_a_survivor(error)) throw;
      // Another survivor has learned first and ended: true, but not what this is about. The next collective is.
      channel().barrier(guarded());
    }
    report(Complaint::wrong, "nobody noticed what happened to the victim");
  } catch (const std::exception& error) {
    judge(error, also_timeout);
  }
  stage_.told.raise();
}

bool Member::is_about_a_survivor(const PeerError& error) const {
  const std::string doing = stage_.doing[static_cast<std::size_t>(rank_)].load();
  const bool among_some = doing == Program::kMessages || doing == Program::kSplit;
  return among_some && !names_a_victim(error.peers(), error.what());
}

// Survivors that have learned and left may be named beside a victim.
bool Member::names_a_victim(const std::vector<int>& peers, const std::string& text) const {
  bool named = false;
  for (const int peer : peers) {
    const bool victim = testing::is_victim(fault_, peer);
    if (!victim && !stage_.leaves[static_cast<std::size_t>(peer)].load()) return false;
    if (text.find(concat("rank ", peer)) == std::string::npos) return false;
    named = named || victim;
  }
  return named;
}

void Member::judge(const std::exception& error, bool also_timeout) {
  const double ms = stage_.death.milliseconds_since();
  const std::string text = describe(error);
  std::vector<int> peers;
  if (const auto* peer = dynamic_cast<const PeerError*>(&error)) {
    peers = peer->peers();
  } else if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error)) {
    if (!also_timeout) return report(Complaint::hang, text);
    // On a busy machine others may be late, too.
    peers = timeout->peers();
    if (peers.size() > 1) std::erase_if(peers, [this](int peer) { return !testing::is_victim(fault_, peer); });
  } else {
    return report(Complaint::wrong, text);
  }
  if (!stage_.death.stamped()) return report(Complaint::wrong, "before the fault: " + text);
  ChildProcess::note(concat("known ", ms));
  if (ms > kTooLateMs) report(Complaint::hang, concat("known after ", ms, " ms only: ", text));
  if (!names_a_victim(peers, text)) {
    report(Complaint::unnamed, concat("peers() is ", gradwire::join(peers, ", "), " with: ", text));
  }
}

void Member::fail_to_meet(Milliseconds timeout) {
  try {
    join(timeout);
    report(Complaint::wrong, "the rendezvous went well");
  } catch (const Error& error) {
    ChildProcess::note(concat("known ", stage_.death.milliseconds_since()));
    const std::string text = describe(error);
    if (text.find(concat("rank ", victim())) == std::string::npos) report(Complaint::unnamed, text);
  }
}

void Member::expect_ended() const {
  try {
    context_->channel().barrier(guarded());
    report(Complaint::wrong, "a barrier went well after the group's end");
  } catch (const PeerError&) {
  } catch (const TimeoutError&) {
  } catch (const AbortedError&) {
  } catch (const Error& error) {
    report(Complaint::wrong, "a barrier after the group's end: " + describe(error));
  }
}

void Member::after_death() {
  if (program_ != nullptr) expect_ended();
  leave();
  if (!fault_.new_world) return;
  int rank = 0;
  for (int other = 0; other < rank_; ++other) rank += testing::is_victim(fault_, other) ? 0 : 1;
  make_another_world(rank, survivors());
}

void Member::after_abort() {
  expect_ended();
  leave();
  if (fault_.new_world) make_another_world(rank_, size());
}

void Member::after_nothing() {
  make_calls(kCallsAfterwards);
  channel().barrier(guarded());
  leave();
}

void Member::leave() {
  stage_.leaves[static_cast<std::size_t>(rank_)].store(true);
  program_.reset();
  context_->leave();
  if (world_.kind == Kind::threads || fault_.tcp_store) return;  // others of this process hold things, too
  const std::string grown = grown_since(before_);
  if (!grown.empty()) report(Complaint::left, grown);
}

void Member::let_go_in_child() {
  program_.reset();
  context_.reset();
  store_.reset();
}

void Member::make_another_world(int rank, int size) {
  stage_.doing[static_cast<std::size_t>(rank_)].store("the rendezvous of the survivors");
  const std::unique_ptr<RankContext> context = make_context(rank, size);
  context->join(1, kGuard);
  {
    Program program(*context, stage_, fault_.seed + 1);
    for (int i = 0; i < kCallsAfterwards; ++i) program.make_call();
  }
  context->leave();
}

void Member::report(Complaint complaint, const std::string& text) {
  ChildProcess::note(concat(kWords[static_cast<std::size_t>(complaint)], " ", on_one_line(text)));
}

}  // namespace gradwire::testing
