// Answers as chat completions: whole, or as chunks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/answer_writer.h"

namespace deltafin {

struct ChatWriterOptions {
  AnswerHeading heading;
  size_t num_choices = 1;
  bool thinking = true;  // messages have reasoning_content
  bool with_logprobs = false;
  bool include_usage = false;
};

class ChatWriter final : public AnswerWriter {
 public:
  ChatWriter(const Tokenizer& tokenizer, ChatWriterOptions options);

  std::string BeginStream() override;
  std::string Piece(size_t choice, const AnswerPiece& piece) override;
  std::string End(size_t choice, const AnswerEnd& end) override;
  std::string EndStream() override;
  void Collect(size_t choice, AnswerPiece piece) override;
  void CollectEnd(size_t choice, const AnswerEnd& end) override;
  Json Whole() override;

 private:
  struct Choice {
    AnswerPiece all;
    AnswerEnd end;
    std::vector<std::string> call_ids;
  };
  Json Chunk() const;
  Json ChoiceJson(size_t choice, Json delta, Json logprobs, Json finish_reason) const;
  const std::string& CallId(size_t choice, int index);
  Json MessageJson(size_t choice);

  const Tokenizer& tokenizer_;
  const ChatWriterOptions options_;
  std::vector<Choice> choices_;
  UsageSum usage_;
};

}  // namespace deltafin
