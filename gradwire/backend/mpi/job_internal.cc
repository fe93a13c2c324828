// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/mpi/job_internal.h"

#include <chrono>
#include <string>
#include <utility>

#include "gradwire/backend/messages/group_channel_internal.h"
#include "gradwire/backend/mpi/mpi_wire_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::mpi {
namespace {

using std::chrono::microseconds;

constexpr microseconds kNap{100};
constexpr microseconds kIdleNap{1000};
// How long a waiter asks again and again, giving its processor away in between, before it naps.
constexpr microseconds kSpin{500};

// Called by MPI_Finalize of a program that initialised MPI itself, before MPI goes.
int on_finalize(MPI_Comm, int, void* attribute, void*) {
  static_cast<Job*>(attribute)->on_mpi_finalize();
  return MPI_SUCCESS;
}

int ask_to_be_told_of_finalize(Job& job) {
  int key = MPI_KEYVAL_INVALID;
  require_success(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &on_finalize, &key, nullptr), "MPI_Comm_create_keyval");
  require_success(MPI_Comm_set_attr(MPI_COMM_SELF, key, &job), "MPI_Comm_set_attr");
  return key;
}

// Shuts down at the end of the process what groups that nobody destroyed may hold on to for longer.
struct Holder {
  std::shared_ptr<Job> job = std::make_shared<Job>();
  ~Holder() { job->shut_down(); }
};

}  // namespace

std::shared_ptr<Job> Job::of_this_process(int processes, Deadline deadline) {
  static Holder holder;
  holder.job->owner_.require_current("MPI");
  holder.job->await_connection(processes, deadline);
  return holder.job;
}

void Job::await_connection(int processes, Deadline deadline) {
  MutexLock lock(mutex_);
  while (!connected_ && !(initialised_ && size_ < processes)) {
    if (broken_ != nullptr) std::rethrow_exception(broken_);
    if (deadline.expired()) {
      throw TimeoutError(
          "backend mpi: by the deadline not every process of the MPI job had come; all of them must make their first "
          "mpi group together, also those that are no part of it");
    }
    changed_.wait_until(lock, deadline.earlier(Deadline::after(Milliseconds(100))).point());
  }
  if (broken_ != nullptr) std::rethrow_exception(broken_);
  if (size_ >= processes) return;
  throw InvalidArgument(concat("backend mpi: the group has ", processes,
                               " ranks, but this process is in an MPI job of ", size_,
                               "; start the program with mpirun or srun (ranks of gradwire-run or torchrun are "
                               "no MPI ranks)"));
}

Job::Job() : thread_("gradwire-mpi", [this] { run(); }) {}

Job::~Job() { shut_down(); }

std::uint64_t Job::new_group_number() {
  const MutexLock lock(mutex_);
  constexpr std::uint64_t kGroups = std::uint64_t{1} << 24;
  if (groups_made_ + 1 >= kGroups)
    throw ResourceError("backend mpi: this process has made as many groups as there can be");
  return static_cast<std::uint64_t>(rank_) * kGroups + ++groups_made_;
}

// --- the thread ----------------------------------------------------------------------------------------------------

void Job::run() {
  try {
    Library library;
    const int finalize_key = library.is_guest() ? ask_to_be_told_of_finalize(*this) : MPI_KEYVAL_INVALID;
    bool good = false;
    try {
      good = connect(library);
      if (good) {
        engine_->serve();
        good = leave();
      }
    } catch (...) {
      good = false;
      break_off(std::current_exception());
    }
    // Finalising would wait for others that may never come; without it, mpirun ends them.
    if (!good) library.abandon();
    break_off(std::make_exception_ptr(AbortedError("backend mpi: the process is ending, MPI is no longer there")));
    if (wire_ != nullptr) wire_->close();
    const MutexLock lock(mutex_);
    if (finalize_key != MPI_KEYVAL_INVALID && !mpi_is_ending_) MPI_Comm_delete_attr(MPI_COMM_SELF, finalize_key);
  } catch (...) {
    break_off(std::current_exception());
  }
}

bool Job::connect(Library& library) {
  MutexLock lock(mutex_);
  rank_ = library.rank();
  size_ = library.size();
  initialised_ = true;
  changed_.notify_all();
  while (!library.connect()) {
    if (stopping_) return false;
    wake_.wait_for(lock, kIdleNap);
  }
  communicator_ = library.communicator();
  number_ = library.job();
  auto wire = std::make_unique<MpiWire>(communicator_, rank_, size_);
  wire_ = wire.get();
  messages::Engine::Options options;
  options.limits.eager_message = messages::kEagerMessage;
  options.rhythm = {.spin = kSpin, .yields = true, .nap = kNap, .idle_nap = kIdleNap};
  options.makes_thread = false;
  engine_ = std::make_shared<messages::Engine>(std::move(wire), options);
  connected_ = true;
  changed_.notify_all();
  return !stopping_;
}

// A barrier among all processes, for which no deadline would help: MPI_Finalize is one too. Until then this process
// takes what others send, so that they can end. Returns whether all have come.
bool Job::leave() {
  MPI_Request barrier = MPI_REQUEST_NULL;
  for (bool entered = false;;) {
    const bool busy = engine_->drain();
    if (engine_->is_broken()) return false;
    if (!entered && !busy && wire_->idle()) {
      require_success(MPI_Ibarrier(communicator_, &barrier), "MPI_Ibarrier");
      entered = true;
    }
    int all = 0;
    if (entered) require_success(MPI_Test(&barrier, &all, MPI_STATUS_IGNORE), "MPI_Test");
    if (all != 0) return true;
    wire_->sleep(wire_->bell(), kNap);
  }
}

void Job::on_mpi_finalize() noexcept {
  if (thread_.is_current()) return;  // it takes the attribute away itself
  {
    const MutexLock lock(mutex_);
    mpi_is_ending_ = true;
  }
  shut_down();
}

void Job::shut_down() noexcept {
  if (!owner_.is_current()) return;
  std::shared_ptr<messages::Engine> engine;
  messages::Notice notice{.text = {}, .left = true};
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    engine = engine_;
    notice.text = concat("process ", rank_, " of the MPI job has ended");
  }
  wake_.notify_all();
  if (engine != nullptr) {
    engine->close(std::make_exception_ptr(AbortedError("backend mpi: the process is ending, MPI is no longer there")),
                  &notice);
  }
  thread_.join();
}

void Job::break_off(const std::exception_ptr& reason) noexcept {
  {
    const MutexLock lock(mutex_);
    if (broken_ == nullptr) broken_ = reason;
    changed_.notify_all();
  }
  if (engine_ != nullptr) engine_->close(reason, nullptr);
}

}  // namespace gradwire::mpi
