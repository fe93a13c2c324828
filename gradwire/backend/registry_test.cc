// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: a rendezvous with wrong numbers ends on every rank with an error that says what is wrong; a new backend is a
// line in a table.
#include "gradwire/backend/registry.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::registry_test {
namespace {

constexpr Milliseconds kPatience{20000};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return describe(error);
  }
  return "no error";
}

std::vector<std::string> errors_of(const std::vector<BackendOptions>& ranks) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { errors[i] = error_of([&] { make_backend("threads", ranks[i]); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(Registry, RefusesWrongNumbersAtTheDoor) {
  const auto store = std::make_shared<HashStore>();
  EXPECT_EQ(error_of([&] {
              make_backend("threads", {store, 2, 2});
            }),
            "InvalidArgument: make_backend: the rank is 2; it must be from 0 to 1");
  EXPECT_EQ(error_of([&] {
              make_backend("threads", {store, 0, 0});
            }),
            "InvalidArgument: make_backend: the world size is 0");
  EXPECT_EQ(
      error_of([&] {
        make_backend("threads", {store, 0, 65});
      }),
      "InvalidArgument: make_backend: the backend threads takes at most 64 ranks, and the world size is 65; use mpi "
      "(up to 4096) or ucx (up to 4096)");
  for (const char* name : {"shm", "ucx", "mpi"}) {
    const std::string error = error_of([&] { make_backend(name, {store, 0, 4097}); });
    EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_NE(error.find("the world size is 4097; no backend takes so many"), std::string::npos) << error;
  }
  EXPECT_EQ(error_of([&] {
              make_backend("threads", {nullptr, 0, 1});
            }),
            "InvalidArgument: make_backend: no store was given");
  EXPECT_EQ(error_of([&] {
              make_backend("carrier pigeon", {store, 0, 1});
            }),
            "InvalidArgument: unknown backend 'carrier pigeon'; known are mpi, shm, threads, ucx");
  EXPECT_EQ(error_of([&] {
              make_backend("smh", {store, 0, 1});
            }),
            "InvalidArgument: unknown backend 'smh'; did you mean 'shm'?; known are mpi, shm, threads, ucx");
}

TEST(Registry, TwoRanksWithOneNumberAllFail) {
  const auto store = std::make_shared<HashStore>();
  const auto errors = errors_of({{store, 1, 3, kPatience}, {store, 1, 3, kPatience}, {store, 2, 3, kPatience}});
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "MismatchError: rendezvous failed: two ranks were started with the number 1 (of 3), unless an earlier "
              "group met in this store; give each group a PrefixStore of its own");
  }
}

TEST(Registry, AStoreThatAnEarlierGroupUsedIsNamedAsACause) {
  const auto store = std::make_shared<HashStore>();
  make_backend("threads", {store, 0, 1, kPatience});
  for (const int size : {1, 2}) {
    const std::string error = error_of([&] { make_backend("threads", {store, 0, size, kPatience}); });
    EXPECT_NE(error.find("an earlier group met in this store"), std::string::npos) << error;
    EXPECT_NE(error.find("PrefixStore"), std::string::npos) << error;
  }
}

TEST(Registry, DifferentWorldSizesAllFail) {
  const auto store = std::make_shared<HashStore>();
  const auto errors = errors_of({{store, 1, 2, kPatience}, {store, 2, 3, kPatience}});
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("world size"), std::string::npos) << error;
    EXPECT_EQ(error.find("MismatchError"), 0U) << error;
  }
}

TEST(Registry, AMissingRankIsATimeoutThatSaysWhoseKeyDidNotCome) {
  const auto store = std::make_shared<HashStore>();
  const std::string error = error_of([&] { make_backend("threads", {store, 1, 2, Milliseconds(300)}); });
  EXPECT_EQ(error.find("TimeoutError: rendezvous: the deadline passed while waiting for rank 0"), 0U) << error;
}

TEST(Registry, ARankThatComesLateHearsOfTheFailure) {
  const auto store = std::make_shared<HashStore>();
  const std::string first = error_of([&] { make_backend("threads", {store, 0, 2, Milliseconds(100)}); });
  EXPECT_EQ(first.find("TimeoutError"), 0U) << first;
  const std::string late = error_of([&] { make_backend("threads", {store, 1, 2, kPatience}); });
  EXPECT_EQ(late.find("TimeoutError"), 0U) << late;
}

TEST(Registry, TheTableIsPassedIn) {
  const auto store = std::make_shared<HashStore>();
  const BackendEntry only{"mine", "a test's",
                          [](const BackendOptions&) -> std::unique_ptr<Backend> { return nullptr; }};
  EXPECT_EQ(make_backend("mine", {store, 0, 1}, {&only, 1}), nullptr);
  EXPECT_EQ(error_of([&] {
              make_backend("shm", {store, 0, 1}, {&only, 1});
            }),
            "InvalidArgument: unknown backend 'shm'; known are mine");
}

}  // namespace
}  // namespace gradwire::registry_test
