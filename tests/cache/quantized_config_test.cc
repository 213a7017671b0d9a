// The settings of the kind quantized.
#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/quantized_fixture.h"

namespace larder::test {
namespace {

class QuantizedConfig : public Quantized {
 protected:
  std::string refusal(const std::string& config) {
    return error_of([&] { make(config, {2, 64}); });
  }
  QuantSideLayout side(const std::string& config, int which) {
    return layer(make(config, {2, 64})).layout().side(which);
  }
};

TEST_F(QuantizedConfig, DefaultsAreThoseOfTheReference) {
  for (const char* config : {"", "{}", R"({"backend":"quanto"})", R"({"nbits":null})"}) {
    const Cache cache = make(config, {2, 64});
    EXPECT_EQ(layer(cache).layout().residual_length, 128);
    for (int which = 0; which < 2; ++which) {
      const Quantizer& q = layer(cache).layout().side(which).quantizer;
      EXPECT_EQ(q.method, QuantMethod::kQuanto);
      EXPECT_EQ(q.bits, 4);
      EXPECT_EQ(q.axis, 0);
      EXPECT_EQ(q.group_size, 64);
    }
  }
  EXPECT_EQ(side(R"({"backend":"hqq"})", 0).quantizer.axis, 1);
}

TEST_F(QuantizedConfig, KeysAndValuesAreSetApart) {
  const std::string config =
      R"({"backend":"hqq","nbits":2,"nbits_key":8,"axis_key":0,"q_group_size":32,)"
      R"("q_group_size_value":16})";
  const Quantizer k = side(config, 0).quantizer, v = side(config, 1).quantizer;
  EXPECT_EQ(k.bits, 8);
  EXPECT_EQ(v.bits, 2);
  EXPECT_EQ(k.axis, 0);
  EXPECT_EQ(v.axis, 1);
  EXPECT_EQ(k.group_size, 32);
  EXPECT_EQ(v.group_size, 16);
}

TEST_F(QuantizedConfig, GroupsWithinATokenAreAlignedAndThoseOfQuantoAppend) {
  EXPECT_TRUE(side("", 0).aligned);
  EXPECT_TRUE(side("", 0).appends);
  EXPECT_TRUE(side(R"({"backend":"hqq"})", 0).aligned);
  EXPECT_FALSE(side(R"({"backend":"hqq"})", 0).appends);
  EXPECT_TRUE(side(R"({"backend":"hqq","append_only":true})", 0).appends);
  EXPECT_FALSE(side(R"({"axis_key":-1})", 0).aligned);
  EXPECT_FALSE(side(R"({"q_group_size":128})", 0).aligned);
  const QuantSideLayout channels = side(R"({"axis_key":-1,"append_only":true})", 0);
  EXPECT_TRUE(channels.aligned && channels.appends);
  EXPECT_EQ(channels.token_group, 64);
  EXPECT_EQ(channels.channel_group, 1);
  EXPECT_EQ(side(R"({"q_group_size":128,"append_only":true})", 1).token_group, 2);
}

TEST_F(QuantizedConfig, RefusesWhatItDoesNotKnowAndListsWhatThereIs) {
  EXPECT_EQ(refusal(R"({"n_bits":4})"),
            "cache_config: the cache \"quantized\" has no setting \"n_bits\"; there are: backend, "
            "nbits, nbits_key, nbits_value, axis_key, axis_value, q_group_size, q_group_size_key, "
            "q_group_size_value, residual_length, append_only");
  EXPECT_NE(refusal(R"({"backend":"awq"})").find("there are: quanto, hqq, larder"),
            std::string::npos);
  EXPECT_EQ(refusal(R"({"nbits":8})"), "keys of 8 bits: quanto has nbits 2 and 4");
  EXPECT_EQ(refusal(R"({"nbits_value":3})"), "values of 3 bits: quanto has nbits 2 and 4");
  EXPECT_EQ(refusal(R"({"backend":"hqq","axis_value":-1})"),
            "values with axis -1: hqq has axis 0 and 1");
  EXPECT_EQ(refusal(R"({"q_group_size":0})"), "keys with q_group_size 0; it must be at least 1");
  EXPECT_NE(refusal(R"({"residual_length":-1})").find("residual_length -1"), std::string::npos);
  EXPECT_NE(refusal(R"({"q_group_size":4294967296})").find("4294967296"), std::string::npos);
  for (const char* config : {"[]", "{", R"({"nbits":"four"})", R"({"append_only":1})"})
    EXPECT_NE(refusal(config), "") << config;
}

}  // namespace
}  // namespace larder::test
