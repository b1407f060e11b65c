#include "text/chat_markup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(ChatMarkupTest, EscapesOnlyAmpersandAndQuote) {
  const std::string value = "a&b\"c<d>'&quot;\n\u00e9";
  EXPECT_EQ(EscapeAttribute(value), "a&amp;b&quot;c<d>'&amp;quot;\n\u00e9");
  EXPECT_EQ(UnescapeAttribute(EscapeAttribute(value)), value);
  EXPECT_EQ(UnescapeAttribute("&lt;&amp;lt;& &am"), "&lt;&lt;& &am");
}

TEST(ChatMarkupTest, ReadsTags) {
  ChatTag tag;
  ASSERT_EQ(ReadChatTag("call tool=\"a &quot;b\" index=\"1\"", &tag), TagText::kWhole);
  EXPECT_EQ(tag.name, "call");
  EXPECT_THAT(tag.attributes, ElementsAre(Pair("tool", "a \"b"), Pair("index", "1")));
  EXPECT_EQ(tag.Attribute("tool"), "a \"b");
  EXPECT_EQ(tag.Attribute("type"), "");
  for (const char* whole : {"think", "response", "tools", "message", "json", "argument key=\"=\"",
                            "think ", "call  tool=\"\""}) {
    EXPECT_EQ(ReadChatTag(whole, &tag), TagText::kWhole) << whole;
  }
  // Every beginning of a tag can still become one.
  const std::string text = "argument key=\"a b\" type=\"string\"";
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_NE(ReadChatTag(text.substr(0, length), &tag), TagText::kNone) << length;
  }
}

TEST(ChatMarkupTest, RecognisesWhatIsNoTag) {
  ChatTag tag;
  for (const char* text :
       {" think", "Think", "thinking", "x", "think about", "\n", "call =\"x\"", "call tool=x",
        "call tool\"", "call tool=\"x\"y", "think about it", "tools=\"x\""}) {
    const bool may_go_on = std::string(text) == "think about";
    EXPECT_EQ(ReadChatTag(text, &tag), may_go_on ? TagText::kPrefix : TagText::kNone) << text;
  }
  EXPECT_EQ(ReadChatTag("call tool=\"" + std::string(5000, 'x'), &tag), TagText::kNone);
}

}  // namespace
}  // namespace deltafin
