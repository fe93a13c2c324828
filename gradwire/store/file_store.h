// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store in a file that all ranks can open: on one host, or on a shared file system whose locks work between hosts.
#pragma once

#include <memory>
#include <string>

#include "gradwire/base/os_handles.h"
#include "gradwire/store/store.h"

namespace gradwire {

// The file holds the data, and keeps the data when the stores are destroyed: a later store over the same file sees the
// keys of earlier jobs. Jobs that use one file one after another therefore need different keys (PrefixStore). The file
// may be missing, empty, or in use. The caller removes the file when all ranks are done. A store whose file was removed
// or replaced throws StoreError.
//
// A process may be killed at any moment, also while it writes: the other processes detect the incomplete record and
// continue. The file only grows, by one record for each change. A method that waits checks the file's length every 1 to
// 20 ms. Methods hold the file's lock for a moment; a method that cannot get the lock for timeout(), because the
// process that holds the lock is stopped, throws TimeoutError. A call that waits for a key does not delay other calls.
//
// In a forked child every method that reaches the data throws InvalidArgument. Thread-safe. store.h documents the
// methods.
class FileStore final : public Store {
 public:
  // Opens the file, or creates it, and reads what it holds. `world_size` is the number of ranks that share the file, -1
  // when unknown; error messages contain the number. `timeout` is the store's timeout(), and the most that the
  // constructor waits for the file's lock. Throws StoreError when the file cannot be opened or created, or holds
  // something other than a store's data (the file is not changed then); InvalidArgument for an empty path, a world size
  // that is neither -1 nor positive, or a negative timeout; TimeoutError when it cannot get the lock.
  explicit FileStore(std::string path, int world_size = -1, Milliseconds timeout = kDefaultTimeout);
  // Uses a file that is open for reading and writing, and that the store and its clones keep open: the file needs no
  // name any more. Throws StoreError when the file holds something other than a store's data, and as the other
  // constructor for `timeout`.
  explicit FileStore(UniqueFd file, Milliseconds timeout = kDefaultTimeout);
  ~FileStore() override;

  // The path that the constructor got, or one that this process alone can use.
  const std::string& path() const noexcept;

  void set(const std::string& key, const Value& value) override;
  Value get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override;
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  bool check(std::span<const std::string> keys) override;
  bool delete_key(const std::string& key) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override;
  void queue_push(const std::string& queue, const Value& value) override;
  Value queue_pop(const std::string& queue) override;
  Value queue_pop_within(const std::string& queue, Milliseconds timeout) override;
  std::int64_t queue_length(const std::string& queue) override;
  Milliseconds timeout() const override;
  void set_timeout(Milliseconds timeout) override;
  // Throws StoreError when the file was removed or replaced.
  std::shared_ptr<Store> clone() override;

  class Impl;
  // For clone(): no other code can make an Impl.
  explicit FileStore(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire
