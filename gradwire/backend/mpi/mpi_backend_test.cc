// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: what a process gets that asks for MPI and was not started by mpirun. The conformance suite runs under mpirun.
#include "gradwire/backend/mpi/mpi_backend.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::mpi_backend_test {
namespace {

std::unique_ptr<Backend> make(int size) {
  return make_backend("mpi", {std::make_shared<HashStore>(), 0, size, Milliseconds(20000)});
}

class MpiBackend : public ::testing::Test {
 protected:
  // Where there is no MPI, gradwire says so; that is all there is to see of it.
  void SetUp() override {
    try {
      make(1);
    } catch (const UnsupportedError& error) {
      ASSERT_NE(std::string(error.what()).find("openmpi-bin"), std::string::npos) << error.what();
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(MpiBackend, AProcessThatNobodyStartedIsAJobOfOneRank) {
  // Several lives in one process: MPI itself can be initialised only once.
  for (int life = 0; life < 3; ++life) {
    const std::unique_ptr<Backend> backend = make(1);
    EXPECT_EQ(backend->name(), "mpi");
    EXPECT_EQ(backend->size(), 1);
    float value = 3;
    backend->channel().all_reduce(&value, 1, DType::f32, ReduceOp::sum(), {});
    EXPECT_EQ(value, 3);
  }
}

TEST_F(MpiBackend, RanksThatMpirunDidNotStartAreRefusedAndToldWhatToDo) {
  try {
    make(3);
    FAIL() << "a rank of gradwire-run joined";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("start the program with mpirun"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("3 ranks"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gradwire::mpi_backend_test
