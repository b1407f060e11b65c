#include "engine/session_file.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "io/atomic_file.h"
#include "io/file.h"

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

// The parts in the order of the file, but for the state, which is the last.
template <class Content, class Visit>
void VisitParts(Content& content, Visit&& visit) {
  visit(std::span(content.tokens));
  visit(std::span(content.last_logits));
  visit(std::span(content.note));
}

// The hash of the parts' hashes: they never lie in one piece.
uint64_t PayloadHash(const SessionContent& content, uint64_t state_hash) {
  std::vector<uint64_t> hashes;
  VisitParts(content, [&](auto part) { hashes.push_back(Xxh3(std::as_bytes(part))); });
  hashes.push_back(state_hash);
  return Xxh3(std::as_bytes(std::span(hashes)));
}

uint64_t HashOf(const SequenceState& state, const StateCapture* capture) {
  Xxh3Stream hash;
  state.SaveTo([&](std::span<const std::byte> piece) { hash.Update(piece); }, capture);
  return hash.Digest();
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
  // The hash is nobody's signature: sizes that a file cannot have must not wrap around.
  if (header.num_tokens > file.size() / sizeof(TokenId) ||
      header.num_logits > file.size() / sizeof(float) || header.note_bytes > file.size() ||
      header.state_bytes > file.size()) {
    Corrupt(path, "the header says that the file is larger than it is");
  }
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

// `end` is where the state begins.
SessionContent ReadContent(const ReadableFile& file, const Header& header, uint64_t* end) {
  SessionContent content;
  content.origin = OriginOf(header);
  content.first_generated = header.first_generated;
  content.tokens.resize(header.num_tokens);
  content.last_logits.resize(header.num_logits);
  content.note.resize(header.note_bytes);
  *end = sizeof(header);
  VisitParts(content, [&](auto part) {
    const auto bytes = std::as_writable_bytes(part);
    file.ReadAt(*end, bytes);
    *end += bytes.size();
  });
  return content;
}

const char* CacheName(CacheFormat format) { return format == CacheFormat::kF32 ? "f32" : "bf16"; }

}  // namespace

void WriteSessionFile(const std::string& path, const SessionContent& content,
                      const SequenceState& state, Durability durability,
                      const StateCapture* capture) {
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
  header.state_bytes = state.SavedBytes(capture);
  header.payload_hash = PayloadHash(content, HashOf(state, capture));
  header.header_hash = HashOf(header);

  AtomicFile file(path);
  uint64_t at = 0;
  const auto write = [&](std::span<const std::byte> bytes) {
    file.WriteAt(at, bytes);
    at += bytes.size();
  };
  write(std::as_bytes(std::span(&header, 1)));
  VisitParts(content, [&](auto part) { write(std::as_bytes(part)); });
  state.SaveTo(write, capture);
  if (durability == Durability::kSynced) {
    file.Commit();
  } else {
    file.CommitUnsynced();
  }
}

SessionReader::SessionReader(const std::string& path)
    : file_(RealFileSystem().OpenForReading(path)) {
  const Header header = ReadHeader(*file_);
  content_ = ReadContent(*file_, header, &state_at_);
  state_bytes_ = header.state_bytes;
  const uint64_t state_hash = Xxh3OfRange(*file_, state_at_, state_bytes_);
  if (PayloadHash(content_, state_hash) != header.payload_hash) {
    Corrupt(path, "the content is damaged");
  }
  if (header.first_generated < 0 ||
      static_cast<uint64_t>(header.first_generated) > header.num_tokens) {
    Corrupt(path, "the answer begins outside the text");
  }
}

void SessionReader::ReadState(SequenceState& state) const {
  uint64_t at = state_at_;
  state.RestoreFrom(state_bytes_, [&](std::span<std::byte> to) {
    file_->ReadAt(at, to);
    at += to.size();
  });
}

SessionContent PeekSession(const std::string& path) {
  const auto file = RealFileSystem().OpenForReading(path);
  uint64_t at = 0;
  return ReadContent(*file, ReadHeader(*file), &at);
}

SessionFileSummary ReadSessionSummary(const std::string& path) {
  const auto file = RealFileSystem().OpenForReading(path);
  const Header header = ReadHeader(*file);
  return {OriginOf(header), static_cast<int64_t>(header.num_tokens), header.first_generated,
          file->size()};
}

void CheckSameOrigin(const std::string& path, const SessionOrigin& saved,
                     const SessionOrigin& wanted) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, path + ": " + why);
  };
  if (!(saved.model == wanted.model)) {
    refuse(
        "the session was computed with another model (config.json, the tokenizer, shard sizes, "
        "headers or weights differ)");
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
