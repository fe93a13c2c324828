// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests two wires in one process, and a stranger that speaks UCX and does not know their tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "gradwire/backend/ucx/active_message_internal.h"
#include "gradwire/backend/ucx/ucx_wire_test_support.h"

namespace gradwire::ucx {
namespace {

using messages::Frame;
using messages::FrameKind;
constexpr Milliseconds kSilence{60'000};

class UcxWireTest : public ::testing::Test {
 protected:
  UcxWireTest() {
    auto first = std::make_unique<Worker>("lo");
    auto second = std::make_unique<Worker>("lo");
    addresses_ = {first->address(), second->address()};
    wires_[0] = std::make_unique<UcxWire>(std::move(first), options(0));
    wires_[1] = std::make_unique<UcxWire>(std::move(second), options(1));
    until([this] { return wires_[0]->unheard().empty() && wires_[1]->unheard().empty(); });
  }
  UcxWire::Options options(int rank) const {
    const int peer = 1 - rank;
    UcxWire::Options made{.rank = rank, .peers = std::vector<PeerOptions>(2), .silence = kSilence};
    made.peers[static_cast<std::size_t>(peer)] = {addresses_[static_cast<std::size_t>(peer)], token(rank), token(peer)};
    return made;
  }
  void move() {
    wires_[0]->read(keepers_[0]);
    wires_[1]->read(keepers_[1]);
  }
  template <class Condition>
  void until(Condition&& condition) {
    const Deadline guard = Deadline::after(std::chrono::seconds(60));
    bool met = condition();
    for (; !met && !guard.expired(); met = condition()) move();
    ASSERT_TRUE(met);
  }
  void write(int from, const Frame& frame, std::span<const std::byte> payload) {
    until([&] { return wires_[static_cast<std::size_t>(from)]->write(1 - from, frame, payload); });
  }

  std::array<std::string, 2> addresses_;
  std::array<std::unique_ptr<UcxWire>, 2> wires_;
  std::array<Keeper, 2> keepers_;
};

// The longest frames go by copy, as UCX takes none of that length at once; all others from the writer's buffer, which
// is written over as soon as a write returns.
TEST_F(UcxWireTest, FramesOfEverySizeArriveWholeAndInOrder) {
  const std::size_t piece = wires_[0]->max_payload();
  constexpr std::size_t kLongest = 300'000;
  const std::vector<std::size_t> sizes{0,      1,         63,    4000,   4096,     8191,    8192, 9000,
                                       30'000, piece - 1, piece, 67'000, kLongest, 130'000, 1};
  std::vector<std::byte> content(kLongest);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 131 >> 3);
  std::vector<std::byte> buffer(content.size());
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    for (const std::size_t bytes : sizes) {
      std::copy_n(content.begin(), bytes, buffer.begin());
      write(0, {FrameKind::message, static_cast<std::uint32_t>(round), 9, 0, 0, bytes}, {buffer.data(), bytes});
      std::fill(buffer.begin(), buffer.end(), std::byte{0xee});
    }
  }
  until([&] { return keepers_[1].kept.size() == kRounds * sizes.size(); });
  for (std::size_t i = 0; i < keepers_[1].kept.size(); ++i) {
    const Keeper::Kept& kept = keepers_[1].kept[i];
    EXPECT_EQ(kept.peer, 0);
    EXPECT_EQ(kept.frame.tag, i / sizes.size());
    ASSERT_EQ(kept.payload.size(), sizes[i % sizes.size()]) << "frame " << i;
    EXPECT_TRUE(std::equal(kept.payload.begin(), kept.payload.end(), content.begin())) << "frame " << i;
  }
}

TEST_F(UcxWireTest, FramesThatTheSinkRefusesComeAgainInTheirOrder) {
  keepers_[1].refuses = true;
  for (std::uint32_t tag = 0; tag < 6; ++tag) write(0, {FrameKind::message, tag, 9, 0, 0, 0}, {});
  for (int i = 0; i < 1000; ++i) move();
  EXPECT_TRUE(keepers_[1].kept.empty());
  keepers_[1].refuses = false;
  until([&] { return keepers_[1].kept.size() == 6; });
  for (std::uint32_t tag = 0; tag < 6; ++tag) EXPECT_EQ(keepers_[1].kept[tag].frame.tag, tag);
}

TEST_F(UcxWireTest, ARankThatLeavesIsNotLostAndWhatItWroteIsThere) {
  for (std::uint32_t tag = 0; tag < 5; ++tag) write(0, {FrameKind::message, tag, 9, 0, 0, 0}, {});
  wires_[0]->say_goodbye();
  EXPECT_FALSE(wires_[0]->may_go());
  until([&] { return wires_[0]->may_go(); });
  wires_[0]->close();
  until([&] { return keepers_[1].kept.size() == 5 && wires_[1]->absence(0).has_value(); });
  EXPECT_TRUE(wires_[1]->absence(0)->left);
  // It may leave, too: nobody is left to be told.
  wires_[1]->say_goodbye();
  EXPECT_TRUE(wires_[1]->may_go());
}

TEST_F(UcxWireTest, ARankThatIsGoneIsLostAndTakesFramesNoMore) {
  wires_[0]->close();
  until([&] { return wires_[1]->absence(0).has_value(); });
  EXPECT_FALSE(wires_[1]->absence(0)->left);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(wires_[1]->write(0, {FrameKind::message, 0, 9, 0, 0, 0}, {}));
  EXPECT_TRUE(wires_[1]->may_go());
}

TEST_F(UcxWireTest, TheSleepEndsWithAFrameAndWithTheBell) {
  // Without frames and bell the sleep would take the guard's time.
  constexpr std::chrono::microseconds kLong{60'000'000};
  const auto start = Deadline::Clock::now();
  while (wires_[0]->read(keepers_[0]) || wires_[1]->read(keepers_[1])) {
  }
  write(0, {FrameKind::message, 1, 9, 0, 0, 0}, {});
  while (keepers_[1].kept.empty()) {
    wires_[1]->sleep(wires_[1]->bell(), kLong);
    wires_[1]->read(keepers_[1]);
  }
  const std::uint32_t seen = wires_[1]->bell();
  wires_[1]->wake();
  wires_[1]->sleep(seen, kLong);
  EXPECT_LT(Deadline::Clock::now() - start, kLong / 2) << "a sleep did not end";
}

// Sends active messages to a wire without being its peer.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : Stranger() { connect(address); }
  // Connects later.
  Stranger() : worker_("lo") {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kActiveMessage;
    handler.cb = &Stranger::on_active_message;
    handler.arg = this;
    require_ok(ucp_worker_set_am_recv_handler(worker_.get(), &handler), "ucp_worker_set_am_recv_handler");
  }
  void connect(const std::string& address) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    require_ok(ucp_ep_create(worker_.get(), &params, &endpoint_), "ucp_ep_create");
  }
  ~Stranger() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    await(ucp_ep_close_nbx(endpoint_, &param), [] {});
  }
  std::string address() const { return worker_.address(); }
  // The numbers of the notes that have come, in the order in which they came.
  const std::vector<std::uint64_t>& numbers() {
    while (ucp_worker_progress(worker_.get()) != 0) {
    }
    return numbers_;
  }
  // Returns when UCX has passed the bytes on. `meanwhile` moves the other side.
  template <class Meanwhile>
  void send(const std::vector<std::byte>& header, const std::vector<std::byte>& bytes, Meanwhile&& meanwhile) {
    ucp_request_param_t param{};
    await(ucp_am_send_nbx(endpoint_, kActiveMessage, header.data(), header.size(), bytes.data(), bytes.size(), &param),
          meanwhile);
    await(ucp_ep_flush_nbx(endpoint_, &param), meanwhile);
  }

 private:
  template <class Meanwhile>
  void await(void* request, Meanwhile&& meanwhile) {
    if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_.get());
      meanwhile();
    }
    ucp_request_free(request);
  }
  static ucs_status_t on_active_message(void* self, const void* header, std::size_t, void*, std::size_t,
                                        const ucp_am_recv_param_t*) {
    std::uint64_t number = 0;
    std::memcpy(&number, static_cast<const std::byte*>(header) + sizeof(Token), sizeof(number));
    static_cast<Stranger*>(self)->numbers_.push_back(number);
    return UCS_OK;
  }

  const Worker worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<std::uint64_t> numbers_;
};

