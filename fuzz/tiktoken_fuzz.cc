// Any bytes as tiktoken.model: refused with an Error, or a vocabulary that encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "deltafin/error.h"
#include "text/parse_tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltafin;  // NOLINT(google-build-using-namespace)
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = ParseTokenizer(
        {input, "tiktoken.model"}, {R"({"added_tokens_decoder": {}})", "tokenizer_config.json"});
    const std::string expected = ReplaceInvalidUtf8(input);
    for (const Specials specials : {Specials::kPlain, Specials::kAllowed}) {
      DF_CHECK(tokenizer->Decode(tokenizer->Encode(input, specials)) == expected);
    }
    for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
      const std::string bytes = ReplaceInvalidUtf8(tokenizer->Bytes(id));
      DF_CHECK(tokenizer->Decode(tokenizer->Encode(bytes, Specials::kPlain)) == bytes);
    }
  } catch (const Error& error) {
    DF_CHECK(error.code() == ErrorCode::kCorrupt);
  }
  return 0;
}
