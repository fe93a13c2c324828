// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What tests of groups over our own backends share.
#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::groups_test {

using test_support::engine_of;
using test_support::make_named_group;
using test_support::run_ranks;

inline constexpr Milliseconds kLong = std::chrono::minutes(2);

inline AllReduceOptions at_once() {
  AllReduceOptions options;
  options.async = false;
  return options;
}

inline at::Tensor number(double value) { return at::full({1}, value, at::kDouble); }

inline double number_of(const at::Tensor& tensor) { return tensor.item<double>(); }

class Groups : public ::testing::TestWithParam<std::string> {
 protected:
  void on_ranks(int world, const std::function<void(const std::shared_ptr<ProcessGroup>& group)>& body) {
    run_ranks(engine_of(GetParam()), world, [&](int rank, const std::shared_ptr<Store>& store) {
      const auto group = make_named_group(GetParam(), store, rank, world, kLong);
      group->set_group_name("test");
      body(group);
    });
  }

  // What docs/backends.md denies an engine of c10d.
  bool callbacks_may_wait() const { return GetParam() == "threads" || GetParam() == "shm"; }
  bool sees_mismatches() const { return GetParam() != "gloo"; }
  bool sends_are_buffered() const { return GetParam() != "gloo"; }
  bool carries_tags() const { return callbacks_may_wait(); }
};

// Lets one rank wait until another has come somewhere, without a message of the group under test.
class Signpost {
 public:
  Signpost(std::shared_ptr<Store> store, std::string name) : store_(std::move(store)), name_(std::move(name)) {}
  void reach() { store_->set(name_, "1"); }
  void await() { store_->wait(std::span(&name_, 1), kLong); }

 private:
  std::shared_ptr<Store> store_;
  std::string name_;
};

}  // namespace gradwire::groups_test
