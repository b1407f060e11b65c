#include "status_line.h"

#if defined(__APPLE__)
#include <mach/mach.h>
#else
#include <unistd.h>

#include <fstream>
#endif
#include <cstdio>

namespace deltafin {
namespace {

std::string Number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

std::string Bytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return Number("%.2f GB", value / 1e9);
  return Number("%.0f MB", value / 1e6);
}

#if defined(__APPLE__)
uint64_t ResidentBytes() {
  mach_task_basic_info_data_t info = {};
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  const kern_return_t result = task_info(mach_task_self(), MACH_TASK_BASIC_INFO,
                                         reinterpret_cast<task_info_t>(&info), &count);
  return result == KERN_SUCCESS ? info.resident_size : 0;
}
#else
uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  uint64_t resident = 0;
  if (!(file >> pages >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}
#endif

}  // namespace

ResourceUse ResourceUse::Of(const Engine& engine) {
  const ExpertStoreCounters experts = engine.expert_counters();
  return {experts.requested, experts.hits, engine.counters().bytes_read(), ResidentBytes()};
}

std::string StatusLine(const TurnResult& turn, const ResourceUse& before, const ResourceUse& after,
                       int64_t tokens, int64_t context) {
  const double seconds = turn.prefill_seconds + turn.decode_seconds;
  std::string line =
      std::to_string(turn.new_tokens) + " tokens, " +
      Number("%.1f per second", Rate(static_cast<double>(turn.new_tokens), turn.decode_seconds)) +
      " (prompt " + std::to_string(turn.prompt_tokens) + " in " +
      Number("%.1f s)", turn.prefill_seconds);
  const uint64_t requested = after.requested - before.requested;
  line += Number(" | %.2f GB/s from disk",
                 Rate(static_cast<double>(after.bytes_read - before.bytes_read) / 1e9, seconds));
  if (requested > 0) {
    line += Number(", %.0f %% hits", 100 * static_cast<double>(after.hits - before.hits) /
                                         static_cast<double>(requested));
  }
  if (after.resident_bytes > 0) line += " | " + Bytes(after.resident_bytes) + " RAM";
  line += " | context " + std::to_string(tokens) + " of " + std::to_string(context);
  return line;
}

std::string StatsText(const Engine& engine, const Conversation& conversation,
                      const TurnResult& last) {
  const ModelInfo& info = engine.info();
  const ExpertStoreCounters experts = engine.expert_counters();
  const auto share = [&](uint64_t part) {
    return experts.requested == 0
               ? 0
               : 100 * static_cast<double>(part) / static_cast<double>(experts.requested);
  };
  std::string text = "model      " + info.name + ", " + std::to_string(info.num_layers) +
                     " layers, " + Bytes(info.bytes_per_token) + " of weights per token\n";
  text += "context    " + std::to_string(conversation.num_tokens()) + " of " +
          std::to_string(info.context_tokens) + " tokens in " +
          std::to_string(conversation.num_turns()) + " turns\n";
  text += "last       prompt " + std::to_string(last.prompt_tokens) + " tokens in " +
          Number("%.2f s, ", last.prefill_seconds) + "answer " + std::to_string(last.new_tokens) +
          " tokens in " + Number("%.2f s", last.decode_seconds) +
          Number(" (%.1f per second)\n",
                 Rate(static_cast<double>(last.new_tokens), last.decode_seconds));
  text += "experts    " + std::to_string(experts.requested) + " asked for, " +
          Number("%.1f %% in RAM", share(experts.hits)) +
          Number(" (%.1f %% read ahead), ", share(experts.ahead_hits)) +
          Bytes(experts.bytes_read()) + " read, " + Number("%.2f s waited\n", experts.wait_seconds);
  const EngineCounters counters = engine.counters();
  text += "spine      " + Bytes(counters.bytes_read() - counters.expert_bytes) + " read\n";
  text += "RAM        " + Bytes(ResidentBytes()) + " of this process";
  for (const PlanLine& line : engine.plan()) {
    if (line.what == "budget") text += ", budget " + Bytes(line.bytes);
  }
  return text + "\n";
}

}  // namespace deltafin
