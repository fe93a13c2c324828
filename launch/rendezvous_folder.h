// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The private folder with the file of the ranks' store.
#pragma once

#include <chrono>
#include <string>

#include "gradwire/base/mutex.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/process.h"

namespace gradwire::launch {

// A folder of mode 0700 with a random name, under TMPDIR or /tmp; removed with everything in it at the end.
//
// Programs that clean temporary folders remove old files. This object holds a shared lock (flock) on the folder, which
// systemd-tmpfiles respects. For programs that check only the times of files, refresh() sets these times to now.
class RendezvousFolder {
 public:
  // Throws a LaunchError that names the parent folder.
  RendezvousFolder();
  ~RendezvousFolder();
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;

  const std::string& path() const noexcept { return path_; }

  // Returns the path of the file for the ranks' store in an attempt; the file does not exist yet. Makes the folder
  // again if it was removed. Throws LaunchError: the folder cannot be made, or something else has taken its name.
  std::string store_file(int attempt);
  // Writes the job's secret to a file in the folder, of mode 0600, and returns its path. Makes the folder again as
  // store_file() does. Throws LaunchError.
  std::string keep_secret(const std::string& secret);
  // Sets the times of the folder and of everything in it to now. Does nothing if the folder was removed. Any thread may
  // call this function.
  void refresh() const noexcept;

 private:
  void restore();
  void hold();

  std::string path_;
  UniqueFd lock_;
};

// Calls refresh() regularly, on a thread of its own, until the destructor.
class FolderUpkeep {
 public:
  // The default interval is short: cleaning programs wait for hours or days.
  explicit FolderUpkeep(const RendezvousFolder& folder, std::chrono::milliseconds interval = std::chrono::minutes(10));
  ~FolderUpkeep();
  FolderUpkeep(const FolderUpkeep&) = delete;
  FolderUpkeep& operator=(const FolderUpkeep&) = delete;

 private:
  void run(const RendezvousFolder& folder, std::chrono::milliseconds interval);

  Mutex mutex_;
  ConditionVariable stopped_;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Thread thread_;  // the last: it uses the others until it is joined
};

}  // namespace gradwire::launch
