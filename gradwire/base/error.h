// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The one family of exceptions. Kinds are few, chosen by what the caller can do about them:
//
//   InvalidArgument   fix the call; nothing was communicated and nothing changed
//   UnsupportedError  this backend or group cannot do that; use another
//   MismatchError     ranks called different things; fix the program (the message says who called what)
//   PeerError         another rank died, left or failed; restart the job (peers() says who)
//   TimeoutError      ranks were not there in time; peers() says who, if known
//   AbortedError      abort() was called on this rank
//   ResourceError     the machine refused memory, a descriptor, a thread; nothing was touched
//   StoreError        the rendezvous store failed or is gone
//   InternalError     a broken invariant: a bug in gradwire; please report it
//
// After a PeerError, TimeoutError, MismatchError or AbortedError of a collective the group is at its end: every later
// call throws the first reason again. docs/errors.md says the same at length.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

class InvalidArgument final : public Error {
 public:
  using Error::Error;
};
class UnsupportedError final : public Error {
 public:
  using Error::Error;
};
class MismatchError final : public Error {
 public:
  using Error::Error;
};
class AbortedError final : public Error {
 public:
  using Error::Error;
};
class ResourceError final : public Error {
 public:
  using Error::Error;
};
class StoreError final : public Error {
 public:
  using Error::Error;
};
class InternalError final : public Error {
 public:
  using Error::Error;
};

class PeerError final : public Error {
 public:
  PeerError(const std::string& message, std::vector<int> peers) : Error(message), peers_(std::move(peers)) {}
  // The ranks that died, left or failed, in ascending order. Ranks count within the group of the call.
  const std::vector<int>& peers() const noexcept { return peers_; }

 private:
  std::vector<int> peers_;
};

class TimeoutError final : public Error {
 public:
  explicit TimeoutError(const std::string& message, std::vector<int> peers = {})
      : Error(message), peers_(std::move(peers)) {}
  // The ranks whose part was missing when the deadline passed, in ascending order; empty where that is unknown.
  const std::vector<int>& peers() const noexcept { return peers_; }

 private:
  std::vector<int> peers_;
};

// "kind: message" for any exception: how one rank's failure is told to the others.
std::string describe(const std::exception& error);

// Throws InternalError. Not for user input and not for bytes from a peer.
[[noreturn]] void invariant_failed(const char* expression, const char* file, int line);

}  // namespace gradwire

// Checks an invariant of gradwire itself, in every build.
#define GRADWIRE_CHECK(condition)                                   \
  do {                                                              \
    if (!(condition)) {                                             \
      ::gradwire::invariant_failed(#condition, __FILE__, __LINE__); \
    }                                                               \
  } while (false)
