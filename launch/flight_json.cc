// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/flight_json.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gradwire/base/dtype.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_recorder.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

using nlohmann::json;
using observe::CallRow;
using observe::GroupTable;
using observe::NoteRow;
using observe::ProcessView;
using observe::RankTable;

json to_json(const ProcessView& view) {
  return {{"seen", view.seen},
          {"state", std::string(1, view.state)},
          {"busy", view.busy},
          {"system_call", view.system_call},
          {"has_ended", view.has_ended},
          {"by_signal", view.by_signal},
          {"code", view.code},
          {"order", view.order},
          {"by_launcher", view.by_launcher},
          {"out_of_memory", view.out_of_memory},
          {"last_lines", view.last_lines}};
}

ProcessView process_from(const json& line) {
  ProcessView view;
  view.seen = line.at("seen");
  const std::string state = line.at("state");
  if (!state.empty()) view.state = state.front();
  view.busy = line.at("busy");
  view.system_call = line.at("system_call");
  view.has_ended = line.at("has_ended");
  view.by_signal = line.at("by_signal");
  view.code = line.at("code");
  view.order = line.at("order");
  view.by_launcher = line.at("by_launcher");
  view.out_of_memory = line.at("out_of_memory");
  view.last_lines = line.at("last_lines").get<std::vector<std::string>>();
  return view;
}

json to_json(const CallRow& call, const std::string& group) {
  const bool known = call.dtype < kDTypeCount;
  return {{"type", "call"},
          {"group", group},
          {"ticket", call.ticket},
          {"sequence", call.sequence},
          {"refused", call.refused},
          {"operation", name_of(call.kind)},
          {"dtype", known ? name_of(static_cast<DType>(call.dtype)) : ""},
          {"count", call.count},
          {"bytes", call.bytes},
          {"root", call.root},
          {"iteration", call.tag >> 32},
          {"bucket", call.tag >> 16 & 0xffff},
          {"stage", call.tag >> 8 & 0xff},
          {"hook", call.tag & 0xff},
          {"message_tag", call.message_tag},
          {"called", call.called},
          {"started", call.started},
          {"ended", call.ended},
          {"outcome", name_of(call.outcome)},
          {"peers", call.peers},
          {"thread", call.thread},
          {"line", call.place.line},
          {"module", call.place.module},
          {"offset", call.place.offset},
          {"function", call.place.function},
          {"waited", name_of(call.waited)},
          {"wait_line", describe(call.wait_place)}};
}

CallRow call_from(const json& line) {
  CallRow call;
  call.ticket = line.at("ticket");
  call.sequence = line.at("sequence");
  call.refused = line.value("refused", std::uint64_t{0});  // the first files of this version lack the field
  call.kind = observe::call_kind_from_name(line.at("operation").get<std::string>());
  const std::string dtype = line.at("dtype");
  if (!dtype.empty()) call.dtype = static_cast<std::uint8_t>(dtype_from_name(dtype));
  call.count = line.at("count");
  call.bytes = line.at("bytes");
  call.root = line.at("root");
  call.tag = line.at("iteration").get<std::uint64_t>() << 32 | line.at("bucket").get<std::uint64_t>() << 16 |
             line.at("stage").get<std::uint64_t>() << 8 | line.at("hook").get<std::uint64_t>();
  call.message_tag = line.value("message_tag", -1);  // the first files lack the field
  call.called = line.at("called");
  call.started = line.at("started");
  call.ended = line.at("ended");
  call.outcome = observe::outcome_from_name(line.at("outcome").get<std::string>());
  call.peers = line.at("peers");
  call.thread = line.at("thread");
  call.place = {line.at("module"), line.at("offset"), line.at("function"), line.at("line")};
  call.waited = observe::waited_from_name(line.value("waited", ""));  // the first files lack this field and the next
  call.wait_place.line = line.value("wait_line", "");
  return call;
}

RankTable rank_from(const json& line) {
  if (line.at("version").get<int>() != kFlightLines)
    throw LaunchError(kUsageExit,
                      concat("the lines are of version ", line.at("version").get<int>(), ", not ", kFlightLines));
  RankTable table;
  table.rank = line.at("rank");
  table.world = line.at("world");
  // The first files of this version lack the field, as some others do, and then have the id of the job in its place.
  table.run = line.value("run", line.value("job", ""));
  table.pid = line.at("pid");
  table.started = line.value("started", std::int64_t{0});
  table.wall_offset = line.at("wall_offset");
  table.lost_calls = line.at("lost_calls");
  table.lost_groups = line.at("lost_groups");
  table.process = process_from(line.at("process"));
  return table;
}

void add_line(RankTable& table, const json& line) {
  const std::string type = line.at("type");
  if (type == "rank") {
    table = rank_from(line);
  } else if (type == "group") {
    table.groups.push_back({line.at("path"),
                            line.at("backend"),
                            line.at("name"),
                            line.at("rank"),
                            line.at("size"),
                            line.at("closed"),
                            line.at("next_ticket"),
                            {}});
  } else if (type == "call") {
    // The lines of a group's calls follow the line of the group.
    if (table.groups.empty() || table.groups.back().path != line.at("group").get<std::string>())
      throw LaunchError(kUsageExit, "a call without its group");
    table.groups.back().calls.push_back(call_from(line));
  } else if (type == "note") {
    table.notes.push_back(
        {static_cast<observe::NoteKind>(line.at("kind").get<int>()), line.at("time"), line.at("text")});
  }
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_table(const std::string& path, const RankTable& table) {
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << flight_lines(table);
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0)
    throw LaunchError(kLaunchFailedExit, concat("cannot write '", path, "': ", std::strerror(errno)));
}

}  // namespace