// A frame as it would be, but for the token and the number, which are zero: an envelope is token, number, source, note,
// frame.
std::vector<std::byte> forge(std::uint32_t source) {
  std::vector<std::byte> forged(sizeof(Token) + 16 + sizeof(Frame));
  const std::uint32_t note = 1;
  const Frame frame{FrameKind::message, 66, 9, 0, 0, 0};
  std::memcpy(forged.data() + sizeof(Token) + 8, &source, sizeof(source));
  std::memcpy(forged.data() + sizeof(Token) + 12, &note, sizeof(note));
  std::memcpy(forged.data() + sizeof(Token) + 16, &frame, sizeof(frame));
  return forged;
}

TEST_F(UcxWireTest, AStrangerWhoSpeaksUcxInjectsNothing) {
  std::vector<std::byte> forged = forge(0);
  Stranger stranger(addresses_[1]);
  const auto try_token = [&](const Token& attempt, std::uint64_t number) {
    std::memcpy(forged.data(), attempt.data(), attempt.size());
    std::memcpy(forged.data() + sizeof(Token), &number, sizeof(number));
    stranger.send(forged, {}, [this] { move(); });
  };
  for (std::uint64_t number = 0; number < 8; ++number) {
    try_token(token(1), number);  // the token of the other direction
    try_token(token(77), number);
  }
  for (std::size_t bytes = 0; bytes < 100; ++bytes) {
    const std::vector<std::byte> garbage(bytes, std::byte{0xff});
    stranger.send({}, garbage, [this] { move(); });
    stranger.send(garbage, garbage, [this] { move(); });
  }
  write(0, {FrameKind::message, 1, 9, 0, 0, 0}, {});
  until([&] { return !keepers_[1].kept.empty(); });
  EXPECT_EQ(keepers_[1].kept.size(), 1U);
  EXPECT_EQ(keepers_[1].kept[0].frame.tag, 1U);
  // The forged frame is one that the right token would let in: the test can fail.
  std::uint64_t next = 0;
  for (; keepers_[1].kept.size() == 1 && next < 100; ++next) try_token(token(0), next);
  ASSERT_EQ(keepers_[1].kept.size(), 2U);
  EXPECT_EQ(keepers_[1].kept[1].frame.tag, 66U);
}

