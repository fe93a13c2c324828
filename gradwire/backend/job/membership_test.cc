// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: a rank that waits for others says who is missing, by default once and by one rank, at level info again and
// again.
#include "gradwire/backend/job/membership_internal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::internal {
namespace {

// What `rank` of three writes to stderr (0 or 1) while it waits for rank 2, which never comes; the other has come. A
// child, because the level is read from the environment once in a process.
std::string said_by(int rank, const char* level) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    level == nullptr ? ::unsetenv("GRADWIRE_LOG") : ::setenv("GRADWIRE_LOG", level, 1);
    const auto store = std::make_shared<HashStore>();
    store->set(concat("g0/rank/", 1 - rank), "of another host");
    const WaitReport::Periods often{Milliseconds(1), Milliseconds(1)};
    try {
      const Membership membership(store, rank, 3, Milliseconds(1500), often);
      ::_exit(1);
    } catch (const TimeoutError& error) {
      ::_exit(error.peers() == std::vector<int>{2} ? 0 : 2);
    } catch (...) {
      ::_exit(3);
    }
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << text;
  return text;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Membership, TheLowestRankThatIsThereSaysOnceWhoIsMissing) {
  const std::string text = said_by(0, nullptr);
  EXPECT_EQ(count(text, "rendezvous: rank 0 of 3 has waited "), 1U) << text;
  EXPECT_EQ(count(text, " s for rank 2; GRADWIRE_LOG=info"), 1U) << text;
  EXPECT_EQ(said_by(1, nullptr), "") << "rank 0 is there and says it";
}

TEST(Membership, AtLevelInfoEachRankSaysItAgainAndAgain) {
  const std::string text = said_by(1, "info");
  EXPECT_GT(count(text, "rendezvous: rank 1 of 3 has waited "), 1U) << text;
}

TEST(Membership, NothingIsSaidWhereTheLogIsOff) { EXPECT_EQ(said_by(0, "off"), ""); }

}  // namespace
}  // namespace gradwire::internal
