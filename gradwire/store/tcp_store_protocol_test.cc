// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages of the TcpStore protocol: what goes in comes out, and whatever comes in is either taken whole or
// refused.
#include "gradwire/store/tcp_store_protocol_internal.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::store_internal::tcp_store_protocol_test {
namespace {

const std::vector<Request> kGood{
    {Operation::set, 0, {"k"}, {"v"}},
    {Operation::get, 5, {"a", "b"}, {}},
    {Operation::get, 0, {}, {}},
    {Operation::add, -3, {"k"}, {}},
    {Operation::compare_set, 0, {"k"}, {"", "new"}},
    {Operation::wait, 1'000'000'000'000, {"a", std::string("\0", 1)}, {}},
    {Operation::check, 0, {"a", "b", "c"}, {}},
    {Operation::delete_key, 0, {"k"}, {}},
    {Operation::num_keys, 0, {}, {}},
    {Operation::append, 0, {"k"}, {"v"}},
    {Operation::multi_set, 0, {"a", "b"}, {"1", "2"}},
    {Operation::queue_push, 0, {"q"}, {"v"}},
    {Operation::queue_pop, 7, {"q"}, {}},
    {Operation::queue_length, 0, {"q"}, {}},
    {Operation::join, 0, {}, {}},
    {Operation::list_keys, 0, {}, {}},
    {Operation::list_keys, 0, {"after"}, {}},
};

TEST(TcpStoreProtocol, RequestsComeBackAsTheyWent) {
  for (const Request& request : kGood) {
    const std::string message = encode(request);
    EXPECT_EQ(decode_length(message), message.size() - kLengthBytes);
    EXPECT_EQ(body_bytes(request), message.size() - kLengthBytes);
    EXPECT_EQ(decode_request(message.substr(kLengthBytes)), request);
  }
}

TEST(TcpStoreProtocol, RepliesComeBackAsTheyWent) {
  for (const Reply& reply : {Reply{}, Reply{Status::ok, -1, {"a", ""}}, Reply{Status::timeout, 0, {"missing"}},
                             Reply{Status::store_error, 0, {"reason"}}}) {
    const std::string message = encode(reply);
    EXPECT_EQ(decode_length(message), message.size() - kLengthBytes);
    EXPECT_EQ(decode_reply(message.substr(kLengthBytes)), reply);
  }
}

// The example in docs/format/tcp_store.md, byte for byte: a change here is a new version of the protocol.
TEST(TcpStoreProtocol, TheBytesAreThoseOfTheSpecification) {
  const std::string expected(
      "\x1c\0\0\0\0\0\0\0"        // length: 28 bytes follow
      "\x01"                      // set
      "\0\0\0\0\0\0\0\0"          // number
      "\x01\0\0\0\x01\0\0\0k"     // one key
      "\x01\0\0\0\x02\0\0\0v\0",  // one value
      8 + 1 + 8 + 9 + 10);
  EXPECT_EQ(encode(Request{Operation::set, 0, {"k"}, {std::string("v\0", 2)}}), expected);
  EXPECT_EQ(client_hello(), std::string("gwtcpc\x01\0", 8));
  EXPECT_EQ(server_hello(), std::string("gwtcps\x01\0", 8));
}

TEST(TcpStoreProtocol, HellosAreToldApart) {
  EXPECT_EQ(decode_client_hello(client_hello()).value().version, kTcpStoreVersion);
  for (const ServerSays says : {ServerSays::welcome, ServerSays::prove, ServerSays::full}) {
    EXPECT_EQ(decode_server_hello(server_hello(says)).value().version, kTcpStoreVersion);
    EXPECT_EQ(decode_server_hello(server_hello(says)).value().says, says);
    EXPECT_FALSE(decode_client_hello(server_hello(says)));
  }
  EXPECT_EQ(decode_server_hello(std::string("gwtcps\x09\x03")).value().version, 9) << "another version is told apart";
  EXPECT_FALSE(decode_server_hello("gwtcps\x01\x03")) << "an answer that this version does not know";
  EXPECT_FALSE(decode_client_hello("GET / HT"));
  EXPECT_FALSE(decode_client_hello("gwtcpc"));
}

TEST(TcpStoreProtocol, EveryCutAndEveryExtraByteIsRefused) {
  for (const Request& request : kGood) {
    const std::string body = encode(request).substr(kLengthBytes);
    for (std::size_t cut = 0; cut < body.size(); ++cut) EXPECT_EQ(decode_request(body.substr(0, cut)), std::nullopt);
    EXPECT_EQ(decode_request(body + '\0'), std::nullopt);
  }
  const std::string reply = encode(Reply{Status::ok, 1, {"value"}}).substr(kLengthBytes);
  for (std::size_t cut = 0; cut < reply.size(); ++cut) EXPECT_EQ(decode_reply(reply.substr(0, cut)), std::nullopt);
  EXPECT_EQ(decode_reply(reply + '\0'), std::nullopt);
}

TEST(TcpStoreProtocol, WrongNumbersOfKeysAndValuesAreRefused) {
  for (Request request : kGood) {
    const bool any_keys = request.operation == Operation::get || request.operation == Operation::wait ||
                          request.operation == Operation::check ||
                          (request.operation == Operation::list_keys && request.keys.empty());
    Request more_values = request;
    more_values.values.emplace_back("extra");
    EXPECT_EQ(decode_request(encode(more_values).substr(kLengthBytes)), std::nullopt);
    request.keys.emplace_back("extra");
    EXPECT_EQ(decode_request(encode(request).substr(kLengthBytes)).has_value(), any_keys);
  }
}

TEST(TcpStoreProtocol, WhatNoClientSendsIsRefused) {
  const auto refused = [](const Request& request) { return !decode_request(encode(request).substr(kLengthBytes)); };
  EXPECT_TRUE(refused({static_cast<Operation>(0), 0, {}, {}}));
  EXPECT_TRUE(refused({static_cast<Operation>(16), 0, {}, {}}));
  EXPECT_TRUE(refused({static_cast<Operation>(255), 0, {"k"}, {}}));
  EXPECT_TRUE(refused({Operation::set, 0, {""}, {"v"}}));
  EXPECT_TRUE(refused({Operation::set, 0, {std::string(Store::kMaxKeyBytes + 1, 'k')}, {"v"}}));
  EXPECT_TRUE(refused({Operation::set, 0, {"k"}, {std::string(Store::kMaxValueBytes + 1, 'v')}}));
  EXPECT_TRUE(refused({Operation::wait, -1, {"k"}, {}}));
  EXPECT_TRUE(refused({Operation::get, -1, {"k"}, {}}));
  EXPECT_TRUE(refused({Operation::queue_pop, -1, {"k"}, {}}));
}

TEST(TcpStoreProtocol, CountsAndLengthsThatLieAreRefused) {
  const std::string body = encode(Request{Operation::check, 0, {"key"}, {}}).substr(kLengthBytes);
  for (const std::size_t at : {9U, 13U, 20U}) {  // number of keys, length of the first, number of values
    for (const char* lie : {"\xff\xff\xff\xff", "\xff\xff\xff\x7f", "\x04\0\0\0"}) {
      std::string lying = body;
      lying.replace(at, 4, lie, 4);
      EXPECT_EQ(decode_request(lying), std::nullopt) << at;
    }
  }
}

}  // namespace
}  // namespace gradwire::store_internal::tcp_store_protocol_test
