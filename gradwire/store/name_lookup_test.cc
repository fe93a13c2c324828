// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A resolver that does not answer: this program's getaddrinfo() takes the place of the C library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "gradwire/base/error.h"
#include "gradwire/base/process.h"
#include "gradwire/store/store_test_support_internal.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire {
namespace {

// What getaddrinfo() of a name that ends in "slow.test" waits for. A name that ends in "two.test" has two addresses:
// one of this host, and one of which connect() says that it is of no use, as of ::1 where IPv6 is switched off. Other
// names are looked up as ever.
struct SlowResolver {
  std::mutex mutex;
  std::condition_variable changed;
  bool answers = true;
  int asked = 0;

  void set(bool value) {
    const std::lock_guard lock(mutex);
    answers = value;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    ++asked;
    changed.wait(lock, [this] { return answers; });
  }
  void count() {
    const std::lock_guard lock(mutex);
    ++asked;
  }
  int times_asked() {
    const std::lock_guard lock(mutex);
    return asked;
  }
};

SlowResolver& slow_resolver() {
  static SlowResolver instance;
  return instance;
}

}  // namespace
}  // namespace gradwire

extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** result) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name != nullptr && std::string_view(name).ends_with("two.test")) {
    gradwire::slow_resolver().count();
    if (const int error = real("127.0.0.1", service, hints, result)) return error;
    addrinfo no_hints{};
    no_hints.ai_flags = AI_NUMERICHOST;
    return real("fe80::1", service, &no_hints, &(*result)->ai_next);
  }
  if (name == nullptr || !std::string_view(name).ends_with("slow.test")) return real(name, service, hints, result);
  gradwire::slow_resolver().wait();
  return real("127.0.0.1", service, hints, result);
}

// The forked child below starts threads, which the thread sanitizer refuses unless told otherwise.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace gradwire {
namespace {

using store_test::message_of;

class NameLookup : public ::testing::Test {
 protected:
  NameLookup() { slow_resolver().set(false); }
  ~NameLookup() override { slow_resolver().set(true); }

  TcpStoreOptions client(Milliseconds timeout) const {
    return {.host = host_, .port = server_.port(), .timeout = timeout};
  }

  // Each test has a name of its own: the question of the test before may still be on its way, and its answer would be
  // this test's.
  static std::string new_host() {
    static int tests = 0;
    return std::to_string(++tests) + ".slow.test";
  }

  const std::string host_ = new_host();
  TcpStore server_{TcpStoreOptions{.is_server = true}};
};

TEST_F(NameLookup, AResolverThatDoesNotAnswerIsATimeout) {
  const int before = slow_resolver().times_asked();
  const auto begin = Deadline::Clock::now();
  for (int round = 0; round < 3; ++round) {
    const std::string text = message_of<TimeoutError>([&] { TcpStore(client(Milliseconds(50))); });
    EXPECT_NE(text.find("slow.test"), std::string::npos) << text;
    EXPECT_NE(text.find("resolver does not answer"), std::string::npos) << text;
  }
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(30));
  EXPECT_LE(slow_resolver().times_asked(), before + 1) << "those who give up share one question";
}

TEST_F(NameLookup, AnAnswerThatComesInTimeIsUsed) {
  EXPECT_THROW(TcpStore(client(Milliseconds(50))), TimeoutError);
  slow_resolver().set(true);
  TcpStore(client(kDefaultTimeout)).set("key", "value");
  EXPECT_EQ(server_.get("key"), "value");
}

TEST(NameOfTwoAddresses, AServerThatStartsLaterIsFoundThoughAnotherAddressIsOfNoUse) {
  const std::uint16_t port = TcpStore(TcpStoreOptions{.is_server = true}).port();
  const int before = slow_resolver().times_asked();
  std::optional<TcpStore> server;
  const Thread starts("later", [&] {
    // The client has failed at least once when it asks anew.
    const Deadline end = Deadline::after(kDefaultTimeout);
    while (slow_resolver().times_asked() < before + 2 && !end.expired()) std::this_thread::yield();
    server.emplace(TcpStoreOptions{.port = port, .is_server = true});
  });
  TcpStore({.host = "two.test", .port = port}).set("key", "value");
}

// The thread that asks does not exist in the child, so the child asks anew.
TEST_F(NameLookup, AForkedChildDoesNotWaitForItsParentsLookup) {
  const int before = slow_resolver().times_asked();
  EXPECT_THROW(TcpStore(client(Milliseconds(50))), TimeoutError);
  // Until the thread that asks has let go of the resolver's mutex, of which the child gets a copy. An earlier test may
  // have asked already.
  const Deadline asked = Deadline::after(std::chrono::seconds(1));
  while (slow_resolver().times_asked() == before && !asked.expired()) std::this_thread::yield();
  const std::uint16_t port = server_.port();
  const pid_t child = store_test::fork_child([&] {
    slow_resolver().set(true);
    TcpStore({.host = host_, .port = port}).set("from", "the child");
    return 0;
  });
  EXPECT_EQ(store_test::wait_for(child), 0);
  EXPECT_EQ(server_.get("from"), "the child");
}

}  // namespace
}  // namespace gradwire
