// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests messages when the machine refuses threads or memory, and the limits of unreceived data.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "gradwire/backend/registry.h"
#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GRADWIRE_MEMORY_IS_THE_SANITIZERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GRADWIRE_MEMORY_IS_THE_SANITIZERS 1
#endif
#endif

namespace gradwire::testing {
namespace {

constexpr uid_t kNobody = 65534;

Request::Status finish(const std::shared_ptr<Request>& request) { return request->wait(Deadline::after(kGuard)); }

// The soft limit of a resource, while it lives.
class Limited {
 public:
  Limited(decltype(RLIMIT_NPROC) resource, rlim_t limit) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit less{limit, before_.rlim_max};
    EXPECT_EQ(::setrlimit(resource_, &less), 0);
  }
  ~Limited() { ::setrlimit(resource_, &before_); }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

 private:
  decltype(RLIMIT_NPROC) resource_;
  rlimit before_{};
};

rlim_t address_space() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// A process of root's has no limit on threads.
void become_an_ordinary_user() {
  if (::geteuid() == 0) {
    ASSERT_EQ(::setresuid(kNobody, kNobody, kNobody), 0) << "a container without CAP_SETUID?";
  }
}

TEST(MessageResources, ARequestThatFindsNoThreadLeavesItsBufferAlone) {
  run_world({Kind::shm, 2}, [](RankContext& context) {
    Channel& channel = context.channel();
    const Bytes large = make_input(DType::u8, 1'000'000, 1, 1);
    // From here on they meet by messages: the store's file is not an ordinary user's.
    char refused_by_now = 0;
    if (context.rank() == 1) {
      finish(channel.irecv(&refused_by_now, 1, 0, 5));
      finish(channel.isend(large.data(), 4096, 0, 3));
      // The send that was refused was never sent: this is the first to come.
      Bytes received(large.size());
      finish(channel.irecv(received.data(), received.size(), 0, 4));
      EXPECT_EQ(difference(received.data(), large, DType::u8), "");
      return;
    }
    become_an_ordinary_user();
    Bytes refused(4096, std::byte{0x11});
    Bytes never_sent(large.size(), std::byte{0x22});
    {
      const Limited none(RLIMIT_NPROC, 1);
      const std::string text =
          expect_throw<ResourceError>([&] { channel.irecv(refused.data(), refused.size(), 1, 3); });
      expect_contains(text, "ulimit -u");
      expect_throw<ResourceError>([&] { channel.isend(never_sent.data(), never_sent.size(), 1, 4); });
    }
    finish(channel.isend(&refused_by_now, 1, 1, 5));
    Bytes received(4096);
    EXPECT_EQ(finish(channel.irecv(received.data(), received.size(), 1, 3)).bytes, 4096U);
    for (const std::byte b : refused) ASSERT_EQ(b, std::byte{0x11}) << "written after the call had thrown";
    finish(channel.isend(large.data(), large.size(), 1, 4));
  });
}

TEST(MessageResources, WhatLiesUnreceivedIsBoundedAndArrives) {
  constexpr std::size_t kBytes = 1024;
  run_world({Kind::shm, 2}, [](RankContext& context) {
    Channel& channel = context.channel();
    if (context.rank() == 0) {
      char value = 0;
      const auto other = channel.irecv(&value, 1, 1, 9);  // so that its thread takes what comes
      context.meet("sent");
      const int sent = std::stoi(context.store().get("sent"));
      for (int i = 0; i < sent; ++i) {
        Bytes received(kBytes);
        finish(channel.irecv(received.data(), kBytes, 1, 1));
        ASSERT_EQ(difference(received.data(), make_input(DType::u8, kBytes, i, 1), DType::u8), "") << "message " << i;
      }
      finish(other);
      return;
    }
    int sent = 0;
    for (bool room = true; room;) {
      const Bytes message = make_input(DType::u8, kBytes, sent, 1);
      const auto send = channel.isend(message.data(), kBytes, 0, 1);
      try {
        send->wait(Deadline::after(Milliseconds(200)));
        ++sent;
      } catch (const TimeoutError&) {
        room = false;  // and it was never sent
      }
      ASSERT_LE(static_cast<std::size_t>(sent) * kBytes, std::size_t{1} << 20) << "nobody held the sender up";
    }
    EXPECT_GT(sent, 100);
    context.store().set("sent", std::to_string(sent));
    context.meet("sent");
    char value = 1;
    finish(channel.isend(&value, 1, 0, 9));
  });
}

TEST(MessageResources, AReceiverWithoutMemoryHoldsItsSenderUp) {
#ifdef GRADWIRE_MEMORY_IS_THE_SANITIZERS
  GTEST_SKIP() << "a sanitizer's memory cannot be limited";
#endif
  constexpr std::size_t kBytes = 20'000;
  constexpr int kMessages = 100;
  run_world({Kind::shm, 2}, [](RankContext& context) {
    Channel& channel = context.channel();
    if (context.rank() == 0) {
      char value = 0;
      const auto other = channel.irecv(&value, 1, 1, 9);
      ::mallopt(M_MMAP_THRESHOLD, kBytes / 2);  // so that memory for a message takes address space
      {
        const Limited none(RLIMIT_AS, address_space());
        context.meet("limited");
        context.meet("sent");
        EXPECT_FALSE(other->done());  // it looks: the messages are there, and there is no memory for them
      }
      for (int i = 0; i < kMessages; ++i) {
        Bytes received(kBytes);
        finish(channel.irecv(received.data(), kBytes, 1, 1));
        ASSERT_EQ(difference(received.data(), make_input(DType::u8, kBytes, i, 1), DType::u8), "") << "message " << i;
      }
      finish(other);
      return;
    }
    std::vector<Bytes> messages;
    std::vector<std::shared_ptr<Request>> sends;
    for (int i = 0; i < kMessages; ++i) messages.push_back(make_input(DType::u8, kBytes, i, 1));
    context.meet("limited");
    for (const Bytes& message : messages) sends.push_back(channel.isend(message.data(), kBytes, 0, 1));
    context.meet("sent");
    for (const auto& send : sends) finish(send);
    char value = 1;
    finish(channel.isend(&value, 1, 0, 9));
  });
}

// Rank 1 never comes: nobody is waited for.
TEST(MessageResources, UcxIsRefusedAtOnceWhereItHasNoMemoryForConnections) {
#ifdef GRADWIRE_MEMORY_IS_THE_SANITIZERS
  GTEST_SKIP() << "a sanitizer's memory cannot be limited";
#endif
  if (!ucx_is_built()) GTEST_SKIP() << "this build has no UCX";
  ChildProcess child("a process", [] {
    const auto store = std::make_shared<HashStore>();
    make_backend("ucx", {std::make_shared<PrefixStore>("alone", store), 0, 1});  // loads UCX
    const Limited few(RLIMIT_AS, address_space() + (rlim_t{8} << 20));
    const std::string text = expect_throw<ResourceError>([&] { make_backend("ucx", {store, 0, 2}); });
    expect_contains(text, "rank 0 of 2 is out of memory");
  });
  child.expect_success(Deadline::after(kGuard));
}

}  // namespace
}  // namespace gradwire::testing
