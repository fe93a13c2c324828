// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/records.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/stored_number.h"

namespace gradwire::membership {
namespace {

using Fields = std::vector<std::string>;

std::string clean(std::string field) {
  std::replace_if(
      field.begin(), field.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return field;
}

Fields split(const std::string& text) {
  Fields fields;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\t', begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

[[noreturn]] void refuse(const std::string& text) {
  throw StoreError(concat("the store of an elastic job holds '", text,
                          "', which no gradwire wrote; does another program use the same store?"));
}

std::int64_t number(const Fields& fields, std::size_t index, const std::string& text) {
  std::int64_t value = 0;
  if (index >= fields.size()) refuse(text);
  const std::string& field = fields[index];
  const auto [rest, problem] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (problem != std::errc() || rest != field.data() + field.size() || value < 0) refuse(text);
  return value;
}

struct Writer {
  std::string operator()(const Joined& e) const {
    return concat("joined\t", clean(e.identity), "\t", clean(e.version), "\t", clean(e.program), "\t", clean(e.host),
                  "\t", e.follows ? "follows" : "", "\t", clean(e.machine));
  }
  std::string operator()(const CaughtUp& e) const { return concat("caught up\t", e.member, "\t", e.epoch); }
  std::string operator()(const CannotFollow& e) const { return concat("cannot follow\t", e.member, "\t", e.epoch); }
  std::string operator()(const Ready& e) const { return concat("ready\t", e.member, "\t", e.epoch); }
  std::string operator()(const Leaving& e) const { return concat("leaving\t", e.member); }
  std::string operator()(const Left& e) const { return concat("left\t", e.member); }
  std::string operator()(const Began& e) const { return concat("began\t", e.member, "\t", e.epoch, "\t", e.step); }
  std::string operator()(const Reached& e) const { return concat("reached\t", e.member, "\t", e.epoch, "\t", e.step); }
  std::string operator()(const Done& e) const { return concat("done\t", e.member); }
  std::string operator()(const StateLost& e) const { return concat("state lost\t", e.member, "\t", e.epoch); }
  std::string operator()(const Died& e) const {
    return concat("died\t", e.member, "\t", clean(e.how), e.host.empty() ? "" : "\t", clean(e.host));
  }
  std::string operator()(const Hurry&) const { return "hurry"; }
  std::string operator()(const StoreRestored&) const { return "restored"; }
  std::string operator()(const Unreachable& e) const {
    return concat("unreachable\t", e.member, "\t", e.epoch, "\t", e.peer);
  }
  std::string operator()(const Slow& e) const {
    return concat("slow\t", e.member, "\t", e.epoch, "\t", e.step, "\t", e.own_us, "\t", e.others_us, "\t",
                  e.drop ? 1 : 0, "\t", clean(e.host));
  }
};

}  // namespace

std::string to_text(const Event& event) { return std::visit(Writer(), event); }

Event event_of(const std::string& text) {
  const Fields fields = split(text);
  const std::string& kind = fields.front();
  const auto member = [&] { return number(fields, 1, text); };
  if (kind == "joined" && fields.size() == 7 && (fields[5].empty() || fields[5] == "follows"))
    return Joined{fields[1], fields[2], fields[3], fields[4], !fields[5].empty(), fields[6]};
  // From before the machine was told.
  if (kind == "joined" && fields.size() == 5) return Joined{fields[1], fields[2], fields[3], fields[4]};
  if (kind == "joined" && fields.size() == 6 && fields[5] == "follows")
    return Joined{fields[1], fields[2], fields[3], fields[4], true};
  // From before jobs had several hosts.
  if (kind == "joined" && fields.size() == 4) return Joined{fields[1], fields[2], fields[3]};
  if (kind == "ready") return Ready{member(), number(fields, 2, text)};
  if (kind == "caught up") return CaughtUp{member(), number(fields, 2, text)};
  if (kind == "cannot follow") return CannotFollow{member(), number(fields, 2, text)};
  if (kind == "leaving") return Leaving{member()};
  if (kind == "left") return Left{member()};
  if (kind == "began") return Began{member(), number(fields, 2, text), number(fields, 3, text)};
  if (kind == "reached") return Reached{member(), number(fields, 2, text), number(fields, 3, text)};
  if (kind == "done") return Done{member()};
  if (kind == "state lost") return StateLost{member(), number(fields, 2, text)};
  if (kind == "died" && fields.size() == 3) return Died{member(), fields[2]};
  if (kind == "died" && fields.size() == 4) return Died{member(), fields[2], fields[3]};
  if (kind == "hurry") return Hurry{};
  if (kind == "restored") return StoreRestored{};
  if (kind == "unreachable") return Unreachable{member(), number(fields, 2, text), number(fields, 3, text)};
  if (kind == "slow" && fields.size() == 8) {
    return Slow{member(),
                number(fields, 2, text),
                number(fields, 3, text),
                number(fields, 4, text),
                number(fields, 5, text),
                number(fields, 6, text) != 0,
                fields[7]};
  }
  refuse(text);
}

std::optional<Event> known_event_of(const std::string& text) {
  try {
    return event_of(text);
  } catch (const StoreError&) {
    return std::nullopt;
  }
}

std::string to_text(const EpochMember& member) {
  return concat(member.number, "\t", clean(member.identity), "\t", clean(member.host));
}

EpochMember epoch_member_of(const std::string& text) {
  const Fields fields = split(text);
  if (fields.size() != 3) refuse(text);
  return {number(fields, 0, text), fields[1], fields[2]};
}

std::string to_text(const Epoch& epoch) {
  if (epoch.finished) return concat("finished\t", epoch.number);
  if (epoch.lost) return concat("lost\t", epoch.number);
  std::string text = concat(epoch.played ? "played" : "epoch", "\t", epoch.number, "\t", epoch.fresh ? 1 : 0);
  for (const EpochMember& member : epoch.members) text += concat("\t", to_text(member));
  return text;
}

Epoch epoch_of(const std::string& text) {
  const Fields fields = split(text);
  Epoch epoch;
  epoch.number = number(fields, 1, text);
  epoch.finished = fields.front() == "finished";
  epoch.lost = fields.front() == "lost";
  if (epoch.finished || epoch.lost) return epoch;
  epoch.played = fields.front() == "played";
  if ((fields.front() != "epoch" && !epoch.played) || fields.size() < 6 || fields.size() % 3 != 0) refuse(text);
  epoch.fresh = number(fields, 2, text) != 0;
  for (std::size_t i = 3; i < fields.size(); i += 3)
    epoch.members.push_back({number(fields, i, text), fields[i + 1], fields[i + 2]});
  return epoch;
}

std::string event_key(std::int64_t number) { return concat("event/", number); }
std::string admitted_key(std::int64_t member) { return concat("admitted/", member); }
std::string refused_key(std::int64_t member) { return concat("refused/", member); }
std::string epoch_key(std::int64_t epoch) { return concat("epoch/", epoch); }
std::string change_key(std::int64_t epoch) { return concat("epoch/", epoch, "/change"); }
std::string stop_key(std::int64_t epoch) { return concat("epoch/", epoch, "/stop"); }
std::string lost_key(std::int64_t epoch) { return concat("epoch/", epoch, "/lost"); }
std::string patience_key(std::int64_t epoch) { return concat("epoch/", epoch, "/patience"); }
std::string patience_text(Milliseconds patience, const std::string& name) {
  return concat(patience.count(), " ", name);
}
Milliseconds patience_of(const std::string& text) {
  return Milliseconds(stored_number("patience", text.substr(0, text.find(' '))));
}
std::string follower_key(std::int64_t epoch, std::int64_t n) { return concat("epoch/", epoch, "/follower/", n); }
std::string followed_key(std::int64_t member) { return concat("follows/", member); }
std::string follow_ready_key(std::int64_t member, std::int64_t ready) {
  return concat("follows/", member, "/ready/", ready);
}
std::string follow_from_key(std::int64_t member) { return concat("follows/", member, "/from"); }
std::string dropped_key(std::int64_t member) { return concat("dropped/", member); }
std::string beat_key(const std::string& host) { return concat("host/", host, "/beat"); }
std::string bye_key(const std::string& host) { return concat("host/", host, "/bye"); }

}  // namespace gradwire::membership
