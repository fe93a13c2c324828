// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/mpi/engine_internal.h"

#include <chrono>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::mpi {
namespace {

using Clock = Deadline::Clock;
using std::chrono::microseconds;

// How long a waiter asks again and again, giving its processor away in between, before it naps.
constexpr auto kEager = microseconds(500);
constexpr auto kWaiterNap = microseconds(100);
// Naps of the thread: where a waiter asks anyway, where requests are under way that nobody waits for, and otherwise.
constexpr auto kThreadNapBesideWaiters = microseconds(5000);
constexpr auto kThreadNapBusy = microseconds(100);
constexpr auto kThreadNapIdle = microseconds(1000);

std::string side_of(const Message& message) {
  const bool send = message.direction == Message::Direction::send;
  const std::string peer = message.peer == kAnySource ? "any rank" : concat("rank ", message.peer);
  return concat(send ? "send to " : "receive from ", peer, ", tag ", message.tag);
}

// Called by MPI_Finalize of a program that initialised MPI itself, before MPI goes.
int on_finalize(MPI_Comm, int, void* attribute, void*) {
  static_cast<Engine*>(attribute)->on_mpi_finalize();
  return MPI_SUCCESS;
}

int ask_to_be_told_of_finalize(Engine& engine) {
  int key = MPI_KEYVAL_INVALID;
  require_success(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &on_finalize, &key, nullptr), "MPI_Comm_create_keyval");
  require_success(MPI_Comm_set_attr(MPI_COMM_SELF, key, &engine), "MPI_Comm_set_attr");
  return key;
}

// Shuts down at the end of the process what groups that nobody destroyed may hold on to for longer.
struct Holder {
  std::shared_ptr<Engine> engine = std::make_shared<Engine>();
  ~Holder() { engine->shut_down(); }
};

}  // namespace

std::shared_ptr<Engine> Engine::of_this_process(int processes, Deadline deadline) {
  static Holder holder;
  holder.engine->owner_.require_current("MPI");
  holder.engine->await_connection(processes, deadline);
  return holder.engine;
}

void Engine::await_connection(int processes, Deadline deadline) {
  MutexLock lock(mutex_);
  while (!connected_ && !(initialised_ && size_ < processes)) {
    require_working();
    if (deadline.expired()) {
      throw TimeoutError(
          "backend mpi: by the deadline not every process of the MPI job had come; all of them must make their first "
          "mpi group together, also those that are no part of it");
    }
    changed_.wait_until(lock, deadline.earlier(Deadline::after(Milliseconds(100))).point());
  }
  if (size_ >= processes) return;
  throw InvalidArgument(concat("backend mpi: the group has ", processes,
                               " ranks, but this process is in an MPI job of ", size_,
                               "; start the program with mpirun or srun (ranks of gradwire-run or torchrun are "
                               "no MPI ranks)"));
}

Engine::Engine() : thread_("gradwire-mpi", [this] { run(); }) {}

Engine::~Engine() { shut_down(); }

// --- the thread ----------------------------------------------------------------------------------------------------

void Engine::run() {
  try {
    Library library;
    const int finalize_key = library.is_guest() ? ask_to_be_told_of_finalize(*this) : MPI_KEYVAL_INVALID;
    try {
      if (connect(library)) serve();
      leave();
    } catch (...) {
      const MutexLock lock(mutex_);
      break_off(std::current_exception());
    }
    const MutexLock lock(mutex_);
    // Finalising would wait for others that may never come; without it, mpirun ends them.
    if (broken_ != nullptr) library.abandon();
    break_off(std::make_exception_ptr(AbortedError("backend mpi: the process is ending, MPI is no longer there")));
    messages_.reset();
    transport_.reset();
    if (finalize_key != MPI_KEYVAL_INVALID && !mpi_is_ending_) MPI_Comm_delete_attr(MPI_COMM_SELF, finalize_key);
  } catch (...) {
    const MutexLock lock(mutex_);
    break_off(std::current_exception());
  }
}

bool Engine::connect(Library& library) {
  MutexLock lock(mutex_);
  rank_ = library.rank();
  size_ = library.size();
  initialised_ = true;
  changed_.notify_all();
  while (!library.connect()) {
    if (stopping_) {
      break_off(std::make_exception_ptr(AbortedError("backend mpi: the process ended before all others had come")));
      return false;
    }
    wake_.wait_for(lock, kThreadNapIdle);
  }
  communicator_ = library.communicator();
  job_ = library.job();
  transport_.emplace(communicator_, rank_, size_);
  messages_.emplace(*transport_);
  connected_ = true;
  changed_.notify_all();
  return true;
}

