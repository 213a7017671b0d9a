// The table of operations on cache kinds that operations_test.cc fills, one program's own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "larder/base/str.h"
#include "tests/support/cache_subject.h"

namespace larder::test {
namespace {

// The rows of the table, in its order.
constexpr std::array kOperations = {"update",
                                    "get_seq_length",
                                    "get_mask_sizes",
                                    "get_max_cache_shape",
                                    "reorder_cache",
                                    "batch_select_indices",
                                    "batch_repeat_interleave",
                                    "crop, the last tokens",
                                    "crop, any length",
                                    "reset",
                                    "fork",
                                    "save and load",
                                    "shift",
                                    "tentative step",
                                    "cancel",
                                    "convert to dynamic",
                                    "convert to static",
                                    "convert to offloaded",
                                    "convert to quantized"};

class Table : public ::testing::Environment {
 public:
  void set(const std::string& operation, const std::string& kind, const std::string& outcome) {
    cells_[operation][kind] = outcome;
  }
  void TearDown() override;

 private:
  std::string text() const;
  bool complete() const {
    return std::ranges::all_of(kOperations, [&](const char* operation) {
      const auto row = cells_.find(operation);
      return row != cells_.end() && row->second.size() == cache_subjects().size();
    });
  }
  std::map<std::string, std::map<std::string, std::string>> cells_;
};

Table& table() {
  static auto* const table =
      static_cast<Table*>(::testing::AddGlobalTestEnvironment(new Table));  // owned by gtest
  return *table;
}
[[maybe_unused]] const Table& registered = table();

std::string Table::text() const {
  std::string text =
      "# Operations on every cache kind\n\n"
      "What the tests in `tests/cache/operations_test.cc` found; `make matrix` writes this file, "
      "and the\n"
      "tests fail when it is out of date. **yes**: the result is right, bit for bit. **refused**: "
      "a typed\n"
      "error before anything changes. **–**: the operation has no meaning there. The caches of the "
      "table\n"
      "have a full layer and a layer that slides over 6 tokens, with a rollback margin of 3.\n\n| "
      "|";
  std::string rule = "|---|";
  for (const CacheSubject& subject : cache_subjects()) {
    text += str(" ", subject.title, " |");
    rule += "---|";
  }
  text += "\n" + rule + "\n";
  for (const char* operation : kOperations) {
    text += str("| ", operation, " |");
    for (const CacheSubject& subject : cache_subjects())
      text += str(" ", cells_.at(operation).at(subject.title), " |");
    text += "\n";
  }
  return text;
}

}  // namespace
}  // namespace larder::test
