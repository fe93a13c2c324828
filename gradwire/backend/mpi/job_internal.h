// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the mpi backends of a process share: MPI, from MPI_Init to MPI_Finalize, on a thread of its own, and the engine
// of messages over it.
//
// All calls of MPI after the start come from the engine, under its lock, or from the thread once the engine is closed.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

#include "gradwire/backend/messages/engine_internal.h"
#include "gradwire/backend/mpi/library_internal.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"

namespace gradwire::mpi {

class MpiWire;

// Thread-safe. In a forked child of_this_process() throws InvalidArgument, and nothing is torn down.
class Job {
 public:
  // The MPI job of this process; the first call initialises MPI. Returns when all processes of the job have made
  // theirs, unless the job has fewer than `processes` of them: that is an InvalidArgument. Throws TimeoutError by the
  // deadline, UnsupportedError, InternalError, ResourceError.
  static std::shared_ptr<Job> of_this_process(int processes, Deadline deadline);

  Job();
  ~Job();

  int rank() const noexcept { return rank_; }  // of this process in the MPI job
  std::uint64_t number() const noexcept { return number_; }
  // A number that no other group of the job has, below 2^40 (64 Ki ranks). Throws ResourceError when there is none
  // left.
  std::uint64_t new_group_number();
  const std::shared_ptr<messages::Engine>& shared_engine() const noexcept { return engine_; }

  // Ends all channels, waits until the other processes have done the same, and finalises MPI if this object initialised
  // it. Every later call fails. For the end of the process.
  void shut_down() noexcept;
  // The same, called by MPI_Finalize of a program that initialised MPI itself.
  void on_mpi_finalize() noexcept;

 private:
  void await_connection(int processes, Deadline deadline);
  void run();
  // The thread's parts: until all processes have come; until shut_down(), which serve() of the engine is; the end.
  bool connect(Library& library);
  bool leave();
  void break_off(const std::exception_ptr& reason) noexcept;

  const OwnerProcess owner_;
  mutable Mutex mutex_;
  ConditionVariable changed_;  // for those who wait for the connection
  ConditionVariable wake_;     // for the thread before the connection
  std::exception_ptr broken_ GRADWIRE_GUARDED_BY(mutex_);
  bool initialised_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool connected_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool mpi_is_ending_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::uint64_t groups_made_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  int rank_ = 0;  // these written by the thread, before connected_ is
  int size_ = 1;
  std::uint64_t number_ = 0;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  MpiWire* wire_ = nullptr;  // the engine's
  std::shared_ptr<messages::Engine> engine_;
  Thread thread_;
};

}  // namespace gradwire::mpi
