// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/mpi/library_internal.h"

#include <stdlib.h>

#include <array>
#include <random>
#include <string>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::mpi {
namespace {

constexpr const char* kLaunchersVariable = "PMIX_RANK";

bool test(MPI_Request& request, const char* call) {
  int done = 0;
  require_success(MPI_Test(&request, &done, MPI_STATUS_IGNORE), call);
  return done != 0;
}

std::uint64_t random_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

bool flag_of(int (*query)(int*), const char* call) {
  int flag = 0;
  require_success(query(&flag), call);
  return flag != 0;
}

}  // namespace

void require_success(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  const bool known = MPI_Error_string(code, text.data(), &length) == MPI_SUCCESS;
  throw InternalError(concat("backend mpi: ", call, " failed: ", known ? text.data() : "an unknown error"));
}

Library::Library() {
  if (flag_of(&MPI_Finalized, "MPI_Finalized")) {
    throw UnsupportedError("backend mpi: this process has finalised MPI, and MPI cannot be initialised twice");
  }
  int level = MPI_THREAD_SINGLE;
  if (flag_of(&MPI_Initialized, "MPI_Initialized")) {
    require_success(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level < MPI_THREAD_MULTIPLE) {
      throw UnsupportedError(
          "backend mpi: this program initialised MPI without MPI_THREAD_MULTIPLE; call MPI_Init_thread with it, or "
          "leave MPI's initialisation to gradwire");
    }
  } else {
    // Any level will do then: all calls come from this thread, or one after another under the engine's lock.
    const bool had_launcher = environment(kLaunchersVariable).has_value();
    require_success(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    // OpenMPI sets the variable in a process that no launcher started. It would seem to be one of several then.
    if (!had_launcher) ::unsetenv(kLaunchersVariable);
    initialised_here_ = true;
    if (level < MPI_THREAD_SERIALIZED) {
      MPI_Finalize();
      throw UnsupportedError("backend mpi: this MPI was built without threads; it needs MPI_THREAD_SERIALIZED");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

Library::~Library() {
  // The communicator goes with MPI: freeing it is collective, and a guest's host may be gone with its part already.
  if (initialised_here_ && finalises_) MPI_Finalize();
}

bool Library::connect() {
  if (stage_ == Stage::fresh) {
    require_success(MPI_Comm_idup(MPI_COMM_WORLD, &communicator_, &request_), "MPI_Comm_idup");
    stage_ = Stage::duplicating;
  }
  if (stage_ == Stage::duplicating) {
    if (!test(request_, "MPI_Comm_idup")) return false;
    require_success(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    if (rank_ == 0) job_ = random_number();
    require_success(MPI_Ibcast(&job_, sizeof(job_), MPI_BYTE, 0, communicator_, &request_), "MPI_Ibcast");
    stage_ = Stage::naming;
  }
  if (stage_ == Stage::naming && test(request_, "MPI_Ibcast")) stage_ = Stage::connected;
  return stage_ == Stage::connected;
}

}  // namespace gradwire::mpi
