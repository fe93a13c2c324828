// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that a record opens under its own secret and rank only, and that tokens differ wherever they must.
#include "gradwire/backend/ucx/admission_internal.h"

#include <gtest/gtest.h>

#include <set>

#include "gradwire/base/error.h"
#include "gradwire/store/handshake_internal.h"

namespace gradwire::ucx {
namespace {

RankRecord record() {
  return {"host-a", store_internal::random_challenge(), Milliseconds(2400), std::string("\0address\xff", 9)};
}

TEST(Admission, ARecordComesBackAsItWas) {
  for (const char* secret : {"", "the job's"}) {
    const RankRecord before = record();
    const RankRecord after = decode_record(encode_record(before, 3, secret), 3, secret);
    EXPECT_EQ(after.host, before.host);
    EXPECT_EQ(after.challenge, before.challenge);
    EXPECT_EQ(after.silence, before.silence);
    EXPECT_EQ(after.address, before.address);
  }
}

TEST(Admission, AnotherSecretARecordOfAnotherRankAndEveryChangedByteAreRefused) {
  const std::string text = encode_record(record(), 3, "the job's");
  EXPECT_THROW(decode_record(text, 3, "another"), MismatchError);
  EXPECT_THROW(decode_record(text, 3, ""), MismatchError);
  EXPECT_THROW(decode_record(text, 4, "the job's"), MismatchError);
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_THROW(decode_record(changed, 3, "the job's"), MismatchError) << "byte " << at;
    EXPECT_THROW(decode_record(text.substr(0, at), 3, "the job's"), MismatchError) << "cut to " << at;
  }
}

TEST(Admission, TheErrorNamesTheRankAndWhatToDo) {
  try {
    decode_record(encode_record(record(), 7, "one"), 7, "two");
    FAIL();
  } catch (const MismatchError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 7 holds another secret"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("GRADWIRE_SECRET"), std::string::npos) << error.what();
  }
}

TEST(Admission, BothSidesComputeOneTokenAndNoOtherIsTheSame) {
  const RankRecord a = record();
  const RankRecord b = record();
  EXPECT_TRUE(same_token(token_of("s", 0, a, 1, b), token_of("s", 0, a, 1, b)));
  const std::set<Token> tokens{token_of("s", 0, a, 1, b),        token_of("s", 1, b, 0, a), token_of("t", 0, a, 1, b),
                               token_of("s", 0, record(), 1, b), token_of("s", 0, a, 2, b), token_of("", 0, a, 1, b),
                               token_of("s", 0, a, 1, record())};
  EXPECT_EQ(tokens.size(), 7U);
  EXPECT_FALSE(same_token(token_of("s", 0, a, 1, b), token_of("s", 1, b, 0, a)));
}

}  // namespace
}  // namespace gradwire::ucx
