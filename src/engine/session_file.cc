#include "engine/session_file.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "io/file.h"
#include "io/write_file.h"

namespace deltafin {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr char kMagic[8] = {'D', 'F', 'S', 'E', 'S', 'S', '\r', '\n'};
constexpr uint32_t kVersion = 1;

// The first bytes of the file; what follows: tokens, logits, note, state.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t cache_format;
  uint64_t model[2];
  char spine[16];
  int64_t first_generated;
  uint64_t num_tokens;
  uint64_t num_logits;
  uint64_t note_bytes;
  uint64_t state_bytes;
  uint64_t payload_hash;
  uint64_t header_hash;  // of everything above
};
static_assert(sizeof(Header) == 104, "no padding: the bytes are hashed and written as they are");

[[noreturn]] void Corrupt(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, path + ": " + what +
                                       "; the session cannot be continued (deltafin sessions rm "
                                       "removes it)");
}

uint64_t HashOf(const Header& header) {
  return Xxh3(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_hash)));
}

// The parts in the order of the file.
template <class Content, class Visit>
void VisitParts(Content& content, Visit&& visit) {
  visit(std::span(content.tokens));
  visit(std::span(content.last_logits));
  visit(std::span(content.note));
  visit(std::span(content.state));
}

// The hash of the parts' hashes: they never lie in one piece.
uint64_t PayloadHash(const SessionContent& content) {
  std::vector<uint64_t> hashes;
  VisitParts(content, [&](auto part) { hashes.push_back(Xxh3(std::as_bytes(part))); });
  return Xxh3(std::as_bytes(std::span(hashes)));
}

Header ReadHeader(const ReadableFile& file) {
  const std::string& path = file.path();
  Header header;
  if (file.size() < sizeof(header)) Corrupt(path, "shorter than the header of a session");
  file.ReadAt(0, std::as_writable_bytes(std::span(&header, 1)));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) Corrupt(path, "is no saved session");
  if (header.version != kVersion) {
    throw Error(ErrorCode::kUnsupported,
                format("{}: saved in version {} of the format, this program knows version {}", path,
                       header.version, kVersion));
  }
  if (header.header_hash != HashOf(header)) Corrupt(path, "the header is damaged");
  // Sizes that the right hash vouches for: no overflow.
  const uint64_t expected = sizeof(header) + header.num_tokens * sizeof(TokenId) +
                            header.num_logits * sizeof(float) + header.note_bytes +
                            header.state_bytes;
  if (file.size() != expected) {
    Corrupt(path, format("expected {} bytes, got {}", expected, file.size()));
  }
  return header;
}

SessionOrigin OriginOf(const Header& header) {
  return {{header.model[0], header.model[1]},
          header.cache_format == 0 ? CacheFormat::kF32 : CacheFormat::kBf16,
          std::string(header.spine, strnlen(header.spine, sizeof(header.spine)))};
}

const char* CacheName(CacheFormat format) { return format == CacheFormat::kF32 ? "f32" : "bf16"; }

}  // namespace

void WriteSessionFile(const std::string& path, const SessionContent& content) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.cache_format = content.origin.cache_format == CacheFormat::kF32 ? 0 : 1;
  header.model[0] = content.origin.model.high;
  header.model[1] = content.origin.model.low;
  DF_CHECK(content.origin.spine.size() < sizeof(header.spine));
  std::memcpy(header.spine, content.origin.spine.data(), content.origin.spine.size());
  header.first_generated = content.first_generated;
  header.num_tokens = content.tokens.size();
  header.num_logits = content.last_logits.size();
  header.note_bytes = content.note.size();
  header.state_bytes = content.state.size();
  header.payload_hash = PayloadHash(content);
  header.header_hash = HashOf(header);
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&header, 1))};
  VisitParts(content, [&](auto part) { parts.push_back(std::as_bytes(part)); });
  WriteFileAtomically(path, parts);
}

SessionContent ReadSessionFile(const std::string& path) {
  const auto file = RealFileSystem().OpenForReading(path);
  const Header header = ReadHeader(*file);
  SessionContent content;
  content.origin = OriginOf(header);
  content.first_generated = header.first_generated;
  content.tokens.resize(header.num_tokens);
  content.last_logits.resize(header.num_logits);
  content.note.resize(header.note_bytes);
  content.state.resize(header.state_bytes);
  uint64_t at = sizeof(header);
  VisitParts(content, [&](auto part) {
    const auto bytes = std::as_writable_bytes(part);
    file->ReadAt(at, bytes);
    at += bytes.size();
  });
  if (PayloadHash(content) != header.payload_hash) Corrupt(path, "the content is damaged");
  return content;
}

SessionFileSummary ReadSessionSummary(const std::string& path) {
  const auto file = RealFileSystem().OpenForReading(path);
  const Header header = ReadHeader(*file);
  return {OriginOf(header), static_cast<int64_t>(header.num_tokens), file->size()};
}

void CheckSameOrigin(const std::string& path, const SessionOrigin& saved,
                     const SessionOrigin& wanted) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, path + ": " + why);
  };
  if (!(saved.model == wanted.model)) {
    refuse(
        "the session was computed with another model (config.json, shard sizes or headers "
        "differ)");
  }
  if (saved.cache_format != wanted.cache_format) {
    refuse(format("the session was computed with --cache {}, not {}", CacheName(saved.cache_format),
                  CacheName(wanted.cache_format)));
  }
  if (saved.spine != wanted.spine) {
    refuse(format("the session was computed with the {} spine, not {}", saved.spine, wanted.spine));
  }
}

}  // namespace deltafin
