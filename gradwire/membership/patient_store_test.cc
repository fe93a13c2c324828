// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A patient store outlives the server behind it, and does not hide a refusal.
#include "gradwire/membership/patient_store.h"

#include <gtest/gtest.h>

#include <array>
#include <future>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::membership::patient_store_test {
namespace {

using std::chrono::hours;

class PatientStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { start(); }
  // The first start takes a free port, and the others the same one.
  void start(std::map<std::string, std::string> contents = {}) {
    server_ =
        std::make_unique<TcpStore>(TcpStoreOptions{.port = port_, .is_server = true, .contents = std::move(contents)});
    port_ = server_->port();
  }
  void stop() { server_.reset(); }
  std::shared_ptr<PatientStore> client(Milliseconds patience) const {
    return std::make_shared<PatientStore>(std::make_shared<TcpStore>(TcpStoreOptions{.port = port_}), patience);
  }

  std::uint16_t port_ = 0;
  std::unique_ptr<TcpStore> server_;
};

TEST_F(PatientStoreTest, ACallWaitsForTheServerToComeBack) {
  const auto store = client(hours(1));
  store->set("key", "before");
  stop();
  auto value = std::async(std::launch::async, [&] { return store->get("key"); });
  auto sum = std::async(std::launch::async, [&] { return store->add("number", 2); });
  EXPECT_EQ(value.wait_for(Milliseconds(200)), std::future_status::timeout);
  start({{"key", "after"}, {"number", "40"}});
  EXPECT_EQ(value.get(), "after");
  EXPECT_EQ(sum.get(), 42);
}

TEST_F(PatientStoreTest, AServerMayGoAwayMoreThanOnce) {
  const auto store = client(hours(1));
  for (int time = 0; time < 5; ++time) {
    stop();
    start();
    store->set("time", std::to_string(time));
    EXPECT_EQ(store->clone()->get("time"), std::to_string(time));
  }
}

TEST_F(PatientStoreTest, PatienceEnds) {
  const auto store = client(Milliseconds(100));
  stop();
  try {
    store->set("key", "value");
    FAIL() << "nobody could take the value";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what()).find("did not come back within 0.1 s"), std::string::npos) << error.what();
  }
}

TEST_F(PatientStoreTest, WhatTheServerRefusesIsRefusedAtOnce) {
  const auto store = client(hours(1));
  store->set("key", "no number");
  EXPECT_THROW(store->add("key", 1), StoreError);
  const std::array<std::string, 1> missing{"missing"};
  EXPECT_THROW(store->wait(missing, Milliseconds(1)), TimeoutError);
  EXPECT_THROW(store->set("", "value"), InvalidArgument);
}

TEST_F(PatientStoreTest, AnInterruptedThreadStopsWaiting) {
  const auto store = client(hours(1));
  stop();
  set_interrupt_check(+[]() noexcept { return true; });
  EXPECT_THROW(store->get("key"), AbortedError);
  set_interrupt_check(nullptr);
}

TEST(PatientStore, WhatMakesNoSenseIsRefused) { EXPECT_THROW(PatientStore(nullptr, hours(1)), InvalidArgument); }

}  // namespace
}  // namespace gradwire::membership::patient_store_test
