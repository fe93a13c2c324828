// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/pipe.h"

namespace gradwire::launch {
namespace {

constexpr std::size_t kReadSize = std::size_t{64} << 10;

UniqueFd open_log(const std::string& path, bool append) {
  const int how = append ? 0 : O_TRUNC;
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | how | O_APPEND | O_CLOEXEC, 0666));
  if (!fd) throw_errno(concat("--log-dir: cannot write '", path, "'"));
  return fd;
}

std::string log_path(const Options& options, int rank, const char* ending) {
  return concat(options.log_folder, "/rank-", rank, ending);
}

}  // namespace

bool use_color(ColorMode color, bool is_terminal) {
  if (color != ColorMode::automatic) return color == ColorMode::always;
  return is_terminal && !environment("NO_COLOR") && environment("TERM").value_or("dumb") != "dumb";
}

std::string prefix_of_rank(int rank, int ranks, bool colored) {
  // No red: it is the colour of errors.
  constexpr std::array kColors = {"\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m",
                                  "\x1b[34m", "\x1b[96m", "\x1b[93m", "\x1b[95m"};
  const std::string number = std::to_string(rank);
  const std::string padding(std::to_string(ranks - 1).size() - number.size(), ' ');
  const std::string plain = concat("[rank ", padding, number, "]");
  return colored ? concat(kColors[rank % kColors.size()], plain, "\x1b[0m ") : plain + " ";
}

Output::Output(const Options& options, const OutputNames& names, LineFilter filter)
    : options_(options), names_(names), filter_(std::move(filter)), out_(STDOUT_FILENO), err_(STDERR_FILENO) {
  if (options.log_folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.log_folder, error);
  if (error) {
    throw LaunchError(kLaunchFailedExit,
                      concat("--log-dir: cannot make the folder '", options.log_folder, "': ", error.message()));
  }
}

RankOutput Output::open(int rank) {
  if (!options_.log_folder.empty()) {
    const bool append = names_.append || rank < opened_;
    opened_ = std::max(opened_, rank + 1);
    RankOutput files{open_log(log_path(options_, names_.first_rank + rank, ".out"), append),
                     open_log(error_file(rank), append)};
    earlier_.resize(static_cast<std::size_t>(opened_));
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(error_file(rank), error);
    earlier_.at(rank) = error ? 0 : bytes;
    return files;
  }
  RankOutput output;
  if (rank == static_cast<int>(last_.size())) last_.emplace_back();
  last_.at(rank) = std::make_shared<LastLines>();
  for (const bool is_error : {false, true}) {
    auto [reader, writer] = make_pipe(concat("for the output of rank ", names_.first_rank + rank));
    (is_error ? output.err : output.out) = std::move(writer);
    // Non-blocking at this end only: the two ends are separate open files.
    if (::fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) throw_errno("cannot make a pipe non-blocking");
    add_stream(rank, std::move(reader), is_error ? err_ : out_, is_error ? last_.at(rank) : nullptr);
  }
  return output;
}

void Output::add_stream(int rank, UniqueFd fd, OutputSink& sink, std::shared_ptr<LastLines> last) {
  std::string prefix = names_.bare ? ""
                                   : prefix_of_rank(names_.first_rank + rank, names_.world,
                                                    use_color(options_.color, sink.is_terminal()));
  streams_.push_back({std::move(fd), &sink, std::move(prefix), LineSplitter(), std::move(last)});
}

void Output::append_interest(std::vector<pollfd>& polled) const {
  polled.push_back(out_.interest());
  polled.push_back(err_.interest());
  for (const auto& stream : streams_) polled.push_back({stream.sink->congested() ? -1 : stream.fd.get(), POLLIN, 0});
}

void Output::handle(const pollfd* results) {
  if (results[0].revents != 0) out_.flush_some();
  if (results[1].revents != 0) err_.flush_some();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (results[i + 2].revents != 0) read_some(streams_[i]);
  }
  // In an elastic job processes are replaced again and again.
  std::erase_if(streams_, [](const Stream& stream) { return !stream.fd; });
  tell_of_loss();
  draw_shown();
}

