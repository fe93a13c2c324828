// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/file_store.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_log_internal.h"
#include "gradwire/store/key_value_map_internal.h"

namespace gradwire {

using store_internal::FileLog;
using store_internal::FileRecord;
using store_internal::KeyValueMap;
using store_internal::require_key;
using store_internal::require_keys;
using store_internal::require_value;
using Kind = FileRecord::Kind;

namespace {

void apply(KeyValueMap& map, FileRecord record) {
  switch (record.kind) {
    case Kind::set:
      return map.set(record.key, std::move(record.value));
    case Kind::append:
      return map.append(record.key, record.value);
    case Kind::remove:
      return static_cast<void>(map.remove(record.key));
    case Kind::push:
      return map.push(record.key, std::move(record.value));
    case Kind::pop:
      return static_cast<void>(map.pop(record.key));
  }
}

// The pause between two looks at the file; it grows, so that a long wait costs little.
class Pause {
 public:
  // Throws AbortedError where this thread is interrupted.
  void take(Deadline deadline) {
    throw_if_interrupted("FileStore");
    ::poll(nullptr, 0, static_cast<int>(std::min(next_, deadline.remaining()).count()));
    next_ = std::min(next_ * 2, Milliseconds(20));
  }

 private:
  Milliseconds next_{1};
};

// Holders keep the lock for microseconds: a call whose own time is up still gets that long, so that it can say what was
// missing.
Deadline lock_deadline(Deadline deadline) {
  const Deadline least = Deadline::after(Milliseconds(500));
  return deadline.point() < least.point() ? least : deadline;
}

}  // namespace

// A copy of the data, brought up to date from the file before each operation.
class FileStore::Impl {
 public:
  Impl(FileLog log, int world_size, Milliseconds limit)
      : world_size(world_size), path(log.path()), timeout(limit), log_(std::move(log)) {
    store_internal::require_timeout("FileStore", limit);
    MutexLock lock(mutex_);
    refresh(Deadline::after(limit));
  }

  // The same file, which this process reads from its begin.
  std::unique_ptr<Impl> another() {
    owner_.require_current("this FileStore");
    MutexLock lock(mutex_);
    FileLog log = log_;
    log.rewind();
    return std::make_unique<Impl>(std::move(log), world_size, timeout);
  }

  // Runs `change(map)`, which returns the records of what it did, on up-to-date data under the file's exclusive lock.
  template <class Change>
  void write(Deadline deadline, Change change) {
    owner_.require_current("this FileStore");
    MutexLock lock(mutex_);
    FileLog::Locked file(log_, FileLog::Locked::Mode::exclusive, lock_deadline(deadline));
    catch_up(file);
    const std::vector<FileRecord> records = change(map_);
    try {
      for (const FileRecord& record : records) file.append(record);
    } catch (...) {
      forget();  // the map is ahead of the file
      throw;
    }
  }

  // Runs `look(map)` on up-to-date data.
  template <class Look>
  auto read(Deadline deadline, Look look) {
    owner_.require_current("this FileStore");
    MutexLock lock(mutex_);
    refresh(deadline);
    return look(std::as_const(map_));
  }

  std::vector<Value> values_of(const char* operation, std::span<const std::string> keys) {
    require_keys(operation, keys);
    const Milliseconds limit = timeout;
    const Deadline deadline = Deadline::after(limit);
    std::vector<Value> values;
    for (Pause pause;; pause.take(deadline)) {
      const bool last = deadline.expired();
      const auto missing = read(deadline, [&](const KeyValueMap& map) {
        auto absent = map.missing_values(keys);
        for (std::size_t i = 0; absent.empty() && i < keys.size(); ++i) values.push_back(*map.find(keys[i]));
        return absent;
      });
      if (missing.empty()) return values;
      if (last) throw_missing(operation, missing, limit);
    }
  }