std::string flight_lines(const RankTable& table) {
  std::string text;
  // What a program passes as a name need not be UTF-8.
  const auto add = [&](const json& line) { text += line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; };
  add({{"type", "rank"},
       {"version", kFlightLines},
       {"rank", table.rank},
       {"world", table.world},
       {"run", table.run},
       {"pid", table.pid},
       {"started", table.started},
       {"wall_offset", table.wall_offset},
       {"lost_calls", table.lost_calls},
       {"lost_groups", table.lost_groups},
       {"process", to_json(table.process)}});
  for (const GroupTable& group : table.groups) {
    add({{"type", "group"},
         {"path", group.path},
         {"backend", group.backend},
         {"name", group.name},
         {"rank", group.rank},
         {"size", group.size},
         {"closed", group.closed},
         {"next_ticket", group.next_ticket}});
    for (const CallRow& call : group.calls) add(to_json(call, group.path));
  }
  for (const NoteRow& note : table.notes)
    add({{"type", "note"}, {"kind", static_cast<int>(note.kind)}, {"time", note.time}, {"text", note.text}});
  return text;
}

std::string diagnosis_line(const observe::Diagnosis& diagnosis) {
  json line = {{"fault", name_of(diagnosis.fault)},
               {"culprits", diagnosis.culprits},
               {"certain", diagnosis.certain},
               {"words", diagnosis.words},
               {"likely_cause", diagnosis.likely_cause}};
  if (diagnosis.call) line["call"] = to_json(*diagnosis.call, diagnosis.group);
  if (diagnosis.their_call) line["their_call"] = to_json(*diagnosis.their_call, diagnosis.their_group);
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

RankTable read_flight_lines(const std::string& text, const std::string& source) {
  RankTable table;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    try {
      const json parsed = json::parse(line);
      if (number == 1 && parsed.at("type") != "rank") throw LaunchError(kUsageExit, "the first line is not a rank's");
      add_line(table, parsed);
    } catch (const json::parse_error&) {
      throw LaunchError(kUsageExit, concat(source, ", line ", number, ": cut off, or no line of a flight recorder"));
    } catch (const std::exception& error) {
      throw LaunchError(kUsageExit,
                        concat(source, ", line ", number, ": no record of a flight recorder: ", error.what()));
    }
  }
  if (number == 0) throw LaunchError(kUsageExit, concat(source, " is empty"));
  return table;
}

void write_flight_folder(const std::string& folder, const std::vector<RankTable>& tables,
                         const std::vector<RankTable>& earlier) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (const RankTable& table : tables) write_table(concat(folder, "/rank-", table.rank, ".jsonl"), table);
  for (const RankTable& table : earlier)
    write_table(concat(folder, "/earlier-rank-", table.rank, "-pid-", table.pid, ".jsonl"), table);
}

std::vector<RankTable> read_flight_folder(const std::string& folder, std::vector<std::string>& left_out) {
  std::vector<RankTable> tables;
  std::filesystem::file_time_type newest;
  int world = -1;  // of the newest, as the next
  std::string run;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file()) continue;
    const bool has_lines = name.starts_with("rank-") && name.ends_with(".jsonl");
    // A checkpoint of the job, say, or a file that its writer has renamed since.
    std::error_code gone;
    if (!has_lines && entry.file_size(gone) > observe::flight_file_bytes()) continue;
    const std::string text = read_file(entry.path());
    if (has_lines) {
      try {
        tables.push_back(read_flight_lines(text, entry.path().string()));
      } catch (const LaunchError& damaged) {
        left_out.push_back(damaged.what());
        continue;
      }
    } else {
      // Aligned as the records are.
      std::vector<std::uint64_t> words(text.size() / sizeof(std::uint64_t));
      std::memcpy(words.data(), text.data(), words.size() * sizeof(std::uint64_t));
      auto table = observe::read_flight_memory(std::as_bytes(std::span(words)));
      if (!table) continue;
      tables.push_back(*std::move(table));
    }
    if (const auto written = entry.last_write_time(gone); tables.size() == 1 || written > newest) {
      newest = written;
      world = tables.back().world;
      run = tables.back().run;
    }
  }
  if (error) throw LaunchError(kUsageExit, concat("cannot read the folder '", folder, "': ", error.message()));
  if (tables.empty() && !left_out.empty()) throw LaunchError(kUsageExit, join(left_out, "; "));
  if (tables.empty())
    throw LaunchError(kUsageExit, concat("the folder '", folder, "' holds no records of a flight recorder"));
  // The folder may hold records of an earlier job with more ranks. Launchers of one elastic job know different numbers.
  std::erase_if(tables, [&](const RankTable& table) {
    return world > 0 && table.rank >= world && (run.empty() || table.run != run);
  });
  std::sort(tables.begin(), tables.end(), [](const RankTable& a, const RankTable& b) { return a.rank < b.rank; });
  return tables;
}

}  // namespace gradwire::launch