bool Output::read_some(Stream& stream) {
  if (!stream.fd) return false;
  std::array<char, kReadSize> buffer;
  const ssize_t count = ::read(stream.fd.get(), buffer.data(), buffer.size());
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && errno == EAGAIN) return false;
  const auto emit_line = [&](std::string_view line) { emit(stream, line); };
  if (count <= 0) {
    stream.splitter.finish(emit_line);
    stream.sink->flush_some();
    stream.fd.reset();
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
  if (!options_.prefix) stream.sink->append(bytes);
  stream.splitter.feed(bytes, emit_line, [&] { end_progress(stream); });
  stream.sink->flush_some();
  return true;
}

void Output::emit(Stream& stream, std::string_view line) {
  if (filter_) {
    const auto rest = filter_(line);
    if (!rest) return;
    line = *rest;
  }
  if (stream.last != nullptr) stream.last->add(line);
  if (!options_.prefix) return;
  erase_shown();
  if (!stream.sink->is_terminal()) {
    stream.sink->append(concat(stream.prefix, line, "\n"));
    return;
  }
  // A progress line stays progress: the next line, whoever's, is drawn over it.
  if (stream.splitter.redrawn() && line.empty()) return;
  stream.sink->append(concat(std::exchange(redrawing_, false) ? "\r\x1b[K" : "", stream.prefix, line));
  redrawing_ = stream.splitter.redrawn();
  if (!redrawing_) stream.sink->append("\n");
}

// The new line of a progress line that is on the terminal already.
void Output::end_progress(Stream& stream) {
  if (!options_.prefix || !redrawing_) return;
  erase_shown();
  redrawing_ = false;
  stream.sink->append("\n");
}

void Output::drain() {
  for (auto& stream : streams_) {
    while (read_some(stream)) {
    }
    stream.splitter.finish([&](std::string_view line) { emit(stream, line); });
  }
  out_.flush_some();
  err_.flush_some();
  tell_of_loss();
}

// A full disk or a limit of the size of files.
void Output::tell_of_loss() {
  if (const int failure = out_.take_failure()) {
    say(concat("gradwire-run: stdout takes no more output (", std::strerror(failure),
               "); what the ranks write there is lost from here on\n"));
  }
}

bool Output::can_show() const {
  return options_.prefix && err_.is_terminal() && environment("TERM").value_or("dumb") != "dumb";
}

void Output::show(const std::string& block) {
  erase_shown();
  block_ = block;
  draw_shown();
}

void Output::keep_shown() {
  block_.clear();
  drawn_ = false;
  redrawing_ = false;
}

// Below a progress line, whose end has no new line, the block begins with one.
void Output::draw_shown() {
  if (drawn_ || block_.empty()) return;
  drawn_ = true;
  out_.flush_some();
  err_.append(concat(redrawing_ ? "\n" : "", block_));
  err_.flush_some();
}

void Output::erase_shown() {
  if (!std::exchange(drawn_, false)) return;
  const auto lines = std::count(block_.begin(), block_.end(), '\n');
  err_.append(concat("\x1b[", lines, "F\x1b[J", redrawing_ ? "\x1b[1A" : ""));
  err_.flush_some();
}

void Output::say(const std::string& text) {
  if (text.empty()) return;
  erase_shown();
  if (std::exchange(redrawing_, false)) err_.append("\n");
  err_.append(text);
  err_.flush_some();
  draw_shown();
}

void Output::tell(const std::string& lines) {
  if (!err_.empty()) return;
  err_.append(lines);
  err_.flush_some();
}

std::vector<std::string> Output::last_error_lines(int rank) const {
  return options_.log_folder.empty() ? last_.at(rank)->lines()
                                     : last_lines_of_file(error_file(rank), earlier_.at(rank));
}

std::function<std::vector<std::string>()> Output::error_lines_of_process(int rank) const {
  // In a file, the next process's lines come behind.
  if (!options_.log_folder.empty()) return [lines = last_error_lines(rank)] { return lines; };
  return [last = last_.at(rank)] { return last->lines(); };
}

std::string Output::error_file(int rank) const {
  return options_.log_folder.empty() ? std::string() : log_path(options_, names_.first_rank + rank, ".err");
}

}  // namespace gradwire::launch
