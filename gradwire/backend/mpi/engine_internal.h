// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the mpi backends of a process share: MPI, its transport, the messages under way, and a thread that moves them.
//
// MPI tells nobody when something has come: somebody has to ask. Whoever waits for a message asks in a loop; while
// nobody waits, the thread asks now and then. One lock orders all calls of MPI.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/backend/mpi/library_internal.h"
#include "gradwire/backend/mpi/messages_internal.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"

namespace gradwire::mpi {

// Thread-safe. In a forked child every call throws InvalidArgument or does nothing.
class Engine {
 public:
  // The engine of this process; the first call initialises MPI. Returns when all processes of the MPI job have made
  // theirs, unless the job has fewer than `processes` of them: that is an InvalidArgument. Throws TimeoutError by the
  // deadline, UnsupportedError, InternalError.
  static std::shared_ptr<Engine> of_this_process(int processes, Deadline deadline);

  Engine();
  ~Engine();

  int rank() const noexcept { return rank_; }  // of this process in the MPI job
  std::uint64_t job() const noexcept { return job_; }
  // A number that no other group of the job has.
  std::uint64_t new_group_number();

  void add_group(std::uint64_t group, int rank);
  void place_group(std::uint64_t group, std::vector<int> processes);
  void remove_group(std::uint64_t group) noexcept;
  void end_channel(const ChannelKey& key, std::string_view reason) noexcept;
  void remove_channel(const ChannelKey& key) noexcept;

  MessagePtr post(Message description);
  Request::Status wait(const MessagePtr& message, Deadline deadline);
  bool done(const MessagePtr& message);
  void cancel(const MessagePtr& message) noexcept;

  // Ends all channels, waits until the other processes have done the same, and finalises MPI if this engine initialised
  // it. Every later call fails. For the end of the process.
  void shut_down() noexcept;
  // The same, called by MPI_Finalize of a program that initialised MPI itself.
  void on_mpi_finalize() noexcept;

 private:
  void await_connection(int processes, Deadline deadline);
  void run();
  // The thread's parts: until all processes have come, then until shut_down().
  bool connect(Library& library);
  void serve();
  void leave();
  bool poll() GRADWIRE_REQUIRES(mutex_);
  void require_working() const GRADWIRE_REQUIRES(mutex_);
  // Ends everything; the first reason stays.
  void break_off(std::exception_ptr reason) GRADWIRE_REQUIRES(mutex_);

  const OwnerProcess owner_;
  mutable Mutex mutex_;
  ConditionVariable changed_;  // for those who wait for a message
  ConditionVariable wake_;     // for the thread
  std::optional<Transport> transport_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<Messages> messages_ GRADWIRE_GUARDED_BY(mutex_);
  MPI_Comm communicator_ GRADWIRE_GUARDED_BY(mutex_) = MPI_COMM_NULL;
  std::exception_ptr broken_ GRADWIRE_GUARDED_BY(mutex_);
  bool initialised_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool connected_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool mpi_is_ending_ GRADWIRE_GUARDED_BY(mutex_) = false;
  int waiters_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t groups_made_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  int rank_ = 0;  // these three written before connected_ is
  int size_ = 1;
  std::uint64_t job_ = 0;
  Thread thread_;
};

}  // namespace gradwire::mpi
