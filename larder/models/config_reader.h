// Reading config.json with its three kinds of "not there" apart, and with every fault collected so
// that a user sees all of them in one line.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/base/error.h"
#include "larder/base/json_fwd.h"

namespace larder {

// The faults of one file. `what` is the file, as the error line begins. Lives on the stack of the
// reader; not thread-safe.
class ConfigProblems {
 public:
  explicit ConfigProblems(std::string what) : what_(std::move(what)) {}

  template <class... Parts>
  void add(const Parts&... parts) {
    lines_.push_back(str(parts...));
  }
  // Takes over the text of a thrown Error, without the file's name in front.
  void add_error(const Error& error);
  bool empty() const { return lines_.empty(); }
  // Throws Error(kInvalid) "file: first; second" unless empty.
  void throw_if_any() const;

 private:
  std::string what_;
  std::vector<std::string> lines_;
};

// Sizes and ids are 32 bits wide in index lists, so a larger one cannot be right.
constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

// Reads fields of one object; a fault becomes a problem and a harmless value (0, false), so that
// reading goes on. Absent and null are different (cases 36): absent gives the default that the
// caller names, null means "off" where the method says so and is a fault elsewhere. Holds
// references: use it within one function.
class ConfigReader {
 public:
  // `within` stands in front of key names in problems: "rope_scaling: ".
  ConfigReader(const JsonFields& fields, ConfigProblems& problems, std::string within = "")
      : fields_(fields), problems_(problems), within_(std::move(within)) {}

  const JsonFields& fields() const { return fields_; }
  ConfigProblems& problems() const { return problems_; }

  // A whole number in [1, limit]; 0 after a fault. No `absent`: the key must be there.
  int64_t size(std::string_view key, std::optional<int64_t> absent, int64_t limit = kMaxSize) const;
  // The same where null is meaningful: gives `null_means` for it.
  int64_t size_or_null(std::string_view key, std::optional<int64_t> absent, int64_t null_means,
                       int64_t limit = kMaxSize) const;
  // A finite number above `above`; 0 after a fault.
  double number(std::string_view key, std::optional<double> absent, double above = 0) const;
  // Null means "off", which is 0.
  double number_or_null(std::string_view key, double absent) const;
  // Null means false.
  bool flag(std::string_view key, bool absent) const;
  // Null and absent give nullopt.
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  // One id; null means none, and so does -1, as old files write it.
  std::optional<int64_t> id(std::string_view key, std::optional<int64_t> absent) const;
  // An id or a list of them.
  std::vector<int64_t> ids(std::string_view key, std::optional<int64_t> absent) const;

  template <class... Parts>
  void problem(const Parts&... parts) const {
    problems_.add(within_, parts...);
  }

 private:
  template <class Value>
  using Getter = std::optional<Value> (JsonFields::*)(std::string_view) const;
  // The value; nullopt for absent, null, and a wrong type, which becomes a problem.
  template <class Value>
  std::optional<Value> take(std::string_view key, Getter<Value> get) const;
  // take(), or `absent`; what is missing or null becomes a problem.
  template <class Value>
  std::optional<Value> need(std::string_view key, std::optional<Value> absent,
                            Getter<Value> get) const;

  const JsonFields& fields_;
  ConfigProblems& problems_;
  std::string within_;
};

}  // namespace larder
