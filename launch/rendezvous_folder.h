// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The private folder in which the ranks of a job meet.
#pragma once

#include <string>

namespace gradwire::launch {

// A folder of mode 0700 with a random name, under TMPDIR or /tmp; removed with everything in it at the end.
class RendezvousFolder {
 public:
  // Throws LaunchError that names the place.
  RendezvousFolder();
  ~RendezvousFolder();
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;

  // The file for the ranks' store in an attempt; it does not exist yet.
  std::string store_file(int attempt) const;
  // Writes the job's secret to a file in the folder, of mode 0600, and returns its path. Throws LaunchError.
  std::string keep_secret(const std::string& secret) const;

 private:
  std::string path_;
};

}  // namespace gradwire::launch
