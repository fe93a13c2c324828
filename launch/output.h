// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Collects the output of all ranks: as prefixed lines on the launcher's own stdout and stderr, or in files, two for
// each rank.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/os_handles.h"
#include "launch/lines.h"
#include "launch/options.h"
#include "launch/output_sink.h"

namespace gradwire::launch {

// The stdout and stderr with which a rank is started.
struct RankOutput {
  UniqueFd out;
  UniqueFd err;
};

// The names of the ranks in the output.
struct OutputNames {
  int first_rank = 0;   // the number that rank 0 has in the job
  int world = 1;        // ranks in the job; all prefixes have one width
  bool bare = false;    // no prefixes; lines are still whole
  bool append = false;  // append to the files of --log-dir instead of overwriting them
};

// Takes out of a line of a rank what is not for the user, and returns the rest; nothing where no line is left.
using LineFilter = std::function<std::optional<std::string_view>(std::string_view line)>;

// The output of this host's ranks, which are numbered from 0 here.
class Output {
 public:
  // `filter`: null, or for every line of stdout and stderr before anything else sees it; not with --no-prefix and
  // --log-dir. Throws LaunchError when --log-dir names a folder that cannot be made or written to.
  Output(const Options& options, const OutputNames& names, LineFilter filter = nullptr);

  // Opens the output of one rank: pipes to this object, or the rank's files. Ranks are opened in order; a rank may be
  // opened again for a process that takes its place, whose output follows that of the process before. Throws
  // LaunchError.
  RankOutput open(int rank);

  // Appends the descriptors to poll; pass the same entries to handle(), with their results.
  void append_interest(std::vector<pollfd>& polled) const;
  void handle(const pollfd* results);

  // Reads all bytes that are in the pipes now, without waiting, and emits unfinished lines. For the end of the job.
  void drain();
  // Whether everything has been written to the launcher's own stdout and stderr.
  bool flushed() const noexcept { return out_.empty() && err_.empty(); }
  // Writes a text of the launcher to stderr; does nothing with an empty one.
  void say(const std::string& text);
  // Writes whole lines to stderr that are worth something now or never: where stderr has not taken what came before,
  // they are dropped.
  void tell(const std::string& lines);

  // Whether show() can draw: stderr is a terminal that can erase, and lines are whole.
  bool can_show() const;
  // Draws `block`, which consists of whole lines, below all output, in the place of the block before.
  void show(const std::string& block);
  // The block that was drawn last stays, and later output comes below.
  void keep_shown();

  // The last lines of a rank's stderr. Complete after drain().
  std::vector<std::string> last_error_lines(int rank) const;
  // The same of the process that the rank has now, also after another one has taken its place. The lines are complete
  // after drain(); this object outlives the function.
  std::function<std::vector<std::string>()> error_lines_of_process(int rank) const;
  // The file of a rank's stderr; empty without --log-dir.
  std::string error_file(int rank) const;

 private:
  struct Stream {
    UniqueFd fd;
    OutputSink* sink;
    std::string prefix;
    LineSplitter splitter;
    std::shared_ptr<LastLines> last;  // of the process; null for stdout
  };

  void add_stream(int rank, UniqueFd fd, OutputSink& sink, std::shared_ptr<LastLines> last);
  // Reads once; false when there are no more bytes now, or at all.
  bool read_some(Stream& stream);
  void emit(Stream& stream, std::string_view line);
  void end_progress(Stream& stream);
  void tell_of_loss();
  void erase_shown();
  void draw_shown();

  const Options& options_;
  const OutputNames names_;
  const LineFilter filter_;
  OutputSink out_;
  OutputSink err_;
  std::vector<Stream> streams_;
  std::vector<std::shared_ptr<LastLines>> last_;  // one a rank, of its process of now
  std::vector<std::uintmax_t> earlier_;           // bytes of a rank's file of errors that earlier processes wrote
  int opened_ = 0;                                // ranks that have files
  bool redrawing_ = false;                        // the terminal's last line is a progress line
  std::string block_;                             // of show()
  bool drawn_ = false;                            // it is on the terminal, as the last thing
};

// Whether prefixes are coloured on an output that is a terminal, or is none.
bool use_color(ColorMode color, bool is_terminal);

// "[rank 3] ", padded so that the prefixes of all ranks are of one width; coloured if asked.
std::string prefix_of_rank(int rank, int ranks, bool colored);

}  // namespace gradwire::launch
