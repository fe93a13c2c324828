// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: gradwire lives with a program that initialises and finalises MPI itself. Each test is a process of its own,
// because MPI can be initialised only once in one.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "gradwire/backend/mpi/mpi_backend.h"
#include "gradwire/base/error.h"
#include "gradwire/store/hash_store.h"

namespace gradwire {
namespace {

std::unique_ptr<Backend> make() {
  return make_backend("mpi", {std::make_shared<HashStore>(), 0, 1, Milliseconds(20000)});
}

// Runs in a forked child: ends it well when every step of `program` was as expected.
[[noreturn]] void run(const std::function<bool()>& program) {
  bool good = false;
  try {
    good = program();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", describe(error).c_str());
  }
  std::exit(good ? 0 : 1);
}

template <class E>
bool throws(const std::string& words, const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    if (std::string(error.what()).find(words) != std::string::npos) return true;
    std::fprintf(stderr, "'%s' is missing in: %s\n", words.c_str(), error.what());
  }
  return false;
}

void exchange_with_itself(Channel& channel) {
  int sent = 7;
  int received = 0;
  const auto send = channel.isend(&sent, sizeof(sent), 0, 1);
  channel.irecv(&received, sizeof(received), 0, 1)->wait(Deadline::after(Milliseconds(20000)));
  send->wait(Deadline::after(Milliseconds(20000)));
  if (received != sent) throw InternalError("the message was lost");
}

TEST(MpiGuest, RefusesAProgramThatInitialisedMpiForOneThread) {
  EXPECT_EXIT(run([] {
                MPI_Init(nullptr, nullptr);
                const bool refused = throws<UnsupportedError>("MPI_THREAD_MULTIPLE", [] { make(); });
                return MPI_Finalize() == MPI_SUCCESS && refused;
              }),
              ::testing::ExitedWithCode(0), "");
}

TEST(MpiGuest, GoesWhenTheProgramFinalisesMpi) {
  EXPECT_EXIT(run([] {
                int level = 0;
                MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
                const std::unique_ptr<Backend> backend = make();
                exchange_with_itself(backend->channel());
                int sum = 1;
                MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
                if (MPI_Finalize() != MPI_SUCCESS || sum != 1) return false;
                return throws<AbortedError>("MPI is no longer there",
                                            [&] { exchange_with_itself(backend->channel()); }) &&
                       throws<AbortedError>("MPI is no longer there", [] { make(); });
              }),
              ::testing::ExitedWithCode(0), "");
}

TEST(MpiGuest, LeavesMpiToAProgramThatDoesNotFinaliseIt) {
  EXPECT_EXIT(run([] {
                int level = 0;
                MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
                // Registered before gradwire begins, so it runs after gradwire's end.
                std::atexit([] {
                  int finalised = 1;
                  if (MPI_Finalized(&finalised) != MPI_SUCCESS || finalised != 0) std::_Exit(1);
                  MPI_Finalize();
                });
                exchange_with_itself(make()->channel());
                return true;
              }),
              ::testing::ExitedWithCode(0), "");
}

TEST(MpiGuest, RefusesAProgramThatHasFinalisedMpi) {
  EXPECT_EXIT(run([] {
                MPI_Init(nullptr, nullptr);
                MPI_Finalize();
                return throws<UnsupportedError>("has finalised MPI", [] { make(); });
              }),
              ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gradwire
