// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store in a file that all ranks can open: on one host, or on a shared file system whose locks work between hosts.
#pragma once

#include <memory>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire {

// The data is what the file says, for as long as the file is there; a later store over the same file sees it, so
// several jobs one after another through one file keep apart by their keys (PrefixStore). The file may be missing,
// empty, or in use. The caller removes it when all ranks are done; a store whose file was removed or replaced throws
// StoreError.
//
// Any process may be killed at any moment, also while it writes: the others detect its torn record and go on. The file
// only grows (one record a change), and a method that waits looks at the file's length every 1 to 20 ms. Every method
// takes the file's lock for a moment; one that cannot have it for the length of timeout() (its holder is stopped)
// throws TimeoutError. A method that waits holds no other up. A forked child must not use it (InvalidArgument).
class FileStore final : public Store {
 public:
  // `world_size` is the number of ranks that share the file, -1 when unknown; it stands in error messages. Throws
  // StoreError when the file cannot be opened or created, or holds something else, which is then left as it is;
  // InvalidArgument for an empty path or a world size that is neither -1 nor positive.
  explicit FileStore(std::string path, int world_size = -1);
  ~FileStore() override;

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
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override;
  void queue_push(const std::string& queue, const Value& value) override;
  Value queue_pop(const std::string& queue) override;
  std::int64_t queue_length(const std::string& queue) override;
  Milliseconds timeout() const override;
  void set_timeout(Milliseconds timeout) override;
  std::shared_ptr<Store> clone() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire
