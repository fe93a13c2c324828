// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/record_file_internal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/clock_internal.h"
#include "gradwire/observe/flight_text_internal.h"

namespace gradwire::observe {
namespace {

using record_format::File;
using record_format::kFileBytes;
using record_format::kRecords;
using record_format::kRows;
using record_format::Record;
using record_format::RecordKind;
using record_format::Sums;
using record_format::Word;

void set(Word& word, std::uint64_t value) noexcept { word.store(value, std::memory_order_relaxed); }
void set(Word& word, std::int64_t value) noexcept { set(word, static_cast<std::uint64_t>(value)); }
std::uint64_t get(const Word& word) noexcept { return word.load(std::memory_order_relaxed); }
void add_to(Word& word, std::uint64_t value) noexcept { set(word, get(word) + value); }
void add_to(Word& word, std::int64_t value) noexcept { add_to(word, static_cast<std::uint64_t>(value)); }

std::uint64_t place_of(const BucketTimes* bucket, std::uint64_t thread) noexcept {
  const std::uint64_t number = bucket == nullptr ? 0 : bucket->index + 1;
  return number << 32 | (thread & 0xffffffffU);
}

std::uint64_t lane_of(const BucketTimes* bucket) noexcept {
  return static_cast<std::uint64_t>(bucket == nullptr ? 0 : bucket->lane + 1) << 16;
}

// Adds a step, whose own sums are `change`.
void add_step_to(Sums& sums, const StepTimes& step, const StepTotals& change) noexcept {
  auto& words = sums.words;
  if (get(words[Sums::steps]) == 0) {
    set(words[Sums::first_step], step.number);
    set(words[Sums::begin], step.whole.begin);
    set(words[Sums::loss], record_format::kNoLoss);
  }
  add_to(words[Sums::steps], std::uint64_t{1});
  set(words[Sums::end], step.whole.end);
  add_to(words[Sums::whole], change.whole);
  add_to(words[Sums::forward], change.forward);
  add_to(words[Sums::backward], change.backward);
  add_to(words[Sums::wait], change.wait);
  add_to(words[Sums::rest], change.rest);
  add_to(words[Sums::compute], change.split.compute);
  add_to(words[Sums::communication], change.split.communication);
  add_to(words[Sums::hook_wait], change.split.hook);
  add_to(words[Sums::hook], change.hook);
  add_to(words[Sums::sent], change.sent);
  add_to(words[Sums::call_bytes], change.call_bytes);
}

// Of the losses of a row: the last that was told, but one that is not finite rather than a finite one, which would hide
// it from the course.
std::uint64_t loss_of_both(std::uint64_t first, std::uint64_t second) noexcept {
  const auto was_told = [](std::uint64_t word) { return word != record_format::kNoLoss; };
  const auto is_finite = [](std::uint64_t word) { return std::isfinite(std::bit_cast<double>(word)); };
  if (!was_told(second)) return first;
  return was_told(first) && !is_finite(first) && is_finite(second) ? first : second;
}

// The sum of two rows, one after the other.
void merge(Sums& to, const Sums& first, const Sums& second) noexcept {
  for (std::size_t i = Sums::steps; i < Sums::loss; ++i) set(to.words[i], get(first.words[i]) + get(second.words[i]));
  set(to.words[Sums::first_step], get(first.words[Sums::first_step]));
  set(to.words[Sums::begin], get(first.words[Sums::begin]));
  set(to.words[Sums::end], get(second.words[Sums::end]));
  set(to.words[Sums::loss], loss_of_both(get(first.words[Sums::loss]), get(second.words[Sums::loss])));
}

// While it exists the totals and the course change, and readers see that by the version.
class Change {
 public:
  explicit Change(File& file) noexcept : version_(file.version) {
    version_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Change() { version_.fetch_add(1, std::memory_order_release); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  Word& version_;
};

// The words of the command line, with blanks between them.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string words{std::istreambuf_iterator<char>(file), {}};
  while (!words.empty() && words.back() == '\0') words.pop_back();
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words;
}

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw ResourceError(concat("GRADWIRE_RECORD: '", path, "' ", what, ": ", std::strerror(error)));
}

struct flock whole_file(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string path_of(const std::string& folder, int rank) { return concat(folder, "/rank-", rank, ".record"); }

// The process that writes the file, as far as this host knows.
std::optional<pid_t> writer_of(const std::string& path) {
  const UniqueFd old(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = whole_file(F_WRLCK);
  if (!old || ::fcntl(old.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return std::nullopt;
  return lock.l_pid;
}

std::uint64_t hash_of_run() {
  const auto id = environment("GRADWIRE_RUN_ID");
  return id ? stable_hash(*id) : 0;
}

}  // namespace

void RecordFile::remove_earlier(const std::string& folder, int rank) {
  const std::string path = path_of(folder, rank);
  if (!writer_of(path)) ::unlink(path.c_str());
}

std::unique_ptr<RecordFile> RecordFile::make(const std::string& folder, int rank, int world) {
  const std::string path = path_of(folder, rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(folder, "cannot be made", error.value());
  if (const auto writer = writer_of(path))
    throw ResourceError(concat("GRADWIRE_RECORD: process ", *writer, " writes '", path,
                               "'; this process has the rank's number and is not the rank"));
  // A new file: somebody may still read the old one.
  ::unlink(path.c_str());
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) fail(path, "cannot be made", errno);
  // The lock goes with the process. Where the file system has no locks, nothing guards the file.
  struct flock lock = whole_file(F_WRLCK);
  ::fcntl(fd.get(), F_SETLK, &lock);
  // With room on the disk, so that writing to the mapping never fails.
  if (const int problem = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(kFileBytes)); problem != 0) {
    ::unlink(path.c_str());
    fail(path, "gets no room", problem);
  }
  Mapping mapping = Mapping::of_file(fd.get(), kFileBytes);
  auto made = std::make_unique<RecordFile>(std::move(fd), std::move(mapping));
  File& file = made->file();
  set(file.pid, static_cast<std::uint64_t>(::getpid()));
  set(file.ranks, static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint64_t>(world));
  set(file.monotonic, time_of(CLOCK_MONOTONIC));
  set(file.wall, time_of(CLOCK_REALTIME));
  set(file.steps_per_row, std::uint64_t{1});
  set(file.run, hash_of_run());
  set_text(file.program, command_line());
  std::array<char, 64> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) set_text(file.host, host.data());
  file.magic.store(record_format::kMagic, std::memory_order_release);
  return made;
}

// A record with zeros in the words that are not given. finish() makes it whole.
Record& RecordFile::begin(RecordKind kind, const Span& span, std::uint64_t step, std::uint64_t place) noexcept {
  Record& record = file().records[ticket_ % kRecords];
  auto& words = record.words;
  set(words[Record::state], std::uint64_t{0});
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = Record::kind; i < Record::size; ++i) set(words[i], std::uint64_t{0});
  set(words[Record::kind], static_cast<std::uint64_t>(kind));
  set(words[Record::begin], span.begin);
  set(words[Record::end], span.end);
  set(words[Record::step], step);
  set(words[Record::place], place);
  return record;
}

void RecordFile::finish(Record& record) noexcept {
  record.words[Record::state].store(++ticket_, std::memory_order_release);
  file().tickets.store(ticket_, std::memory_order_release);
}

// From 1; 0: there is no room for the name.
std::uint64_t RecordFile::number_of(std::string_view name) noexcept {
  auto& names = file().hook_names;
  const std::uint64_t used = get(file().names);
  for (std::uint64_t i = 0; i < used; ++i) {
    if (std::string_view(names[i].data()) == name.substr(0, names[i].size() - 1)) return i + 1;
  }
  if (used == names.size()) return 0;
  set_text(names[used], name);
  file().names.store(used + 1, std::memory_order_release);
  return used + 1;
}

void RecordFile::enter(record_format::Phase phase, std::uint64_t step, std::int64_t now) noexcept {
  set(file().step, step);
  set(file().phase_begin, now);
  set(file().phase, static_cast<std::uint64_t>(phase));
}

// The row for the next step.
Sums& RecordFile::row() noexcept {
  File& all = file();
  const std::uint64_t rows = get(all.rows);
  auto& table = all.tables[get(all.table)];
  if (rows > 0 && get(table[rows - 1].words[Sums::steps]) < get(all.steps_per_row)) return table[rows - 1];
  if (rows < kRows) {
    for (Word& word : table[rows].words) set(word, std::uint64_t{0});
    set(all.rows, rows + 1);
    return table[rows];
  }
  halve_course();
  return row();
}

// Every two rows become one, in the other table: a process that is killed meanwhile leaves the first table. One that is
// killed between the last three words, for which there is no time but that of their stores, may leave half of the rows.
void RecordFile::halve_course() noexcept {
  File& all = file();
  const std::uint64_t now = get(all.table);
  const auto& from = all.tables[now];
  auto& to = all.tables[1 - now];
  for (std::size_t i = 0; i < kRows / 2; ++i) merge(to[i], from[2 * i], from[2 * i + 1]);
  std::atomic_thread_fence(std::memory_order_release);
  set(all.steps_per_row, 2 * get(all.steps_per_row));
  set(all.rows, std::uint64_t{kRows / 2});
  set(all.table, 1 - now);
}

void RecordFile::add(const StepTimes& step, const StepTotals& sums, std::uint64_t thread) noexcept {
  Record& record = begin(RecordKind::step, step.whole, step.number, place_of(nullptr, thread));
  auto& words = record.words;
  set(words[Record::bytes], sums.call_bytes);
  set(words[Record::sent], sums.sent);
  set(words[Record::first], step.forward.begin);
  set(words[Record::second], step.backward.begin);
  set(words[Record::third], step.wait.begin);
  set(words[Record::fourth], step.wait.end);
  finish(record);

  File& all = file();
  const Change change(all);
  Sums& course = row();
  add_step_to(course, step, sums);
  add_step_to(all.totals, step, sums);
  if (const auto loss = std::exchange(loss_, std::nullopt)) {
    set(course.words[Sums::loss], loss_of_both(get(course.words[Sums::loss]), record_format::word_of_loss(*loss)));
    set(all.totals.words[Sums::loss], record_format::word_of_loss(*loss));
  }
}

void RecordFile::add(const BucketTimes& bucket, std::uint64_t step, std::uint64_t thread) noexcept {
  Record& record = begin(RecordKind::bucket, bucket.run, step, place_of(&bucket, thread));
  auto& words = record.words;
  add_to(words[Record::kind], lane_of(&bucket) | number_of(bucket.hook) << 32);
  set(words[Record::bytes], bucket.bytes);
  set(words[Record::sent], bucket.sent);
  set(words[Record::first], bucket.ready);
  set(words[Record::second], bucket.returned);
  finish(record);
}

void RecordFile::add(const CallTimes& call, std::uint64_t step, const BucketTimes* bucket,
                     std::uint64_t thread) noexcept {
  Record& record = begin(RecordKind::call, call.span, step, place_of(bucket, thread));
  auto& words = record.words;
  add_to(words[Record::kind], static_cast<std::uint64_t>(call.kind) << 8 | lane_of(bucket));
  set(words[Record::bytes], call.bytes);
  set(words[Record::sent], call.sent);
  finish(record);
}

void RecordFile::add_wait(const Span& wait, std::uint64_t step, const BucketTimes* bucket,
                          std::uint64_t thread) noexcept {
  Record& record = begin(RecordKind::wait, wait, step, place_of(bucket, thread));
  add_to(record.words[Record::kind], lane_of(bucket));
  finish(record);
}

void RecordFile::add_earlier_wait(const Span& wait, std::uint64_t step, std::uint64_t thread) noexcept {
  finish(begin(RecordKind::averages, wait, step, place_of(nullptr, thread)));
}

void RecordFile::add(const ChoiceNote& note, std::uint64_t step, std::int64_t now) noexcept {
  Record& record = begin(RecordKind::choice, {now, now}, step, 0);
  auto& words = record.words;
  add_to(words[Record::kind], static_cast<std::uint64_t>(note.kind) << 8 | number_of(note.hook) << 32);
  set(words[Record::bytes], note.cap_bytes);
  set(words[Record::first], note.cost);
  set(words[Record::second], note.iteration);
  set(words[Record::third], static_cast<std::uint64_t>(note.lanes));
  finish(record);
}

void RecordFile::add_loss(double loss, std::uint64_t step, bool under_way, std::int64_t now) noexcept {
  Record& record = begin(RecordKind::loss, {now, now}, step, 0);
  set(record.words[Record::first], std::bit_cast<std::uint64_t>(loss));
  finish(record);
  File& all = file();
  const std::uint64_t rows = get(all.rows);
  if (under_way || rows == 0) {
    loss_ = loss;
    return;
  }
  const Change change(all);
  Word& of_row = all.tables[get(all.table)][rows - 1].words[Sums::loss];
  set(of_row, loss_of_both(get(of_row), record_format::word_of_loss(loss)));
  set(all.totals.words[Sums::loss], record_format::word_of_loss(loss));
}

}  // namespace gradwire::observe
