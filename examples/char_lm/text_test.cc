// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/text.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>

#include "examples/char_lm/errors.h"

namespace char_lm::text_test {
namespace {

namespace fs = std::filesystem;

class TextTest : public testing::Test {
 protected:
  TextTest() {
    std::string pattern = testing::TempDir() + "/char_lm_text_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~TextTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  fs::path folder_;
};

std::string complaint(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << text << "\" lacks \"" << part << "\"";
}

TEST_F(TextTest, FileIsReadByteByByte) {
  const std::string content("a\0b\r\n\xff", 6);
  const Text text = load_file(write("any", content));
  EXPECT_EQ(text.bytes, content);
  EXPECT_EQ(text.source, path("any"));
}

TEST_F(TextTest, BadFilesAreRefusedByName) {
  expect_contains(complaint([&] { load_file(path("none")); }), path("none") + " does not exist");
  expect_contains(complaint([&] { load_file(write("void", "")); }), path("void") + " is empty");
  expect_contains(complaint([&] { load_file(folder_.string()); }), "is a folder");
}

// The order of a folder's listing is the file system's; the text's is not.
TEST_F(TextTest, FolderIsReadInTheOrderOfNamesWithoutLinks) {
  write("b", "two ");
  write("c", "three");
  write("a", "one ");
  fs::create_symlink("c", folder_ / "A-link");
  fs::create_directory(folder_ / "aa");
  const Text text = load_folder(folder_.string());
  EXPECT_EQ(text.bytes, "one two three");
  expect_contains(text.source, "3 files of ");
}

TEST_F(TextTest, FolderWithoutTextAsksForOne) {
  expect_contains(complaint([&] { load_folder(path("none")); }), "--text FILE");
  expect_contains(complaint([&] { load_folder(folder_.string()); }), "--text FILE");
}

TEST(Vocabulary, NumbersTheBytesInOrderAndBack) {
  const std::string text("banana\n\xe9", 8);
  const Vocabulary vocabulary(text);
  EXPECT_EQ(vocabulary.bytes(), "\nabn\xe9");
  for (const char byte : text) {
    EXPECT_EQ(vocabulary.decode(vocabulary.encode(byte)), byte);
  }
  EXPECT_THROW(vocabulary.encode('z'), std::out_of_range);
}

TEST(Vocabulary, HoldsAllBytes) {
  std::string text;
  for (int value = 0; value < 256; ++value) {
    text.push_back(static_cast<char>(value));
  }
  const Vocabulary vocabulary(text);
  EXPECT_EQ(vocabulary.size(), 256);
  EXPECT_EQ(vocabulary.encode('\xff'), 255);
}

// The two parts are the text, and the second is its last tenth.
TEST(Corpus, HoldsOutTheLastTenth) {
  std::string bytes(100, 'a');
  bytes[90] = 'b';
  const Corpus corpus(Text{bytes, "test"}, 4);
  EXPECT_EQ(corpus.train().size(), 90U);
  ASSERT_EQ(corpus.held_out().size(), 10U);
  EXPECT_EQ(corpus.held_out()[0], corpus.vocabulary().encode('b'));
}

TEST(Corpus, ShortestTextIsTheOneWhoseTenthHoldsASample) {
  EXPECT_EQ(Corpus(Text{std::string(50, 'a'), "test"}, 4).held_out().size(), 5U);
  expect_contains(complaint([] { Corpus(Text{std::string(49, 'a'), "test"}, 4); }), "needs at least 50");
}

}  // namespace
}  // namespace char_lm::text_test
