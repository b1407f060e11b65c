// Reads a JSON text byte by byte and says at once when it can no longer become a value of a schema.
// From every text that it has accepted so far there is a way to a complete value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/json_schema.h"

namespace deltafin {

// A value: copies are cheap and independent.
class JsonAcceptor {
 public:
  // Of values that `node` of the schema describes.
  JsonAcceptor(std::shared_ptr<const JsonSchema> schema, int node);
  explicit JsonAcceptor(const std::shared_ptr<const JsonSchema>& schema)
      : JsonAcceptor(schema, schema->root) {}

  // False when no value begins like that; nothing may be pushed afterwards.
  bool Push(char byte);
  // What was pushed is a whole value (a number may still go on).
  bool complete() const;

 private:
  struct UsedKey;
  struct Frame;
  class Stepper;

  std::shared_ptr<const JsonSchema> schema_;
  // What the text may be; several where alternatives begin alike.
  std::shared_ptr<const std::vector<Frame>> readings_;
  int num_spaces_ = 0;  // white space outside of strings, since the last other byte
};

}  // namespace deltafin
