// Answers in the form of POST /v1/responses: items, and events that build them.
#pragma once

#include <string>
#include <vector>

#include "server/answer_writer.h"

namespace deltafin {

struct ResponsesWriterOptions {
  AnswerHeading heading;
  Json settings;  // of the request, which every form of the answer repeats
};

// Of one choice.
class ResponsesWriter final : public AnswerWriter {
 public:
  explicit ResponsesWriter(ResponsesWriterOptions options);

  std::string BeginStream() override;
  std::string Piece(size_t choice, const AnswerPiece& piece) override;
  std::string End(size_t choice, const AnswerEnd& end) override;
  std::string EndStream() override;
  std::string ErrorEvent(const ApiError& error) override;
  void Collect(size_t choice, AnswerPiece piece) override;
  void CollectEnd(size_t choice, const AnswerEnd& end) override;
  Json Whole() override;

 private:
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  // A part of the output; only the last one can be open.
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id;
    std::string call_id;
    std::string name;    // of a call
    int call_index = 0;  // among the calls
    std::string text;    // or the arguments
    const char* status = "in_progress";
  };

  void Take(const AnswerPiece& piece);
  void TakeEnd(const AnswerEnd& end);
  Item& Open(Kind kind);
  void OpenCall(int index, const std::string& name);
  void AddText(const char* event, const std::string& text);
  void Close(const char* status);
  bool IsOpen(Kind kind) const;
  void Emit(const char* type, const Json& fields);
  std::string TakeEvents();
  Json Place() const;
  static Json Part(const Item& item);
  static Json ItemJson(const Item& item, bool with_text);
  Json ResponseJson() const;

  const ResponsesWriterOptions options_;
  std::vector<Item> items_;
  const char* status_ = "in_progress";
  Json usage_;
  Json timings_;
  bool streams_ = false;
  int64_t num_events_ = 0;
  std::string events_;  // since TakeEvents
};

}  // namespace deltafin
