// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which kernels run: by default, by environment variable, by select().
#include "gradwire/kernels/dispatch.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/kernels/cast.h"
#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire::kernels {
namespace {

std::string last_run_in_lower_case() {
  std::string name(last_run());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// What was compiled for which set notes that itself, so these tell which code ran and not which was chosen.
std::string set_that_reduces(DType dtype) {
  alignas(64) static unsigned char memory[2][8192];
  note_run("nothing");
  const void* const sources[] = {memory[0], memory[1]};
  void* const destinations[] = {memory[0]};
  reduce(dtype, ReduceOp::sum(), sources, destinations, 512);  // whole vectors: nothing is left to the scalar loop
  return last_run_in_lower_case();
}
std::string set_that_casts() {
  alignas(64) static unsigned char memory[2][8192];
  note_run("nothing");
  cast(DType::f32, memory[0], DType::bf16, memory[1], 512);
  return last_run_in_lower_case();
}

class DispatchTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* value = std::getenv("GRADWIRE_KERNELS");
    before_ = value == nullptr ? "" : value;
  }
  void TearDown() override { force(before_); }
  // Sets the variable ("" removes it) and makes the next call look again.
  static void force(const std::string& name) {
    if (name.empty()) {
      unsetenv("GRADWIRE_KERNELS");
    } else {
      setenv("GRADWIRE_KERNELS", name.c_str(), 1);
    }
    select("");
  }
  std::string before_;
};

TEST_F(DispatchTest, TheSelectedSetIsTheOneThatRuns) {
  for (const std::string& name : available()) {
    select(name);
    EXPECT_EQ(selected(), name);
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8, DType::i64, DType::boolean}) {
      EXPECT_EQ(set_that_reduces(dtype), name) << name_of(dtype);
    }
    EXPECT_EQ(set_that_casts(), name);
  }
}

TEST_F(DispatchTest, EachThreadNotesWhatItRan) {
  note_run("nothing");
  std::thread([] { EXPECT_NE(set_that_casts(), "nothing"); }).join();
  EXPECT_EQ(last_run(), "nothing");
}

TEST_F(DispatchTest, TheVariableForcesASet) {
  for (const std::string& name : available()) {
    force(name);
    EXPECT_EQ(set_that_reduces(DType::f32), name);
    EXPECT_EQ(selected(), name);
  }
}

TEST_F(DispatchTest, TheDefaultIsTheBestAndScalarComesLast) {
  force("");
  EXPECT_EQ(selected(), available().front());
  EXPECT_EQ(available().back(), "scalar");
}

TEST_F(DispatchTest, SelectGoesOverTheVariable) {
  force("scalar");
  select(available().front());
  EXPECT_EQ(selected(), available().front());
  select("");
  EXPECT_EQ(selected(), "scalar");
}

TEST_F(DispatchTest, AnUnknownNameListsTheRightOnes) {
  try {
    select("mmx");
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'mmx'"), std::string::npos);
    for (const std::string& name : available()) EXPECT_NE(std::string(error.what()).find(name), std::string::npos);
  }
}

TEST_F(DispatchTest, AWrongVariableIsReportedEveryTimeAndDoesNotStopKernels) {
  force("mmx");
  EXPECT_THROW(selected(), InvalidArgument);
  EXPECT_EQ(set_that_reduces(DType::f32), available().front());
  EXPECT_THROW(selected(), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::kernels
