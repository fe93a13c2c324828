// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Finds the store, the rank and the world size that the options of init_process_group() or of a Job mean.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/job/job_environment_internal.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// What the caller asked for; process_group/init.h says what the fields mean.
struct MeetingOptions {
  std::string method = "env://";
  std::shared_ptr<Store> store;
  int rank = -1;
  int world_size = -1;
  Milliseconds timeout = kDefaultTimeout;
  // For messages: the function that was called, and the struct of its options.
  const char* caller = "init_process_group";
  const char* options_name = "InitOptions";
};

// The clients that the server of this rank refused because of their secret, one for each address. They are no reason to
// give up: a stranger must not end a job. Thread-safe.
class Refusals final {
 public:
  void add(const std::string& sentence);
  // For the end of a message about ranks that did not come; empty where nobody was refused.
  std::string text() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::string> sentences_ GRADWIRE_GUARDED_BY(mutex_);
};

struct MeetingPlace {
  std::shared_ptr<Store> store;
  int rank = -1;
  int world_size = -1;
  // A file that only this job uses, to be removed when all ranks have it open (the store goes on in the open file);
  // empty otherwise.
  std::string private_file;
  // The store is a connection to a server in rank 0, which may be one that is about to end (of a group that was just
  // destroyed).
  bool may_reconnect = false;
  std::shared_ptr<const Refusals> refusals;  // null where this rank serves no store
};

// Returns the meeting place that `options` and the environment name. A process that no launcher started is the one rank
// of a world of its own, as is the rank of a world of one that names no place (docs/decisions/0021). Throws
// InvalidArgument (an unknown method; a missing variable, which the message names; a rank out of range; several hosts
// without MASTER_ADDR), StoreError (a port in use, a file that cannot be opened).
MeetingPlace find_meeting_place(const MeetingOptions& options, const ReadVariable& read);

// Opens the file of this user through which the ranks of the job `key` meet: $XDG_RUNTIME_DIR/gradwire/<name> or
// $TMPDIR/gradwire-<uid>/<name>, a folder of mode 0700 and a file of mode 0600, both checked to belong to this user.
// `path` is set to the file's name. The store opens the file by its descriptor, and still works when the name is
// removed. `caller` is the function for messages, `timeout` the store's.
std::shared_ptr<Store> open_private_file(const std::string& key, const ReadVariable& read, std::string& path,
                                         const char* caller = "init_process_group",
                                         Milliseconds timeout = kDefaultTimeout);

// Removes the private file once every rank has joined; returns when it is removed. Does nothing where there is none.
// Throws TimeoutError that names rank 0, which removes the file, when that is not done by the deadline.
void close_meeting_place(const MeetingPlace& place, Store& generation, Deadline deadline);

}  // namespace gradwire::internal
