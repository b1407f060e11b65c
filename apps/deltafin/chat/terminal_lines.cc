#include <fcntl.h>
#include <histedit.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>

#include "deltafin/error.h"
#include "line_source.h"

namespace deltafin {
namespace {

constexpr int kHistoryMessages = 1000;
// The terminal marks what is pasted, so that its line ends do not send it.
constexpr const char* kMarkPastes = "\033[?2004h";
constexpr const char* kLeavePastes = "\033[?2004l";
constexpr std::wstring_view kEndOfPaste = L"\033[201~";

// libedit's callbacks get no context but this.
struct EditState {
  bool styled = true;
  bool given_up = false;
  bool goes_on = false;  // the prompt of a further line
};

EditState& StateOf(EditLine* line) {
  EditState* state = nullptr;
  el_get(line, EL_CLIENTDATA, &state);
  return *state;
}

const char* PromptOf(EditLine* line) {
  if (!StateOf(line).styled) return StateOf(line).goes_on ? ". " : "> ";
  // Between \1: takes no room on the screen. libedit drops it at the very end.
  return StateOf(line).goes_on ? "\1\033[2m\1.\1\033[0m\1 " : "\1\033[1m\1>\1\033[0m\1 ";
}

unsigned char GiveUp(EditLine* line, int) {
  StateOf(line).given_up = true;
  return CC_NEWLINE;
}

unsigned char Suspend(EditLine*, int) {
  // libedit gives the terminal back before it stops, and takes it again.
  return std::raise(SIGTSTP) == 0 ? CC_REDISPLAY : CC_ERROR;
}

// Ctrl-D before the terminal was prepared arrives as a zero byte.
unsigned char EndInput(EditLine* line, int) {
  const LineInfo* const text = el_line(line);
  return text->buffer == text->lastchar ? CC_EOF : CC_NORM;
}

unsigned char InsertLineEnd(EditLine* line, int) {
  el_insertstr(line, "\n");
  return CC_REFRESH;
}

unsigned char InsertPaste(EditLine* line, int) {
  std::wstring text;
  wchar_t letter = 0;
  while (!text.ends_with(kEndOfPaste) && el_wgetc(line, &letter) == 1) {
    text += letter == L'\r' ? L'\n' : letter;
  }
  if (text.ends_with(kEndOfPaste)) text.resize(text.size() - kEndOfPaste.size());
  // What is left of controls would move the cursor of whoever looks at the message.
  std::erase_if(text, [](wchar_t c) { return (c < L' ' && c != L'\n' && c != L'\t') || c == 127; });
  if (text.empty()) return CC_NORM;
  return el_winsertstr(line, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// Only the owner may read what was asked.
bool PrepareHistoryFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && std::filesystem::create_directories(folder, error)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  }
  const int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return false;
  close(file);
  return true;
}

void PrepareHistory(History* list) {
  HistEvent event;
  history(list, &event, H_SETSIZE, kHistoryMessages);
  history(list, &event, H_SETUNIQUE, 1);
}

// Adds a message to the file, which other conversations write to meanwhile. A full disk loses the
// history, not the conversation.
void AppendToFile(const std::string& path, const std::string& message) {
  const int lock = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (lock < 0) return;
  History* const all = flock(lock, LOCK_EX) == 0 ? history_init() : nullptr;
  if (all != nullptr) {
    PrepareHistory(all);
    HistEvent event;
    history(all, &event, H_LOAD, path.c_str());
    history(all, &event, H_ENTER, message.c_str());
    history(all, &event, H_SAVE, path.c_str());
    history_end(all);
  }
  close(lock);
}

class TerminalLines final : public LineSource {
 public:
  TerminalLines(const std::string& history_path, bool styled) {
    state_.styled = styled;
    // Only which bytes make a letter; numbers keep their points.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) {
      std::setlocale(LC_CTYPE, "C.UTF-8");
    }
    line_ = el_init("deltafin", stdin, stdout, stderr);
    history_ = history_init();
    if (line_ == nullptr || history_ == nullptr) {
      throw Error(ErrorCode::kIo, "the terminal cannot be used for line editing; check TERM");
    }
    el_set(line_, EL_CLIENTDATA, &state_);
    el_set(line_, EL_PROMPT_ESC, &PromptOf, '\1');
    el_set(line_, EL_EDITOR, "emacs");
    el_set(line_, EL_SIGNAL, 1);
    // By wide names, which are not copied: the copies of the others are never freed.
    el_wset(line_, EL_ADDFN, L"give-up", L"Gives up what was typed", &GiveUp);
    el_wset(line_, EL_ADDFN, L"suspend", L"Stops the program", &Suspend);
    el_wset(line_, EL_ADDFN, L"end-input", L"Ends an empty line", &EndInput);
    el_wset(line_, EL_ADDFN, L"line-end", L"Begins a new line", &InsertLineEnd);
    el_wset(line_, EL_ADDFN, L"paste", L"Inserts what is pasted", &InsertPaste);
    Bind("^C", "give-up");
    Bind("^@", "end-input");  // else the key after it is taken literally
    Bind("\\e^M", "line-end");
    Bind("\\e^J", "line-end");
    Bind("\\e[200~", "paste");
    Bind("^R", "em-inc-search-prev");
    Bind("^Z", "suspend");
    el_set(line_, EL_SETTY, "-d", "-isig", nullptr);  // these come as keys while editing

    PrepareHistory(history_);
    el_set(line_, EL_HIST, history, history_);
    if (!history_path.empty() && PrepareHistoryFile(history_path)) {
      history_path_ = history_path;
      HistEvent event;
      history(history_, &event, H_LOAD, history_path_.c_str());
    }
  }

  ~TerminalLines() override {
    history_end(history_);
    el_end(line_);
  }
  TerminalLines(const TerminalLines&) = delete;
  TerminalLines& operator=(const TerminalLines&) = delete;

  std::optional<std::string> Next() override {
    for (;;) {
      std::optional<std::string> message = Read();
      if (state_.given_up) continue;
      if (message && !message->empty()) Remember(*message);
      return message;
    }
  }

 private:
  void Bind(const char* key, const char* function) {
    el_set(line_, EL_BIND, key, function, nullptr);
  }

  // Nothing at the end of the input, or when it was given up.
  std::optional<std::string> Read() {
    state_.given_up = state_.goes_on = false;
    std::string message;
    for (;;) {
      std::fputs(kMarkPastes, stdout);
      std::fflush(stdout);
      // libedit shows the prompt first: keys in between would go to the line of the terminal
      // itself.
      el_set(line_, EL_PREP_TERM, 1);
      int count = 0;
      errno = 0;
      const char* text = el_gets(line_, &count);
      std::fputs(kLeavePastes, stdout);
      if (state_.given_up) {
        std::fputs("\n", stdout);
        el_reset(line_);
        return std::nullopt;
      }
      if (text == nullptr) {
        if (count < 0 && errno == EINTR) continue;
        std::fputs("\n", stdout);
        if (message.empty()) return std::nullopt;
        return message;
      }
      message.append(text, static_cast<size_t>(count));
      if (message.ends_with('\n')) message.pop_back();
      if (!message.ends_with('\\')) return message;
      message.back() = '\n';
      state_.goes_on = true;
    }
  }

  void Remember(const std::string& message) {
    HistEvent event;
    history(history_, &event, H_ENTER, message.c_str());
    if (!history_path_.empty()) AppendToFile(history_path_, message);
  }

  EditLine* line_ = nullptr;
  History* history_ = nullptr;
  EditState state_;
  std::string history_path_;
};

}  // namespace

std::unique_ptr<LineSource> LineSource::FromTerminal(const std::string& history_path, bool styled) {
  return std::make_unique<TerminalLines>(history_path, styled);
}

}  // namespace deltafin
