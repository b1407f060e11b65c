#include "io/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <vector>

#include "base/check.h"

namespace deltafin {
namespace {

constexpr uint64_t kHashPieceBytes = uint64_t{4} << 20;

struct FreeXxh3 {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using Xxh3State = std::unique_ptr<XXH3_state_t, FreeXxh3>;

Xxh3State NewXxh3State() {
  Xxh3State state(XXH3_createState());
  if (state == nullptr) throw std::bad_alloc();
  return state;
}

// Calls use(piece) for the pieces of a range in order.
template <class Use>
void ForEachPiece(const ReadableFile& file, uint64_t offset, uint64_t bytes, Use&& use) {
  std::vector<std::byte> buffer(std::min(bytes, kHashPieceBytes));
  for (uint64_t done = 0; done < bytes;) {
    const std::span piece = std::span(buffer).first(std::min(kHashPieceBytes, bytes - done));
    file.ReadAt(offset + done, piece);
    use(std::span<const std::byte>(piece));
    done += piece.size();
  }
}

Hash128 ToHash128(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

}  // namespace

struct Sha256::Context {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> evp{EVP_MD_CTX_new()};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (context_->evp == nullptr) throw std::bad_alloc();
  DF_CHECK(EVP_DigestInit_ex(context_->evp.get(), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  DF_CHECK(context_ != nullptr);
  DF_CHECK(EVP_DigestUpdate(context_->evp.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::HexDigest() {
  DF_CHECK(context_ != nullptr);
  unsigned char digest[32];
  DF_CHECK(EVP_DigestFinal_ex(context_->evp.get(), digest, nullptr) == 1);
  context_.reset();
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::string Sha256OfFile(const ReadableFile& file) {
  Sha256 sha;
  ForEachPiece(file, 0, file.size(), [&](std::span<const std::byte> piece) { sha.Update(piece); });
  return sha.HexDigest();
}

struct Xxh3Stream::State {
  Xxh3State xxh3 = NewXxh3State();
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { Restart(); }
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::Restart() { XXH3_64bits_reset(state_->xxh3.get()); }
void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh3.get(), bytes.data(), bytes.size());
}
uint64_t Xxh3Stream::Digest() const { return XXH3_64bits_digest(state_->xxh3.get()); }

uint64_t Xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hash128 Xxh3Wide(std::span<const std::byte> bytes) {
  return ToHash128(XXH3_128bits(bytes.data(), bytes.size()));
}

uint64_t Xxh3OfRange(const ReadableFile& file, uint64_t offset, uint64_t bytes) {
  const Xxh3State state = NewXxh3State();
  XXH3_64bits_reset(state.get());
  ForEachPiece(file, offset, bytes, [&](std::span<const std::byte> piece) {
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  });
  return XXH3_64bits_digest(state.get());
}

}  // namespace deltafin
