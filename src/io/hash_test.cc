#include "io/hash.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "io/testing_file_system.h"

namespace deltafin {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Sha256Of(std::string_view text) {
  Sha256 sha;
  sha.Update(Bytes(text));
  return sha.HexDigest();
}

// FIPS 180-4 examples.
TEST(Sha256, KnownVectors) {
  EXPECT_EQ(Sha256Of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

// A million times "a" (FIPS 180-2, appendix B.3), in a file and in odd pieces.
TEST(Sha256, LongInput) {
  const std::string expected = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
  const std::string text(1000000, 'a');
  Sha256 sha;
  for (size_t at = 0; at < text.size(); at += 777) {
    sha.Update(Bytes(std::string_view(text).substr(at, 777)));
  }
  EXPECT_EQ(sha.HexDigest(), expected);
  MemoryFileSystem fs;
  fs.Write("a", text);
  EXPECT_EQ(Sha256OfFile(*fs.OpenForReading("a")), expected);
}

// Seed 0, as xxhsum -H3 and -H2 print them.
TEST(Xxh3, KnownVectors) {
  EXPECT_EQ(Xxh3(Bytes("")), 0x2d06800538d394c2u);
  EXPECT_EQ(Xxh3(Bytes("abc")), 0x78af5f94892f3950u);
  EXPECT_EQ(Xxh3Wide(Bytes("abc")), (Hash128{0x06b05ab6733a6185u, 0x78af5f94892f3950u}));
  EXPECT_EQ(Xxh3Wide(Bytes("")), (Hash128{0x99aa06d3014798d8u, 0x6001c324468d497fu}));
}

// More than one piece, so that the streamed form meets the one-shot form.
TEST(Xxh3, RangesOfFiles) {
  std::string text(9 << 20, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 7);
  MemoryFileSystem fs;
  fs.Write("a", text);
  const auto file = fs.OpenForReading("a");
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, text.size()},
                                      {5, (8 << 20) + 3},
                                      {17, 100},
                                      {text.size(), 0}}) {
    const std::string_view range = std::string_view(text).substr(offset, bytes);
    EXPECT_EQ(Xxh3OfRange(*file, offset, bytes), Xxh3(Bytes(range)));
  }
  EXPECT_THROW(Xxh3OfRange(*file, 1, text.size()), Error);
}

TEST(HashTest, Xxh3OfPiecesIsXxh3OfTheWhole) {
  std::vector<std::byte> bytes(10000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  Xxh3Stream stream;
  stream.Update(std::span(bytes).first(77));
  stream.Restart();
  for (size_t at = 0; at < bytes.size(); at += 1000) {
    stream.Update(std::span(bytes).subspan(at, 1000));
  }
  EXPECT_EQ(stream.Digest(), Xxh3(bytes));
}

}  // namespace
}  // namespace deltafin
