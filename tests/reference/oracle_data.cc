#include "reference/oracle_data.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "shared_data.h"

namespace deltafin::reference {
namespace {

using Json = nlohmann::json;

Json ReadJson(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  return Json::parse(in);
}

// Raw little-endian float32.
Vec ReadFloats(const std::string& path, size_t count) {
  std::ifstream in(path, std::ios::binary);
  std::vector<float> values(count);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(count * sizeof(float)));
  if (!in || in.peek() != std::ifstream::traits_type::eof()) {
    throw std::runtime_error(path + " does not hold " + std::to_string(count) + " floats");
  }
  return {values.begin(), values.end()};
}

Vec ReadOfficialFile(const Json& entry) {
  size_t count = 1;
  for (const size_t extent : entry.at("shape")) count *= extent;
  const std::string file = entry.at("file");
  return ReadFloats(DataPath("official/oracle/" + file), count);
}

std::string LayerName(size_t layer, const std::string& name) {
  char text[16];
  std::snprintf(text, sizeof(text), "L%02d.", static_cast<int>(layer));
  return text + name;
}

NamedTensors OfficialTrace(const Json& hidden) {
  static const std::map<std::string, std::string> kNames = {{"attn_in", "attn_normed"},
                                                            {"attn_out", "attn_out"},
                                                            {"ffn_in", "mlp_normed"},
                                                            {"ffn_out", "mlp_out"},
                                                            {"after_layer", "hidden"}};
  NamedTensors trace;
  for (const auto& [file_name, name] : kNames) {
    const Json& entry = hidden.at(file_name);
    const Vec all = ReadOfficialFile(entry);  // [layers, positions, hidden]
    const size_t layers = entry.at("shape").at(0);
    const size_t size = all.size() / layers;
    for (size_t layer = 0; layer < layers; ++layer) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(layer * size);
      trace[LayerName(layer, name)] = Vec(begin, begin + static_cast<std::ptrdiff_t>(size));
    }
  }
  trace["out_res"] = ReadOfficialFile(hidden.at("final_mix"));
  trace["final_norm"] = ReadOfficialFile(hidden.at("final"));
  return trace;
}

std::vector<std::vector<Routing>> OfficialRouting(const Json& routing) {
  std::vector<std::vector<Routing>> layers;
  for (const auto& [layer_text, entry] : routing.items()) {
    const size_t layer = std::stoul(layer_text);
    if (layers.size() <= layer) layers.resize(layer + 1);
    for (size_t pos = 0; pos < entry.at("experts").size(); ++pos) {
      layers[layer].push_back({entry.at("experts").at(pos).get<std::vector<int>>(),
                               entry.at("weights").at(pos).get<Vec>(), 0});
    }
  }
  return layers;
}

using Tensors = std::map<std::string, Tensor>;

// [MoE layers, positions, k] -> [layer][position][k], with an empty layer 0 before.
std::vector<std::vector<std::vector<int>>> SplitExperts(const Tensor& tensor) {
  const Vec all = tensor.ToDoubles();
  std::vector<std::vector<std::vector<int>>> layers(1);
  auto next = all.begin();
  for (int64_t layer = 0; layer < tensor.shape.at(0); ++layer) {
    auto& positions = layers.emplace_back();
    for (int64_t pos = 0; pos < tensor.shape.at(1); ++pos) {
      auto& experts = positions.emplace_back();
      for (int64_t i = 0; i < tensor.shape.at(2); ++i) experts.push_back(static_cast<int>(*next++));
    }
  }
  return layers;
}

std::vector<std::vector<Routing>> NanoRouting(const Tensors& router, const std::string& prefix) {
  const auto experts = SplitExperts(router.at(prefix + "idx"));
  const Vec weights = router.at(prefix + "weight").ToDoubles();
  const Vec margins = router.at(prefix + "margin").ToDoubles();
  std::vector<std::vector<Routing>> layers;
  auto weight = weights.begin();
  auto margin = margins.begin();
  for (const auto& positions : experts) {
    auto& layer = layers.emplace_back();
    for (const auto& picks : positions) {
      const auto end = weight + static_cast<std::ptrdiff_t>(picks.size());
      layer.push_back({picks, Vec(weight, end), *margin++});
      weight = end;
    }
  }
  return layers;
}

