// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The one family of exceptions. There are few kinds; each kind stands for one thing that the caller can do:
//
//   InvalidArgument   the call is wrong: fix it; nothing was communicated and nothing changed
//   UnsupportedError  this group or backend does not support the call: use another
//   MismatchError     ranks made different calls: fix the program; the message says which rank called what
//   PeerError         another rank died, left or failed: restart the job; peers() names the ranks
//   TimeoutError      ranks did not arrive in time: find out why, or allow more time; peers() names the ranks if known
//   AbortedError      abort() was called on this rank, or its wait was interrupted
//   ResourceError     the machine refused memory, a descriptor or a thread: free resources; nothing was changed
//   StoreError        the rendezvous store failed or is gone; a port is in use
//   EarlyTermination  a rank in a Join has no more inputs: end the epoch; nothing is broken (gradwire/ddp/join.h)
//   InternalError     a broken invariant: a bug in gradwire; please report it
//
// After a PeerError, TimeoutError, MismatchError or AbortedError of a collective the group is at its end: every later
// call throws the first reason again. docs/errors.md has the details.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

// The base class. what() says what happened, on which rank, in which operation, and what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}  // what() returns `message`
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

class PeerError : public Error {
 public:
  PeerError(const std::string& message, std::vector<int> peers) : Error(message), peers_(std::move(peers)) {}
  // The ranks that died, left or failed, in ascending order and in the numbers of the group that was called; empty
  // where they are not known.
  const std::vector<int>& peers() const noexcept { return peers_; }

 private:
  std::vector<int> peers_;
};

// As ranks met: this rank itself found that nothing comes of `peers` or goes to them, although they told the store that
// they are there. A rank that hears of this from another rank gets a PeerError.
class UnreachableError final : public PeerError {
 public:
  using PeerError::PeerError;
};

class TimeoutError final : public Error {
 public:
  explicit TimeoutError(const std::string& message, std::vector<int> peers = {})
      : Error(message), peers_(std::move(peers)) {}
  // The ranks whose part was missing when the deadline passed, in ascending order and in the numbers of the group that
  // was called; empty where they are not known.
  const std::vector<int>& peers() const noexcept { return peers_; }

 private:
  std::vector<int> peers_;
};

// Returns "kind: message", with the kind "error" for an exception that is none of the above. The text with which a rank
// reports its failure to the other ranks. Thread-safe.
std::string describe(const std::exception& error);
// The same for any exception; `error` is not null.
std::string describe(const std::exception_ptr& error);

// Throws InternalError that names the expression and its place. Called by GRADWIRE_CHECK.
[[noreturn]] void invariant_failed(const char* expression, const char* file, int line);

}  // namespace gradwire

// Checks an invariant of gradwire itself, in every build; throws InternalError when the condition is false. Not for
// input of a user and not for bytes from another rank.
#define GRADWIRE_CHECK(condition)                                   \
  do {                                                              \
    if (!(condition)) {                                             \
      ::gradwire::invariant_failed(#condition, __FILE__, __LINE__); \
    }                                                               \
  } while (false)
