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

  // The file for the ranks' store; it does not exist yet.
  std::string store_file() const { return path_ + "/store"; }

 private:
  std::string path_;
};

}  // namespace gradwire::launch