void Engine::serve() {
  MutexLock lock(mutex_);
  while (!stopping_ && broken_ == nullptr) {
    if (poll()) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
      continue;
    }
    wake_.wait_for(lock, waiters_ > 0 ? kThreadNapBesideWaiters : messages_->busy() ? kThreadNapBusy : kThreadNapIdle);
  }
}

void Engine::leave() {
  MutexLock lock(mutex_);
  if (broken_ != nullptr) return;
  messages_->end_all();
  // A barrier among all processes, for which no deadline would help: MPI_Finalize is one too. Until then this process
  // takes what others send, so that they can end.
  MPI_Request barrier = MPI_REQUEST_NULL;
  for (bool entered = false;;) {
    poll();
    if (broken_ != nullptr) return;
    if (!entered && transport_->idle()) {
      require_success(MPI_Ibarrier(communicator_, &barrier), "MPI_Ibarrier");
      entered = true;
    }
    int all = 0;
    if (entered) require_success(MPI_Test(&barrier, &all, MPI_STATUS_IGNORE), "MPI_Test");
    if (all != 0) return;
    wake_.wait_for(lock, kThreadNapBusy);
  }
}

void Engine::on_mpi_finalize() noexcept {
  if (thread_.is_current()) return;  // it takes the attribute away itself
  {
    const MutexLock lock(mutex_);
    mpi_is_ending_ = true;
  }
  shut_down();
}

void Engine::shut_down() noexcept {
  if (!owner_.is_current()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

bool Engine::poll() {
  try {
    const bool moved = messages_->poll();
    if (moved) changed_.notify_all();
    return moved;
  } catch (...) {
    break_off(std::current_exception());
    return false;
  }
}

void Engine::break_off(std::exception_ptr reason) {
  if (broken_ == nullptr) broken_ = std::move(reason);
  if (messages_) messages_->fail_all(broken_);
  changed_.notify_all();
}

void Engine::require_working() const {
  if (broken_ != nullptr) std::rethrow_exception(broken_);
}

// --- groups --------------------------------------------------------------------------------------------------------

std::uint64_t Engine::new_group_number() {
  const MutexLock lock(mutex_);
  return (static_cast<std::uint64_t>(rank_) << 32) | ++groups_made_;
}

void Engine::add_group(std::uint64_t group, int rank) {
  const MutexLock lock(mutex_);
  require_working();
  messages_->add_group(group, rank);
}

void Engine::place_group(std::uint64_t group, std::vector<int> processes) {
  const MutexLock lock(mutex_);
  require_working();
  messages_->place_group(group, std::move(processes));
}

void Engine::remove_group(std::uint64_t group) noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  if (messages_) messages_->remove_group(group);
}

void Engine::end_channel(const ChannelKey& key, std::string_view reason) noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  if (!messages_) return;
  messages_->end_channel(key, std::make_exception_ptr(AbortedError(std::string(reason))), reason);
  poll();
}

void Engine::remove_channel(const ChannelKey& key) noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  if (!messages_) return;
  messages_->remove_channel(key);
  poll();
}

// --- requests ------------------------------------------------------------------------------------------------------

MessagePtr Engine::post(Message description) {
  owner_.require_current("this group");
  const MutexLock lock(mutex_);
  require_working();
  try {
    return messages_->post(std::move(description));
  } catch (const InternalError&) {
    break_off(std::current_exception());
    throw;
  }
}

Request::Status Engine::wait(const MessagePtr& message, Deadline deadline) {
  owner_.require_current("this request");
  MutexLock lock(mutex_);
  ++waiters_;
  auto nap_from = Clock::now() + kEager;
  while (!message->done && broken_ == nullptr) {
    if (poll()) {
      nap_from = Clock::now() + kEager;
      continue;
    }
    if (deadline.expired()) break;
    if (Clock::now() < nap_from) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else {
      changed_.wait_for(lock, kWaiterNap);
    }
  }
  --waiters_;
  if (!message->done) {
    require_working();
    throw TimeoutError(concat(side_of(*message), ": nothing came of it by the deadline"),
                       message->peer == kAnySource ? std::vector<int>{} : std::vector<int>{message->peer});
  }
  if (message->error != nullptr) std::rethrow_exception(message->error);
  return message->status;
}

bool Engine::done(const MessagePtr& message) {
  owner_.require_current("this request");
  const MutexLock lock(mutex_);
  if (!message->done && messages_) poll();
  return message->done || broken_ != nullptr;
}

void Engine::cancel(const MessagePtr& message) noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  if (message->done || !messages_) return;
  messages_->forget(message, std::make_exception_ptr(AbortedError("the request was dropped before it ended")));
}

}  // namespace gradwire::mpi
