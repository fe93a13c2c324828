// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/attempt_ends.h"

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {

AttemptEnds::AttemptEnds(Meeting& meeting, const Plan& plan, int round, Milliseconds silence)
    : meeting_(meeting),
      plan_(plan),
      round_(round),
      silence_(silence),
      beats_(meeting.beats(plan)),
      heard_(plan.nodes.size(), Deadline::Clock::now()),
      ends_(plan.nodes.size()) {}

void AttemptEnds::look() {
  const auto beats = meeting_.beats(plan_);
  for (std::size_t node = 0; node < ends_.size(); ++node) {
    // One that ended well may still be interrupted.
    if (ends_[node] && ends_[node]->kind != NodeEnd::Kind::good) continue;
    look_at(static_cast<int>(node), beats[node]);
  }
}

void AttemptEnds::look_at(int node, std::int64_t beat) {
  const auto now = Deadline::Clock::now();
  const std::string end_key = Meeting::key("end", round_, node);
  if (meeting_.has(end_key)) {
    ends_[node] = decode_end(meeting_.get(end_key));
  } else if (beat != beats_[node] || node == 0) {
    beats_[node] = beat;
    heard_[node] = now;
  } else if (now - heard_[node] > silence_) {
    ends_[node] = NodeEnd{NodeEnd::Kind::vanished, kHostLostExit,
                          concat(plan_.name_of(node), " has not been heard of for ", seconds_text(silence_),
                                 ": the host, its network or its gradwire-run is gone")};
    gone_.push_back(node);
    meeting_.put(end_key, encode(*ends_[node]));
    meeting_.put(Meeting::key("over", round_), "1");
  }
}

std::optional<Verdict> AttemptEnds::verdict() const {
  std::vector<NodeEnd> ends;
  for (const auto& end : ends_) {
    if (!end) return std::nullopt;
    ends.push_back(*end);
  }
  return judge(plan_, ends);
}

}  // namespace gradwire::launch
