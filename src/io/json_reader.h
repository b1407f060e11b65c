// A strict, streaming reader for the two JSON formats that are large: shard indexes (60 MB) and
// shard headers. It keeps no document, so memory is what the caller keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/error.h"

namespace deltafin {

// Pulls one value after the other. RFC 8259 to the letter: UTF-8 checked, no comments, no trailing
// commas, no lone surrogates. Every function throws Error(kCorrupt) naming the document, the
// subject, line and column, what was expected and what was found.
//
//   reader.BeginObject();
//   while (reader.NextKey(key)) { ... exactly one value ... }
class JsonReader {
 public:
  // The next bytes of the document, valid until the next call; empty at the end.
  using Refill = std::function<std::string_view()>;

  // `name` is what messages call the document. `text` must outlive the reader.
  JsonReader(std::string_view text, std::string name);
  JsonReader(Refill refill, std::string name);

  // Enters an object. At most 64 levels deep, as everything here.
  void BeginObject();
  // Moves to the next member and takes its key; false at the end of the object, which it leaves.
  // Does not look for duplicate keys.
  bool NextKey(std::string& key);
  void BeginArray();
  // Moves to the next element; false at the end of the array, which it leaves.
  bool NextElement();

  void ReadString(std::string& value);
  // A non-negative integer below 2^64 without fraction or exponent.
  uint64_t ReadUint();
  // Any value, checked as strictly as if it were used; duplicate keys are refused.
  void SkipValue();
  // Only white space may follow.
  void ExpectEnd();

  // Bytes taken so far.
  uint64_t position() const { return chunk_begin_ + static_cast<uint64_t>(next_ - begin_); }
  // What messages name beside the document, such as `tensor "x"`; read only when one is made. Null:
  // nothing.
  void set_subject(std::function<std::string()> subject) { subject_ = std::move(subject); }

  // Throws the error for something that is JSON but not what it should be.
  [[noreturn]] void Fail(const std::string& problem, ErrorCode code = ErrorCode::kCorrupt) const;

 private:
  static constexpr int kEnd = -1;

  int Peek();
  int Take();
  int PeekAfterSpace();
  void Expect(char wanted, const char* where);
  [[noreturn]] void FailExpecting(const std::string& expected, int got) const;
  void Enter(char opener, const char* what);
  bool NextItem(char closer);
  void AppendEscape(std::string& value);
  uint32_t TakeHex4();
  void AppendMultibyte(std::string& value);
  void SkipNumber();
  void SkipLiteral(std::string_view literal);
  void SkipObject();

  const Refill refill_;
  const std::string name_;
  std::function<std::string()> subject_;
  const char* begin_ = nullptr;  // the current chunk
  const char* next_ = nullptr;
  const char* end_ = nullptr;
  uint64_t chunk_begin_ = 0;  // position of begin_ in the document
  uint64_t line_ = 1;
  uint64_t line_begin_ = 0;
  std::vector<bool> is_empty_;  // per open container: nothing taken from it yet
};

// Throws like JsonReader when a key stands in `keys` twice. Sorts `keys`.
void RefuseRepeatedKeys(std::vector<std::string>& keys, const JsonReader& reader);

}  // namespace deltafin
