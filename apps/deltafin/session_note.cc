#include "session_note.h"

#include "deltafin/json.h"
#include "effort.h"

namespace deltafin {

std::string SessionNote::Text() const {
  return DumpJson({{"chat", chat},
                   {"thinking", thinking},
                   {"seed", seed},
                   {"system", system},
                   {"effort", EffortName(effort)},
                   {"turns", turns},
                   {"system_is_said", system_is_said},
                   {"effort_is_said", effort_is_said}});
}

SessionNote SessionNote::Parse(const std::string& text, const std::string& path) {
  const std::string where = path + " (note)";
  const Json json = ParseJson(text, where);
  SessionNote note;
  try {
    note.chat = json.value("chat", note.chat);
    note.thinking = json.value("thinking", note.thinking);
    note.seed = json.value("seed", note.seed);
    note.system = json.value("system", note.system);
    note.system_is_said = json.value("system_is_said", note.system_is_said);
    note.effort_is_said = json.value("effort_is_said", note.effort_is_said);
    note.turns = json.value("turns", note.turns);
    note.effort = ParseEffort(where, json.value("effort", std::string(EffortName(note.effort))));
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kCorrupt, where + ": expected what this program writes");
  }
  return note;
}

}  // namespace deltafin