  Value pop(const char* operation, const std::string& queue, Milliseconds limit) {
    require_key(operation, queue);
    store_internal::require_timeout(operation, limit);
    const Deadline deadline = Deadline::after(limit);
    std::optional<Value> value;
    for (Pause pause;; pause.take(deadline)) {
      const bool last = deadline.expired();
      // Look first without the exclusive lock, so that those who wait do not keep those who push from writing.
      if (read(deadline, [&](const KeyValueMap& map) { return map.queue_length(queue) > 0; })) {
        write(deadline, [&](KeyValueMap& map) -> std::vector<FileRecord> {
          value = map.pop(queue);
          if (!value) return {};
          return {{Kind::pop, queue, {}}};
        });
        if (value) return *std::move(value);
      }
      if (last) throw_missing(operation, std::span(&queue, 1), limit);
    }
  }

  [[noreturn]] void throw_missing(const char* operation, std::span<const std::string> missing,
                                  Milliseconds limit) const {
    std::string store = concat("FileStore ", path);
    if (world_size > 0) store += concat(" for ", world_size, " ranks");
    throw TimeoutError(store_internal::missing_message(store, operation, missing, limit));
  }

  const int world_size;
  const std::string path;
  std::atomic<Milliseconds> timeout;

 private:
  void refresh(Deadline deadline) GRADWIRE_REQUIRES(mutex_) {
    if (!log_.has_news()) return;
    FileLog::Locked file(log_, FileLog::Locked::Mode::shared, lock_deadline(deadline));
    catch_up(file);
  }

  void catch_up(FileLog::Locked& file) GRADWIRE_REQUIRES(mutex_) {
    std::vector<FileRecord> records = file.read();
    try {
      for (FileRecord& record : records) apply(map_, std::move(record));
    } catch (...) {
      forget();  // the map is behind what was read
      throw;
    }
  }

  // Makes the next operation build the map anew from the whole file.
  void forget() GRADWIRE_REQUIRES(mutex_) {
    log_.rewind();
    map_.clear();
  }

  OwnerProcess owner_;
  Mutex mutex_;
  FileLog log_ GRADWIRE_GUARDED_BY(mutex_);
  KeyValueMap map_ GRADWIRE_GUARDED_BY(mutex_);
};

FileStore::FileStore(std::string path, int world_size, Milliseconds timeout) {
  if (path.empty()) throw InvalidArgument("FileStore: the path is empty");
  if (world_size != -1 && world_size < 1) {
    throw InvalidArgument(concat("FileStore ", path, ": a world size of ", world_size, " is neither -1 nor positive"));
  }
  impl_ = std::make_unique<Impl>(FileLog(std::move(path)), world_size, timeout);
}

FileStore::FileStore(UniqueFd file, Milliseconds timeout)
    : impl_(std::make_unique<Impl>(FileLog(std::move(file)), -1, timeout)) {}

FileStore::FileStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

FileStore::~FileStore() = default;

const std::string& FileStore::path() const noexcept { return impl_->path; }

void FileStore::set(const std::string& key, const Value& value) {
  require_key("set", key);
  require_value("set", value);
  impl_->write(Deadline::after(timeout()), [&](KeyValueMap& map) -> std::vector<FileRecord> {
    map.set(key, value);
    return {{Kind::set, key, value}};
  });
}

Store::Value FileStore::get(const std::string& key) {
  return std::move(impl_->values_of("get", std::span(&key, 1)).front());
}

std::int64_t FileStore::add(const std::string& key, std::int64_t amount) {
  require_key("add", key);
  std::int64_t sum = 0;
  impl_->write(Deadline::after(timeout()), [&](KeyValueMap& map) -> std::vector<FileRecord> {
    sum = map.add(key, amount);
    return {{Kind::set, key, *map.find(key)}};
  });
  return sum;
}

Store::Value FileStore::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  require_key("compare_set", key);
  require_value("compare_set", desired);
  KeyValueMap::Swap swap;
  impl_->write(Deadline::after(timeout()), [&](KeyValueMap& map) -> std::vector<FileRecord> {
    swap = map.compare_set(key, expected, desired);
    if (!swap.changed) return {};
    return {{Kind::set, key, desired}};
  });
  return swap.value;
}

void FileStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  require_keys("wait", keys);
  store_internal::require_timeout("wait", timeout);
  const Deadline deadline = Deadline::after(timeout);
  for (Pause pause;; pause.take(deadline)) {
    const bool last = deadline.expired();
    const auto missing = impl_->read(deadline, [&](const KeyValueMap& map) { return map.missing(keys); });
    if (missing.empty()) return;
    if (last) impl_->throw_missing("wait", missing, timeout);
  }
}

bool FileStore::check(std::span<const std::string> keys) {
  require_keys("check", keys);
  return impl_->read(Deadline::after(timeout()), [&](const KeyValueMap& map) { return map.missing(keys).empty(); });
}

bool FileStore::delete_key(const std::string& key) {
  require_key("delete_key", key);
  bool removed = false;
  impl_->write(Deadline::after(timeout()), [&](KeyValueMap& map) -> std::vector<FileRecord> {
    removed = map.remove(key);
    if (!removed) return {};
    return {{Kind::remove, key, {}}};
  });
  return removed;
}

std::int64_t FileStore::num_keys() {
  return impl_->read(Deadline::after(timeout()), [](const KeyValueMap& map) { return map.num_keys(); });
}

std::vector<std::string> FileStore::list_keys() {
  return impl_->read(Deadline::after(timeout()), [](const KeyValueMap& map) {
    const auto keys = map.keys_after({});
    return std::vector<std::string>(keys.begin(), keys.end());
  });
}

void FileStore::append(const std::string& key, const Value& value) {
  require_key("append", key);
  require_value("append", value);
  impl_->write(Deadline::after(timeout()), [&](KeyValueMap& map) -> std::vector<FileRecord> {
    map.append(key, value);
    return {{Kind::append, key, value}};
  });
}

std::vector<Store::Value> FileStore::multi_get(std::span<const std::string> keys) {
  return impl_->values_of("multi_get", keys);
}

void FileStore::multi_set(std::span<const std::string> keys, std::span<const Value> values) {
  store_internal::require_pairs("multi_set", keys, values);
  impl_->write(Deadline::after(timeout()), [&](KeyValueMap& map) {
    std::vector<FileRecord> records;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      map.set(keys[i], values[i]);
      records.push_back({Kind::set, keys[i], values[i]});
    }
    return records;
  });
}

void FileStore::queue_push(const std::string& queue, const Value& value) {
  require_key("queue_push", queue);
  require_value("queue_push", value);
  impl_->write(Deadline::after(timeout()), [&](KeyValueMap& map) -> std::vector<FileRecord> {
    map.push(queue, value);
    return {{Kind::push, queue, value}};
  });
}

Store::Value FileStore::queue_pop(const std::string& queue) { return impl_->pop("queue_pop", queue, timeout()); }

Store::Value FileStore::queue_pop_within(const std::string& queue, Milliseconds limit) {
  return impl_->pop("queue_pop_within", queue, limit);
}

std::int64_t FileStore::queue_length(const std::string& queue) {
  require_key("queue_length", queue);
  return impl_->read(Deadline::after(timeout()), [&](const KeyValueMap& map) { return map.queue_length(queue); });
}

Milliseconds FileStore::timeout() const { return impl_->timeout.load(std::memory_order_relaxed); }

void FileStore::set_timeout(Milliseconds timeout) {
  store_internal::require_timeout("set_timeout", timeout);
  impl_->timeout.store(timeout, std::memory_order_relaxed);
}

std::shared_ptr<Store> FileStore::clone() { return std::make_shared<FileStore>(impl_->another()); }

}  // namespace gradwire
