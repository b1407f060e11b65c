// Hashes: SHA-256 where others must be able to check (the hub publishes it for every shard), XXH3
// where only we do and speed counts. The only place that includes OpenSSL's digests and xxHash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "io/file.h"

namespace deltafin {

// SHA-256 of bytes that arrive one after the other.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits. Ends the stream: nothing may be called after it.
  std::string HexDigest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Of the whole file. Throws Error(kIo).
std::string Sha256OfFile(const ReadableFile& file);

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
};

// XXH3 (64 bits) of bytes that arrive one after the other.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void Restart();
  void Update(std::span<const std::byte> bytes);
  // Of all bytes since the start; more may follow.
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

uint64_t Xxh3(std::span<const std::byte> bytes);
Hash128 Xxh3Wide(std::span<const std::byte> bytes);
// Of bytes [offset, offset + bytes) of the file. Throws Error(kIo).
uint64_t Xxh3OfRange(const ReadableFile& file, uint64_t offset, uint64_t bytes);

}  // namespace deltafin
