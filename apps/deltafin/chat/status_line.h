// What an answer cost, in one line.
#pragma once

#include <string>

#include "conversation.h"

namespace deltafin {

// What was read, how many experts were in RAM, and the memory of this process, at one moment.
struct ResourceUse {
  uint64_t requested = 0;
  uint64_t hits = 0;
  uint64_t bytes_read = 0;
  uint64_t resident_bytes = 0;  // 0: not known

  static ResourceUse Of(const Engine& engine);
};

// "63 tokens, 12.1 per second | 1.3 GB/s from disk, 93 % hits | 8.1 GB RAM | context 310 of 8192".
// `before`: when the question was asked.
std::string StatusLine(const TurnResult& turn, const ResourceUse& before, const ResourceUse& after,
                       int64_t tokens, int64_t context);

// Several lines about everything since the program began.
std::string StatsText(const Engine& engine, const Conversation& conversation,
                      const TurnResult& last);

}  // namespace deltafin
