// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// MPI in this process, from MPI_Init to MPI_Finalize, and gradwire's own communicator.
#pragma once

#include <mpi.h>

#include <cstdint>

namespace gradwire::mpi {

// Throws InternalError "backend mpi: <call> failed: <MPI's words>" unless `code` is MPI_SUCCESS.
void require_success(int code, const char* call);

// Made, used and destroyed by one thread, once in a process: MPI cannot be initialised again.
class Library {
 public:
  // Initialises MPI unless that is done. Throws UnsupportedError when the program did so without MPI_THREAD_MULTIPLE,
  // or has finalised it.
  Library();
  // Finalises MPI if this object initialised it: waits for the other processes of the job then.
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Whether all processes of the job have come to make the communicator below; goes on making it. Does not block.
  bool connect();

  // The rest once connect() has returned true; rank() and size() at once.
  MPI_Comm communicator() const noexcept { return communicator_; }
  int rank() const noexcept { return rank_; }  // in MPI_COMM_WORLD
  int size() const noexcept { return size_; }
  std::uint64_t job() const noexcept { return job_; }  // a random number, the same in all processes of the job
  // Whether the program initialised MPI, and so will finalise it.
  bool is_guest() const noexcept { return !initialised_here_; }
  // Leaves MPI as it is: it has failed, or waiting for the others is hopeless.
  void abandon() noexcept { finalises_ = false; }

 private:
  enum class Stage { fresh, duplicating, naming, connected };

  bool initialised_here_ = false;
  bool finalises_ = true;
  int rank_ = 0;
  int size_ = 1;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  MPI_Request request_ = MPI_REQUEST_NULL;
  Stage stage_ = Stage::fresh;
  std::uint64_t job_ = 0;
};

}  // namespace gradwire::mpi
