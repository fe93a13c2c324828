// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous file that no other user can read, write or put in our way.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <utility>

#include "gradwire/backend/job/meeting_place_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"

namespace gradwire::internal {
namespace {

// The file or its folder, for messages.
struct Place {
  std::string path;
  const char* caller;
};

[[noreturn]] void fail(const Place& place, const std::string& what) {
  throw StoreError(concat(place.caller, ": the rendezvous file ", place.path, ": ", what));
}

std::string private_folder(const ReadVariable& read) {
  if (const auto runtime = read("XDG_RUNTIME_DIR")) return concat(*runtime, "/gradwire");
  return concat(read("TMPDIR").value_or("/tmp"), "/gradwire-", ::geteuid());
}

void require_private(const Place& path, const struct stat& status, bool folder) {
  if (folder ? !S_ISDIR(status.st_mode) : !S_ISREG(status.st_mode))
    fail(path, folder ? "this is no folder" : "this is no regular file");
  if (status.st_uid != ::geteuid())
    fail(path, concat("it belongs to user ", status.st_uid, ", not to this one; remove it, or set TMPDIR"));
  if ((status.st_mode & 077) != 0) fail(path, "other users may use it; take their permissions away, or remove it");
}

// Names of files must not clash, and nobody but this user can choose them.
std::string file_name_of(const std::string& key) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << stable_hash(key);
  return out.str();
}

}  // namespace

std::shared_ptr<Store> open_private_file(const std::string& key, const ReadVariable& read, std::string& path,
                                         const char* caller, Milliseconds timeout) {
  const Place folder{private_folder(read), caller};
  if (::mkdir(folder.path.c_str(), 0700) != 0 && errno != EEXIST)
    fail(folder, concat("cannot make the folder: ", std::strerror(errno)));
  struct stat status {};
  if (::lstat(folder.path.c_str(), &status) != 0) fail(folder, std::strerror(errno));
  require_private(folder, status, true);
  path = concat(folder.path, "/", file_name_of(key));
  const Place file{path, caller};
  UniqueFd open(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!open) fail(file, concat("cannot open or create it: ", std::strerror(errno)));
  if (::fstat(open.get(), &status) != 0) fail(file, std::strerror(errno));
  require_private(file, status, false);
  // The store names the file by the descriptor: other ranks may remove the name in the file system.
  return std::make_shared<FileStore>(std::move(open), timeout);
}

void close_meeting_place(const MeetingPlace& place, Store& generation, Deadline deadline) {
  if (place.private_file.empty()) return;
  const std::string removed = "file_removed";
  if (place.rank == 0) {
    ::unlink(place.private_file.c_str());
    generation.set(removed, "1");
  }
  // Nobody may look for the file under its old name again (in the next init_process_group) before it is gone.
  rendezvous::await_key(generation, removed, 0, deadline);
}

}  // namespace gradwire::internal
