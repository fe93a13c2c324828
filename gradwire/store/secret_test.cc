// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where a secret comes from, and what is proved with it.
#include "gradwire/store/secret.h"

#include <sys/stat.h>

#include <fstream>
#include <future>
#include <map>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/store/handshake_internal.h"
#include "gradwire/store/store_test_support_internal.h"
#include "tests/support/secrets.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::secret_test {
namespace {

using store_internal::proof_of;
using store_internal::Role;
using store_test::message_of;

std::string write_file(const test_support::TemporaryFolder& folder, const std::string& name, const std::string& bytes,
                       mode_t mode = 0600) {
  std::ofstream(folder.path() + "/" + name, std::ios::binary) << bytes;
  EXPECT_EQ(::chmod((folder.path() + "/" + name).c_str(), mode), 0);
  return folder.path() + "/" + name;
}

TEST(Secret, AFileIsReadWithoutItsLineEnd) {
  const test_support::TemporaryFolder folder;
  EXPECT_EQ(read_secret_file(write_file(folder, "bare", "abc")), "abc");
  EXPECT_EQ(read_secret_file(write_file(folder, "unix", "abc\n")), "abc");
  EXPECT_EQ(read_secret_file(write_file(folder, "dos", "abc\r\n")), "abc");
  EXPECT_EQ(read_secret_file(write_file(folder, "two", "a\n\n")), "a\n");
  const std::string longest(kMaxSecretBytes, 's');
  EXPECT_EQ(read_secret_file(write_file(folder, "longest", longest + "\n")), longest);
}

TEST(Secret, OneThatIsNoneIsRefused) {
  const test_support::TemporaryFolder folder;
  for (const std::string& bytes : {std::string(), std::string("\n"), std::string(kMaxSecretBytes + 1, 's')}) {
    const std::string path = write_file(folder, "bad", bytes);
    EXPECT_NE(message_of<InvalidArgument>([&] { read_secret_file(path); }).find(path), std::string::npos);
  }
  EXPECT_THROW(read_secret_file(folder.path() + "/missing"), InvalidArgument);
}

TEST(Secret, APipeIsReadToItsEndAndOneThatNobodyWritesToIsRefused) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(read_secret_file(path), InvalidArgument);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  UniqueFd writer(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  auto secret = std::async(std::launch::async, [&] { return read_secret_file(path); });
  EXPECT_EQ(::write(writer.get(), "ab", 2), 2);
  EXPECT_EQ(secret.wait_for(Milliseconds(20)), std::future_status::timeout) << "the end has not come";
  EXPECT_EQ(::write(writer.get(), "c\n", 2), 2);
  writer.reset();
  EXPECT_EQ(secret.get(), "abc");
}

TEST(Secret, OneThatOtherUsersMayReadIsRefused) {
  const test_support::TemporaryFolder folder;
  for (const mode_t mode : {0400, 0600, 0700}) {
    EXPECT_EQ(read_secret_file(write_file(folder, "own", "abc", mode)), "abc");
  }
  for (const mode_t mode : {0640, 0620, 0604, 0602, 0644, 0666}) {
    const std::string path = write_file(folder, "shared", "abc", mode);
    const std::string text = message_of<InvalidArgument>([&] { read_secret_file(path); });
    EXPECT_NE(text.find("other users may use the secret in '" + path), std::string::npos) << text;
    EXPECT_NE(text.find("chmod 600"), std::string::npos) << text;
  }
}

// A secret that a cluster mounts belongs to root; the job's user reads it through the group. This user is not always
// root, and a file of another user cannot be made without it.
TEST(Secret, AGroupMayReadOneThatBelongsToAnotherUser) {
  const test_support::TemporaryFolder folder;
  const std::string path = write_file(folder, "mounted", "abc", 0440);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 1, ::getegid()), 0);
    EXPECT_EQ(read_secret_file(path), "abc");
    ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
  }
  EXPECT_THROW(read_secret_file(path), InvalidArgument);
}

TEST(Secret, TheEnvironmentNamesAFileOrHoldsIt) {
  const test_support::TemporaryFolder folder;
  std::map<std::string, std::string> variables;
  const auto read = [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  EXPECT_EQ(secret_from_environment(read), "");
  variables["GRADWIRE_SECRET"] = "of the variable";
  EXPECT_EQ(secret_from_environment(read), "of the variable");
  variables["GRADWIRE_SECRET_FILE"] = write_file(folder, "secret", "of the file\n");
  EXPECT_EQ(secret_from_environment(read), "of the file");
  variables["GRADWIRE_SECRET_FILE"] = folder.path() + "/missing";
  EXPECT_THROW(secret_from_environment(read), InvalidArgument);
}

TEST(Secret, AProofDependsOnAllThatGoesIntoIt) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  const store_internal::Challenges challenges{std::string(32, 'a'), std::string(32, 'b')};
  const std::string proof = proof_of(Role::client, "s", challenges);
  EXPECT_EQ(proof.size(), store_internal::kProofBytes);
  EXPECT_TRUE(store_internal::same_proof(proof, proof_of(Role::client, "s", challenges)));
  EXPECT_FALSE(store_internal::same_proof(proof, proof_of(Role::server, "s", challenges)));
  EXPECT_FALSE(store_internal::same_proof(proof, proof_of(Role::client, "S", challenges)));
  EXPECT_FALSE(
      store_internal::same_proof(proof, proof_of(Role::client, "s", {challenges.of_client, challenges.of_server})));
  EXPECT_FALSE(store_internal::same_proof(proof, proof.substr(1)));
  EXPECT_NE(store_internal::random_challenge(), store_internal::random_challenge());
}

// Computed with `openssl dgst -sha256 -hmac s`.
TEST(Secret, AProofIsTheHmacOfTheSpecification) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  const std::string proof = proof_of(Role::client, "s", {std::string(32, 'a'), std::string(32, 'b')});
  std::string hex;
  for (const char byte : proof) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += kDigits[(byte >> 4) & 15];
    hex += kDigits[byte & 15];
  }
  EXPECT_EQ(hex, "eb9288b9e55cebe7f14a7516f6c2672300d82049e5d6180c97f996d8ee63ec3c");
}

}  // namespace
}  // namespace gradwire::secret_test
