// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/file_log_internal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/store.h"

namespace gradwire::store_internal {
namespace {

constexpr std::string_view kMagic("gwstore\x01", 8);
constexpr std::size_t kFrameBytes = 8;   // length and checksum before the body
constexpr std::size_t kPrefixBytes = 5;  // kind and key length at the body's begin
constexpr std::size_t kMaxBodyBytes = kPrefixBytes + Store::kMaxKeyBytes + Store::kMaxValueBytes;

// CRC-32 (ISO-HDLC: polynomial 0xEDB88320 reflected, initial value and final exclusive-or all ones).
std::uint32_t crc32(std::string_view bytes) noexcept {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320U : 0U);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFFU];
  return ~crc;
}

void put_u32(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>((value >> shift) & 0xFFU);
}

std::uint32_t get_u32(std::string_view bytes) noexcept {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw StoreError(concat("FileStore ", path, ": ", what, ": ", std::strerror(errno)));
}

struct stat status_of(const std::string& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail(path, "cannot stat the file");
  return status;
}

void lock(const std::string& path, int fd, short type, Deadline deadline) {
  struct flock request {};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  // The blocking form of this lock knows no deadline, so ask again until there is none left.
  timespec pause{0, 50'000};
  while (::fcntl(fd, F_OFD_SETLK, &request) != 0) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) fail(path, "cannot lock the file");
    if (deadline.expired()) {
      throw TimeoutError(concat("FileStore ", path,
                                ": another process has held the file's lock until this call's time was up; "
                                "is it stopped?"));
    }
    ::ppoll(nullptr, 0, &pause, nullptr);
    pause.tv_nsec = std::min(pause.tv_nsec * 2, 2'000'000L);
  }
}

std::string encode(const FileRecord& record) {
  std::string body;
  body.reserve(kPrefixBytes + record.key.size() + record.value.size());
  body += static_cast<char>(record.kind);
  put_u32(body, static_cast<std::uint32_t>(record.key.size()));
  body += record.key;
  body += record.value;
  std::string bytes;
  bytes.reserve(kFrameBytes + body.size());
  put_u32(bytes, static_cast<std::uint32_t>(body.size()));
  put_u32(bytes, crc32(body));
  return bytes += body;
}

std::string read_from(const std::string& path, int fd, std::uint64_t begin, std::uint64_t end) {
  std::string bytes(end - begin, '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot read the file");
    if (n == 0) break;  // someone who does not keep to the lock cut the file
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

FileLog::FileLog(std::string path) : path_(std::move(path)) {
  file_ = std::make_shared<const UniqueFd>(open(true));
  identify();
}

FileLog::FileLog(UniqueFd file)
    : path_(concat("/proc/self/fd/", file.get())), file_(std::make_shared<const UniqueFd>(std::move(file))) {
  identify();
}

void FileLog::identify() {
  const struct stat status = status_of(path_, file_->get());
  if (!S_ISREG(status.st_mode)) throw StoreError(concat("FileStore ", path_, ": this is no regular file"));
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

UniqueFd FileLog::open(bool create) const {
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_NONBLOCK : 0);  // non-blocking: the path may name a pipe
  UniqueFd fd(::open(path_.c_str(), flags, 0600));
  if (!fd) fail(path_, create ? "cannot open or create the file" : "cannot open the file again (was it removed?)");
  if (create) return fd;
  const struct stat status = status_of(path_, fd.get());
  if (status.st_dev != device_ || status.st_ino != inode_) {
    throw StoreError(concat("FileStore ", path_,
                            ": the file was replaced by another while this store used it; remove a "
                            "store's file only after all ranks are done with it"));
  }
  return fd;
}

bool FileLog::has_news() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) fail(path_, "cannot stat the file (was it removed?)");
  return static_cast<std::uint64_t>(status.st_size) != end_ || status.st_dev != device_ || status.st_ino != inode_;
}

FileLog::Locked::Locked(FileLog& log, Mode mode, Deadline deadline) : log_(log), fd_(log.open(false)), mode_(mode) {
  lock(log_.path_, fd_.get(), mode == Mode::shared ? F_RDLCK : F_WRLCK, deadline);
}

FileLog::Locked::~Locked() {
  // Closing alone would leave the lock to a child that was forked in the meantime and has a copy of the descriptor.
  struct flock request {};
  request.l_type = F_UNLCK;
  request.l_whence = SEEK_SET;
  static_cast<void>(::fcntl(fd_.get(), F_OFD_SETLK, &request));
}

std::vector<FileRecord> FileLog::Locked::read() {
  const auto size = static_cast<std::uint64_t>(status_of(log_.path_, fd_.get()).st_size);
  if (size < log_.end_) {
    throw StoreError(
        concat("FileStore ", log_.path_, ": the file was cut to ", size, " bytes by someone who is no store"));
  }
  const std::string tail = read_from(log_.path_, fd_.get(), log_.end_, size);
  std::string_view rest = tail;
  std::uint64_t end = log_.end_;
  if (end == 0) {
    if (rest.substr(0, kMagic.size()) != kMagic.substr(0, rest.size())) {
      throw StoreError(concat("FileStore ", log_.path_,
                              ": this is not the file of a store of this version (it begins otherwise); "
                              "name a file that is empty or does not exist"));
    }
    if (rest.size() < kMagic.size()) {  // empty, or its first writer was killed
      if (mode_ == Mode::exclusive) write_header();
      return {};
    }
    rest.remove_prefix(kMagic.size());
    end = kMagic.size();
  }
  std::vector<FileRecord> records;
  while (rest.size() >= kFrameBytes) {
    const std::size_t length = get_u32(rest);
    const bool too_long = length < kPrefixBytes || length > kMaxBodyBytes;
    if (!too_long && rest.size() - kFrameBytes < length) break;
    const std::string_view body = too_long ? std::string_view() : rest.substr(kFrameBytes, length);
    const std::size_t key_bytes = too_long ? 0 : get_u32(body.substr(1));
    if (too_long || crc32(body) != get_u32(rest.substr(4)) || key_bytes > length - kPrefixBytes || body[0] < 1 ||
        body[0] > 5) {
      throw StoreError(
          concat("FileStore ", log_.path_, ": the record at byte ", end,
                 " is damaged, by something other than a killed writer; remove the file and start the job again"));
    }
    records.push_back({static_cast<FileRecord::Kind>(body[0]), std::string(body.substr(kPrefixBytes, key_bytes)),
                       std::string(body.substr(kPrefixBytes + key_bytes))});
    rest.remove_prefix(kFrameBytes + length);
    end += kFrameBytes + length;
  }
  if (!rest.empty() && mode_ == Mode::exclusive && ::ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) {
    fail(log_.path_, "cannot cut off a torn record");
  }
  log_.end_ = end;
  return records;
}

void FileLog::Locked::write_header() {
  if (::ftruncate(fd_.get(), 0) != 0) fail(log_.path_, "cannot cut off a torn header");
  write(std::string(kMagic));
}

void FileLog::Locked::append(const FileRecord& record) {
  GRADWIRE_CHECK(mode_ == Mode::exclusive && log_.end_ >= kMagic.size());
  write(encode(record));
}

void FileLog::Locked::write(const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(log_.end_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int reason = errno;
      // If this fails as well, what is left is a torn record, which the next writer cuts off.
      static_cast<void>(::ftruncate(fd_.get(), static_cast<off_t>(log_.end_)) == 0);
      errno = reason;
      fail(log_.path_, "cannot write to the file");
    }
    done += static_cast<std::size_t>(n);
  }
  log_.end_ += bytes.size();
}

}  // namespace gradwire::store_internal
