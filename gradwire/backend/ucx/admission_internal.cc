// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/admission_internal.h"

#include <cstdint>
#include <cstring>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/handshake_internal.h"

namespace gradwire::ucx {
namespace {

using store_internal::hmac_sha256;
using store_internal::kProofBytes;

// Fields one after the other, each behind its length, so that no two lists of fields have the same bytes.
void append_field(std::string& text, std::string_view field) {
  const auto bytes = static_cast<std::uint32_t>(field.size());
  text.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  text.append(field);
}

bool take_field(std::string_view& text, std::string& field) {
  std::uint32_t bytes = 0;
  if (text.size() < sizeof(bytes)) return false;
  std::memcpy(&bytes, text.data(), sizeof(bytes));
  text.remove_prefix(sizeof(bytes));
  if (text.size() < bytes) return false;
  field = text.substr(0, bytes);
  text.remove_prefix(bytes);
  return true;
}

std::string seal_of(std::string_view secret, int rank, std::string_view body) {
  std::string text;
  append_field(text, "gradwire ucx address");
  append_field(text, std::to_string(rank));
  append_field(text, body);
  return hmac_sha256(secret, text);
}

[[noreturn]] void refuse(int rank, const char* why) {
  throw MismatchError(concat("backend ucx: rank ", rank, " ", why,
                             "; start all ranks with one gradwire, and with the same GRADWIRE_SECRET or "
                             "GRADWIRE_SECRET_FILE"));
}

}  // namespace

std::string encode_record(const RankRecord& record, int rank, std::string_view secret) {
  std::string body;
  append_field(body, record.host);
  append_field(body, record.challenge);
  append_field(body, std::to_string(record.silence.count()));
  append_field(body, record.address);
  return seal_of(secret, rank, body) + body;
}

RankRecord decode_record(const std::string& text, int rank, std::string_view secret) {
  if (text.size() < kProofBytes) refuse(rank, "published an address that makes no sense");
  std::string_view body = std::string_view(text).substr(kProofBytes);
  if (!store_internal::same_proof(std::string_view(text).substr(0, kProofBytes), seal_of(secret, rank, body))) {
    refuse(rank, "holds another secret of the job than this rank");
  }
  RankRecord record;
  std::string silence;
  if (!take_field(body, record.host) || !take_field(body, record.challenge) || !take_field(body, silence) ||
      !take_field(body, record.address) || silence.empty() || silence.size() > 15 ||
      silence.find_first_not_of("0123456789") != std::string::npos) {
    refuse(rank, "published an address that makes no sense");
  }
  record.silence = Milliseconds(std::stoll(silence));
  return record;
}

Token token_of(std::string_view secret, int from, const RankRecord& record_of_from, int to,
               const RankRecord& record_of_to) {
  std::string text;
  for (const std::string& field : {std::string("gradwire ucx frames"), std::to_string(from), record_of_from.challenge,
                                   std::to_string(to), record_of_to.challenge}) {
    append_field(text, field);
  }
  Token token;
  static_assert(kProofBytes >= std::tuple_size_v<Token>);
  std::memcpy(token.data(), hmac_sha256(secret, text).data(), token.size());
  return token;
}

bool same_token(const Token& one, const Token& other) noexcept {
  const auto text = [](const Token& token) {
    return std::string_view(reinterpret_cast<const char*>(token.data()), token.size());
  };
  return store_internal::same_proof(text(one), text(other));
}

}  // namespace gradwire::ucx
