// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/wait_report.h"

#include "gradwire/base/log.h"
#include "gradwire/base/notice.h"
#include "gradwire/base/strings.h"

namespace gradwire {

void WaitReport::look(const std::string& who, const std::function<Missing()>& missing) {
  const auto waited = Deadline::Clock::now() - began_;
  const bool info_due = log::enabled(log::Level::info) && waited >= periods_.info * (infos_ + 1);
  const bool notice_due = !noticed_ && waited >= periods_.notice;
  if (!info_due && !notice_due) return;
  const Missing others = missing();
  if (others.names.empty()) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited).count();
  const std::string text = concat(who, " has waited ", seconds, " s for ", others.names);
  if (info_due) {
    infos_ = waited / periods_.info;
    log::info(text);
  }
  if (!notice_due) return;
  noticed_ = true;
  if (others.gives_notice && !info_due) {
    log::notice(concat(text, "; GRADWIRE_LOG=info says so every ", periods_.info.count() / 1000, " s"));
  }
}

}  // namespace gradwire
