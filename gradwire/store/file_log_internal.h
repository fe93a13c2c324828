// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The file of a FileStore: a log of records that several processes append to. docs/format/file_store.md is its
// specification.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::store_internal {

// One change of the store's data.
struct FileRecord {
  enum class Kind : std::uint8_t { set = 1, append = 2, remove = 3, push = 4, pop = 5 };
  Kind kind;
  std::string key;
  std::string value;  // empty for remove and pop
};

// One process's view of the file: how far it has read. Not thread-safe.
//
// The file is opened and locked anew for each operation. The lock belongs to that opening (an "open file description"
// lock), so the kernel drops it when the process dies, and threads of one process exclude each other like processes do.
//
// A copy has the same file. A descriptor, which copies share, stays open as long as one of them lives, so that no other
// file gets the number of the file's inode.
class FileLog {
 public:
  // Creates the file if it is missing. Throws StoreError when the file cannot be opened or is no store's file.
  explicit FileLog(std::string path);
  // A file that is open, and needs no name. Throws StoreError when it is no regular file.
  explicit FileLog(UniqueFd file);

  // Whether the file's length differs from what this process has read. Takes no lock. Throws StoreError when the file
  // is gone.
  bool has_news() const;

  // Makes the next read() begin at the first record again.
  void rewind() noexcept { end_ = 0; }

  const std::string& path() const noexcept { return path_; }

  // The locked file, for the length of one operation.
  class Locked {
   public:
    enum class Mode { shared, exclusive };
    // Throws TimeoutError when another process holds the lock until `deadline`, StoreError when the file is gone.
    Locked(FileLog& log, Mode mode, Deadline deadline);
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    ~Locked();

    // Returns all records since the last read. An incomplete record at the end, left by a process that was killed while
    // it wrote, is not among them; in exclusive mode that record is cut off. Throws StoreError, and does not change the
    // file, when the file is damaged in any other way.
    std::vector<FileRecord> read();

    // Appends one record, after read(), in exclusive mode. When it throws StoreError (a full disk), the file does not
    // hold the record.
    void append(const FileRecord& record);

   private:
    void write_header();
    void write(const std::string& bytes);

    FileLog& log_;
    UniqueFd fd_;
    Mode mode_;
  };

 private:
  void identify();
  UniqueFd open(bool create) const;

  std::string path_;
  std::shared_ptr<const UniqueFd> file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::uint64_t end_ = 0;  // just behind the last whole record that was read; 0 before the header was
};

}  // namespace gradwire::store_internal
