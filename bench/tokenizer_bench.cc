// Speed of the tokenizer (docs/tokenizer.md). Vocabularies: k3-nano's, and K3's where ../shared has
// it. Texts: the English passages and the odd texts of the test data.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <string>
#include <vector>

#include "deltafin/json.h"
#include "deltafin/tokenizer.h"
#include "io/file.h"
#include "shared_data.h"
#include "text/bpe.h"
#include "text/parse_tokenizer.h"
#include "text/pretokenizer.h"

namespace deltafin {
namespace {

// K3's vocabulary where it is there.
std::string VocabularyDir() {
  const std::string k3 = SharedPath("tokenizer");
  return k3.empty() ? NanoDir() : k3;
}

std::string ReadText(const std::string& path) {
  return ReadWholeFile(RealFileSystem(), path, 64 << 20);
}

// The texts of a file of cases that have at least min_bytes.
std::string Texts(const std::string& name, size_t min_bytes) {
  const Json cases = ParseJson(ReadText(DataPath(name)), name);
  std::string out;
  for (const Json& c : cases) {
    const auto text = c.at("text").get<std::string>();
    if (text.size() >= min_bytes) out += text + "\n\n";
  }
  return out;
}

std::string English() { return Texts("nano/tokenizer_cases.json", 1000); }
std::string OddTexts() { return Texts("tokenizer_cases.json", 0); }

void Encode(benchmark::State& state, const std::string& dir, const std::string& text,
            Specials specials) {
  const auto tokenizer = Tokenizer::Load(dir);
  size_t num_ids = 0;
  for (auto _ : state) num_ids = tokenizer->Encode(text, specials).size();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["bytes/id"] = static_cast<double>(text.size()) / static_cast<double>(num_ids);
}

void EncodeEnglish(benchmark::State& state) {
  Encode(state, VocabularyDir(), English(), Specials::kPlain);
}
void EncodeEnglishSpecials(benchmark::State& state) {
  Encode(state, VocabularyDir(), English(), Specials::kAllowed);
}
void EncodeEnglishNano(benchmark::State& state) {
  Encode(state, NanoDir(), English(), Specials::kPlain);
}
void EncodeOdd(benchmark::State& state) {
  Encode(state, VocabularyDir(), OddTexts(), Specials::kPlain);
}
BENCHMARK(EncodeEnglish);
BENCHMARK(EncodeEnglishSpecials);
BENCHMARK(EncodeEnglishNano);
BENCHMARK(EncodeOdd);

void SplitEnglish(benchmark::State& state) {
  const std::string text = English();
  const PreTokenizer pre_tokenizer;
  for (auto _ : state) {
    for (size_t pos = 0; pos < text.size();) pos = pre_tokenizer.PieceEnd(text, pos);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(SplitEnglish);

void Load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::Load(VocabularyDir()));
}
BENCHMARK(Load)->Unit(benchmark::kMillisecond);

// Where scanning and the heap take the same time is Bpe::kMaxScanBytes. The pieces are English
// without its spaces: many merges each.
using Merge = void (Bpe::*)(std::string_view, Bpe::Scratch&, std::vector<TokenId>&) const;

void MergePieces(benchmark::State& state, Merge merge) {
  const std::string model = ReadText(JoinPath(VocabularyDir(), "tiktoken.model"));
  const Bpe bpe(ParseRanks({model, "tiktoken.model"}));
  std::string text = English();
  std::erase(text, ' ');
  const auto length = static_cast<size_t>(state.range(0));
  Bpe::Scratch scratch;
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    for (size_t pos = 0; pos + length <= text.size(); pos += length) {
      (bpe.*merge)(std::string_view(text).substr(pos, length), scratch, ids);
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size() / length * length));
}
BENCHMARK_CAPTURE(MergePieces, Scan, &Bpe::MergeByScan)->RangeMultiplier(2)->Range(4, 1024);
BENCHMARK_CAPTURE(MergePieces, Heap, &Bpe::MergeByHeap)->RangeMultiplier(2)->Range(4, 1024);

}  // namespace
}  // namespace deltafin
