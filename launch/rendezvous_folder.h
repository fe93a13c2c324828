// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The private folder in which the ranks of a job meet.
#pragma once

#include <chrono>
#include <string>

#include "gradwire/base/mutex.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/process.h"

namespace gradwire::launch {

// A folder of mode 0700 with a random name, under TMPDIR or /tmp; removed with everything in it at the end.
//
// Programs that clean such places remove what is old. This object holds a shared lock (flock) on the folder, which
// systemd-tmpfiles respects, and refresh() makes the folder young again for those that look at times only.
class RendezvousFolder {
 public:
  // Throws LaunchError that names the place.
  RendezvousFolder();
  ~RendezvousFolder();
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;

  const std::string& path() const noexcept { return path_; }

  // The file for the ranks' store in an attempt; it does not exist yet. Makes the folder again where somebody has
  // removed it. Throws LaunchError: the folder cannot be made, or something else has taken its name.
  std::string store_file(int attempt);
  // Writes the job's secret to a file in the folder, of mode 0600, and returns its path. Makes the folder again as
  // store_file() does. Throws LaunchError.
  std::string keep_secret(const std::string& secret);
  // Sets the times of the folder and of all that is in it to now. Does nothing where the folder is gone. Any thread.
  void refresh() const noexcept;

 private:
  void restore();
  void hold();

  std::string path_;
  UniqueFd lock_;
};

// Refreshes a folder from time to time, on a thread of its own, until the end.
class FolderUpkeep {
 public:
  // Cleaners count in hours and days.
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
