#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "larder/base/file.h"
#include "larder/cache/registry.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tools/profile_page.h"
#include "tools/svg_chart.h"

namespace larder::test {
namespace {

using tools::best_kinds;
using tools::Profile;
using tools::ProfileKind;

ProfileKind kind(const std::string& name, double bytes, double rate, bool lossless = true) {
  return {name, "", lossless, {{1024, bytes, bytes, 100, rate}}, ""};
}

std::vector<std::string> names(const std::vector<const ProfileKind*>& kinds) {
  std::vector<std::string> names;
  for (const ProfileKind* each : kinds) names.push_back(each->cache);
  return names;
}

TEST(Profile, KindsThatAreBothLargerAndSlowerAreNotAdvised) {
  Profile profile;
  profile.kinds = {kind("small", 10, 50, false), kind("fast", 100, 90), kind("worse", 120, 80),
                   kind("middle", 40, 70), kind("slow", 40, 20)};
  EXPECT_EQ(names(best_kinds(profile, false)),
            (std::vector<std::string>{"fast", "middle", "small"}));
  EXPECT_EQ(names(best_kinds(profile, true)), (std::vector<std::string>{"fast", "middle"}));
}

TEST(Profile, AKindThatWasRefusedStandsInTheTableWithItsReason) {
  Profile profile;
  profile.kinds = {kind("fast", 100, 90), {"odd", "", true, {}, "head_dim 5 < group & size"}};
  const std::string html = tools::profile_html(profile);
  EXPECT_NE(html.find("not run: head_dim 5 &lt; group &amp; size"), std::string::npos);
  EXPECT_EQ(tools::profile_json(profile)["kinds"][1]["refused"], "head_dim 5 < group & size");
}

TEST(Profile, AllKindsRunOnAToyModelAndThePageNeedsNothingBesideIt) {
  const TempFolder folder;
  const std::string json = folder.path() / "p.json", html = folder.path() / "p.html";
  const CommandResult run =
      run_larder({"profile", "-m", toy_folder("toy-mistral"), "--contexts", "20,40", "-n", "2",
                  "-r", "1", "--threads", "1", "-o", json, "--html", html});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json result = parse_json(read_file(json), json);
  std::set<std::string> seen;
  for (const Json& each : result.at("kinds")) {
    EXPECT_FALSE(each.contains("refused")) << each;
    ASSERT_EQ(each.at("points").size(), 2u) << each;
    EXPECT_GT(each["points"][1].at("kv_bytes"), 0);
    EXPECT_GT(each["points"][1].at("decode_tokens_per_second"), 0);
    seen.insert(each.at("cache"));
  }
  EXPECT_TRUE(seen.contains("dynamic") && seen.contains("static"));
  const std::string page = read_file(html);
  for (const char* part : {"<svg", "</html>", "Which one", "dynamic"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* link : {"http:", "https:", "src=", "<script", "<link"})
    EXPECT_EQ(page.find(link), std::string::npos) << link;
}

TEST(Profile, FlagsThatMakeNoSenseAreRefusedInOneLine) {
  const std::string model = toy_folder("toy-llama");
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--contexts", "0"},
                                             {"--contexts", "999999"},
                                             {"-n", "0"},
                                             {"-r", "0"},
                                             {"--kind", "nonsense"},
                                             {"--kind", "dynamic:{\"x\":1}"},
                                             {"--cache", "static"}}) {
    std::vector<std::string> all{"profile", "-m", model};
    all.insert(all.end(), flags.begin(), flags.end());
    const CommandResult run = run_larder(all);
    if (flags[1].starts_with("dynamic:")) {
      EXPECT_EQ(run.code, 0);  // the refusal stands in the table
      EXPECT_NE(run.out.find("no setting"), std::string::npos) << run.out;
      continue;
    }
    EXPECT_EQ(run.code, 2) << flags[0];
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(SvgChart, OneValueAloneIsDrawnInTheMiddle) {
  const std::string svg =
      tools::draw({"t", "y", false, {{"only", {64}, {5}}}, [](double y) { return fixed(y, 0); }});
  EXPECT_NE(svg.find("<title>only, 64 tokens: 5</title>"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace larder::test