std::vector<TokenId> ToIds(const Tensor& tensor) {
  const Vec values = tensor.ToDoubles();
  std::vector<TokenId> ids;
  for (const double value : values) ids.push_back(static_cast<TokenId>(value));
  return ids;
}

}  // namespace

std::string OfficialModelDir() { return DataPath("official/model"); }

OfficialOracle LoadOfficialOracle() {
  const Json json = ReadJson(DataPath("official/oracle/A.json"));
  OfficialOracle oracle;
  oracle.vocab_size = json.at("vocab_size");
  for (const auto& [name, entry] : json.at("prompts").items()) {
    OfficialPrompt prompt;
    prompt.name = name;
    prompt.ids = entry.at("ids").get<std::vector<TokenId>>();
    prompt.logits = ReadOfficialFile(entry.at("logits"));
    prompt.logit_std = entry.at("logit_std");
    prompt.min_router_margin = entry.at("min_router_gap");
    if (entry.contains("greedy_ids")) {
      prompt.greedy_ids = entry.at("greedy_ids").get<std::vector<TokenId>>();
      prompt.greedy_margins = entry.at("greedy_margin").get<Vec>();
      prompt.greedy_logits = ReadOfficialFile(entry.at("greedy_logits"));
    }
    if (entry.contains("hidden")) prompt.trace = OfficialTrace(entry.at("hidden"));
    if (entry.contains("routing")) prompt.routing = OfficialRouting(entry.at("routing"));
    oracle.prompts.push_back(std::move(prompt));
  }
  return oracle;
}

double NanoPrompt::MinRouterMargin(int64_t position) const {
  double margin = std::numeric_limits<double>::infinity();
  for (const auto& layer : routing) {
    if (!layer.empty()) margin = std::min(margin, layer.at(position).margin);
  }
  return margin;
}

std::vector<TokenId> NanoPrompt::AllIds() const {
  std::vector<TokenId> all = ids;
  all.insert(all.end(), greedy_ids.begin(), greedy_ids.end());
  return all;
}

std::vector<NanoPrompt> LoadNanoPrompts() {
  const Json json = ReadJson(DataPath("nano/prompts.json"));
  const Tensors logits = ReadSafetensors(DataPath("nano/logits.safetensors"));
  const Tensors router = ReadSafetensors(DataPath("nano/router.safetensors"));
  std::vector<NanoPrompt> prompts;
  for (const Json& entry : json) {
    NanoPrompt prompt;
    prompt.id = entry.at("id");
    prompt.ids = entry.at("ids").get<std::vector<TokenId>>();
    prompt.greedy_ids = entry.at("greedy_ids").get<std::vector<TokenId>>();
    prompt.greedy_margins = entry.at("greedy_margin").get<Vec>();
    prompt.f32_max_abs_logit_diff = entry.at("f32_max_abs_logit_diff");
    char prefix[8];
    std::snprintf(prefix, sizeof(prefix), "%02d.", static_cast<int>(prompt.id));
    const auto it = logits.find(std::string(prefix) + "logits");
    if (it != logits.end()) prompt.logits = it->second.ToDoubles();
    prompt.routing = NanoRouting(router, prefix);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

NanoTrace LoadNanoTrace() {
  constexpr int64_t kHalf = 9;  // "half" in the metadata of the file
  const Tensors file = ReadSafetensors(DataPath("nano/trace.safetensors"));
  NanoTrace trace;
  trace.half = kHalf;
  for (const auto& [name, tensor] : file) {
    if (name == "ids") {
      trace.ids = ToIds(tensor);
    } else {
      trace.tensors[name] = tensor.ToDoubles();
    }
  }
  return trace;
}

NanoNll LoadNanoNll() {
  const Tensors file = ReadSafetensors(DataPath("nano/nll.safetensors"));
  NanoNll oracle;
  oracle.ids = ToIds(file.at("ids"));
  oracle.nll = file.at("nll").ToDoubles();
  oracle.argmax = ToIds(file.at("argmax"));
  oracle.mean_nll = ReadJson(DataPath("nano/nll.json")).at("mean_nll");
  oracle.experts = SplitExperts(file.at("router_idx"));
  return oracle;
}

}  // namespace deltafin::reference
