// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "gradwire/base/deadline.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {

RendezvousFolder::RendezvousFolder() {
  const std::string parent = environment("TMPDIR").value_or("/tmp");
  std::error_code ignored;
  path_ = std::filesystem::absolute(parent, ignored).string() + "/gradwire-run-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    throw_errno(concat("cannot make the folder where the ranks meet in '", parent, "' (set TMPDIR to another place)"));
  }
  hold();
}

RendezvousFolder::~RendezvousFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// A file system without locks, or without room for descriptors, leaves refresh().
void RendezvousFolder::hold() {
  lock_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (lock_) static_cast<void>(::flock(lock_.get(), LOCK_SH | LOCK_NB));
}

void RendezvousFolder::restore() {
  if (::mkdir(path_.c_str(), 0700) == 0) return hold();
  if (errno != EEXIST) throw_errno(concat("cannot make the folder '", path_, "' again, which was removed"));
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0) throw_errno(concat("cannot use the folder '", path_, "'"));
  if (S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0) return;
  throw LaunchError(kLaunchFailedExit, concat("'", path_,
                                              "' is not the private folder any more that gradwire-run made "
                                              "there; somebody has removed that and taken its name"));
}

std::string RendezvousFolder::store_file(int attempt) {
  restore();
  return concat(path_, "/store-", attempt);
}

std::string RendezvousFolder::keep_secret(const std::string& secret) {
  restore();
  std::string path = path_ + "/secret";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || ::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    throw_errno(concat("cannot write '", path, "'"));
  }
  return path;
}

void RendezvousFolder::refresh() const noexcept {
  const auto touch = [](const char* path) {
    static_cast<void>(::utimensat(AT_FDCWD, path, nullptr, AT_SYMLINK_NOFOLLOW));
  };
  touch(path_.c_str());
  std::error_code problem;
  for (std::filesystem::directory_iterator entry(path_, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    touch(entry->path().c_str());
  }
}

FolderUpkeep::FolderUpkeep(const RendezvousFolder& folder, std::chrono::milliseconds interval)
    : thread_("gw-folder", [this, &folder, interval] { run(folder, interval); }) {}

FolderUpkeep::~FolderUpkeep() {
  MutexLock lock(mutex_);
  stop_ = true;
  stopped_.notify_all();
}

void FolderUpkeep::run(const RendezvousFolder& folder, std::chrono::milliseconds interval) {
  MutexLock lock(mutex_);
  while (!stop_) {
    const Deadline next = Deadline::after(interval);
    while (!stop_ && !next.expired()) stopped_.wait_until(lock, next.point());
    if (!stop_) folder.refresh();
  }
}

}  // namespace gradwire::launch
