// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The fixture of the conformance suite. Every test runs over every backend, with several world sizes. A test's name
// ends with the world, such as "threads_5", so --gtest_filter=*/shm_* runs one backend.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/backend/backend.h"
#include "tests/conformance/oracle.h"
#include "tests/conformance/world.h"

namespace gradwire::testing {

class ConformanceTest : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override {
    if (can_run(GetParam())) return;
    if (GetParam().kind == Kind::ucx) GTEST_SKIP() << "needs UCX (libucx-dev), which a build may lack";
    GTEST_SKIP() << "needs mpirun -n " << GetParam().size;
  }
  const World& world() const { return GetParam(); }
  void run(const std::function<void(RankContext&)>& body) const { run_world(GetParam(), body); }
};

inline std::string world_name(const ::testing::TestParamInfo<World>& info) { return name_of(info.param); }

// A suite `NAME` over all backends with each of the world sizes.
#define GRADWIRE_CONFORMANCE_SUITE(NAME, ...)                                                          \
  class NAME : public ::gradwire::testing::ConformanceTest {};                                         \
  INSTANTIATE_TEST_SUITE_P(All, NAME, ::testing::ValuesIn(::gradwire::testing::worlds({__VA_ARGS__})), \
                           ::gradwire::testing::world_name)

// An environment variable that has another value while the object lives.
class EnvironmentValue {
 public:
  EnvironmentValue(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~EnvironmentValue() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  EnvironmentValue(const EnvironmentValue&) = delete;
  EnvironmentValue& operator=(const EnvironmentValue&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// The kinds of memory for the buffers of a call.
enum class Placement {
  in_place,      // all ranks in memory from allocate()
  own,           // all ranks in private memory
  mixed,         // odd ranks in private memory
  mixed_rank_0,  // rank 0 in private memory
};
inline constexpr Placement kPlacements[] = {Placement::in_place, Placement::own, Placement::mixed,
                                            Placement::mixed_rank_0};

// Memory for the buffers of successive calls. The bytes before and after every buffer, its fences, must not change.
class Arena {
 public:
  // Collective (it calls allocate). Holds buffers of `capacity` bytes in all, fences not counted.
  Arena(RankContext& context, std::size_t capacity);

  // Discards the buffers so far. The next buffers lie in the given kind of memory, `misaligned` bytes after a multiple
  // of 64.
  void start(Placement placement, std::size_t misaligned = 0);
  // Returns a buffer that holds `content`, or a buffer of `bytes` bytes that hold a pattern.
  std::byte* add(const Bytes& content);
  std::byte* add(std::size_t bytes);
  // Expects that no fence changed.
  void expect_fences() const;
  // Whether start() chose memory of allocate().
  bool shared() const { return shared_; }

 private:
  std::byte* reserve(std::size_t bytes);

  int rank_;
  Allocation allocation_;
  std::vector<std::byte> own_;
  std::byte* base_ = nullptr;
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::size_t misaligned_ = 0;
  bool shared_ = false;
  std::vector<std::byte*> fences_;
};

// Runs `call`, and expects the exception E. Returns the exception's message, or "" when E was not thrown.
template <class E, class F>
std::string expect_throw(F call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception was thrown: " << typeid(error).name() << ": " << error.what();
  }
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is missing in: " << text;
}

inline Bytes bytes_of(const std::byte* data, std::size_t bytes) { return Bytes(data, data + bytes); }

}  // namespace gradwire::testing