// A wire drops what comes twice, so only another program sees it.
TEST(UcxWire, EveryNoteGoesOnce) {
  Stranger peer;
  auto worker = std::make_unique<Worker>("lo");
  const std::string address = worker->address();
  UcxWire::Options options{.rank = 0, .peers = std::vector<PeerOptions>(2), .silence = kSilence};
  options.peers[1] = {peer.address(), token(0), Token{}};
  UcxWire wire(std::move(worker), std::move(options));
  Keeper keeper;
  peer.connect(address);
  peer.send(forge(1), {}, [&] { wire.read(keeper); });
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  // The longest goes by copy.
  const std::vector<std::byte> longest(300'000);
  constexpr std::uint64_t kFrames = 20;
  for (std::uint64_t written = 0; written < kFrames && !guard.expired();) {
    const std::size_t bytes = written % 2 == 0 ? 0 : longest.size();
    const Frame frame{FrameKind::message, 1, 9, 0, 0, bytes};
    if (wire.write(1, frame, {longest.data(), bytes})) ++written;
    wire.read(keeper);
    peer.numbers();
  }
  constexpr std::uint64_t kWords = 2;  // before frames
  while (peer.numbers().size() < kWords + kFrames && !guard.expired()) wire.read(keeper);
  std::vector<std::uint64_t> all(kWords + kFrames);
  std::iota(all.begin(), all.end(), 0U);
  EXPECT_EQ(peer.numbers(), all);
}

// Of many ranks only partners know each other's tokens from the start. Nobody is let in as one of the others meanwhile.
TEST_F(UcxWireTest, AStrangerInjectsNothingAsARankThatIsNotYetKnown) {
  auto worker = std::make_unique<Worker>("lo");
  const std::string address = worker->address();
  UcxWire::Options options{.rank = 0, .peers = std::vector<PeerOptions>(3), .partners = {1}, .silence = kSilence};
  options.peers[1] = {addresses_[1], token(0), token(1)};
  UcxWire wire(std::move(worker), std::move(options));
  Keeper keeper;
  Stranger stranger(address);
  stranger.send(forge(2), {}, [&] { wire.read(keeper); });
  for (int i = 0; i < 1000; ++i) wire.read(keeper);
  EXPECT_TRUE(keeper.kept.empty());
  EXPECT_FALSE(wire.is_joined(2));
  // Once the rank is known, only its token counts: the test can fail.
  wire.introduce(2, {address, token(3), Token{}});
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  while (keeper.kept.empty() && !guard.expired()) stranger.send(forge(2), {}, [&] { wire.read(keeper); });
  ASSERT_FALSE(keeper.kept.empty());
  EXPECT_EQ(keeper.kept[0].peer, 2);
}

}  // namespace
}  // namespace gradwire::ucx
