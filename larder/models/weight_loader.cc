#include "larder/models/weight_loader.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/tensor/encode_matrix.h"

namespace larder {
namespace {

constexpr size_t kMostProblems = 40;

bool widened(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
bool usable(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64 || widened(dtype); }

}  // namespace

void check_compute_dtype(std::optional<DType> dtype) {
  if (dtype && *dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)
    fail("dtype ", dtype_name(*dtype), " cannot be computed in; use f32, bf16 or f16");
}

void WeightLoader::check() const {
  std::vector<std::string> problems;
  for (const Wanted& wanted : wanted_) {
    if (std::string problem = check_one(wanted); !problem.empty())
      problems.push_back(std::move(problem));
  }
  if (problems.empty()) return;
  const size_t count = problems.size();
  problems.resize(std::min(count, kMostProblems));
  if (count > kMostProblems) problems.push_back(str("and ", count - kMostProblems, " more"));
  fail(folder_.string(), ": ", count, " weights do not fit the config: ", join(problems, "; "));
}

std::string WeightLoader::check_one(const Wanted& wanted) const {
  const StoredTensor* stored = files_.find(wanted.name);
  if (!stored) return str(in_quotes(wanted.name), " is missing");
  if (stored->shape != wanted.shape) {
    return str(in_quotes(wanted.name), " is [", join(stored->shape, ", "), "], expected [",
               join(wanted.shape, ", "), "]");
  }
  if (!usable(stored->dtype)) {
    return str(in_quotes(wanted.name), " is ", dtype_name(stored->dtype),
               "; weights may be f32, f16, bf16 or f64");
  }
  return {};
}

bool WeightLoader::in_place(const Wanted& wanted, DType stored, DType compute) {
  return wanted.matrix && (stored == compute || (compute == DType::kF32 && widened(stored)));
}

WeightFormat WeightLoader::format_of(const Wanted& wanted, const LoadOptions& options) {
  if (!wanted.matrix || options.weights == WeightFormat::kStored) return WeightFormat::kStored;
  return wanted.outer ? WeightFormat::kInt8 : options.weights;
}

DType WeightLoader::compute_dtype(const std::string& embedding, const LoadOptions& options) const {
  const DType stored = files_.find(embedding)->dtype;
  return options.dtype.value_or(stored == DType::kF64 ? DType::kF32 : stored);
}

WeightBytes WeightLoader::bytes(const std::string& embedding, const LoadOptions& options) const {
  check();
  const DType compute = compute_dtype(embedding, options);
  WeightBytes bytes;
  for (const Wanted& wanted : wanted_) {
    const StoredTensor& stored = *files_.find(wanted.name);
    const WeightFormat format = format_of(wanted, options);
    if (format != WeightFormat::kStored)
      bytes.converted += static_cast<size_t>(coded_bytes(format, wanted.shape[0], wanted.shape[1]));
    else if (in_place(wanted, stored.dtype, compute))
      bytes.mapped += stored.bytes;
    else
      bytes.converted += stored.bytes / dtype_size(stored.dtype) *
                         dtype_size(wanted.matrix ? compute : DType::kF32);
  }
  return bytes;
}

void WeightLoader::load(LoadedWeights& weights, const std::string& embedding,
                        const LoadOptions& options, Allocator& allocator) const {
  check();
  weights.stored_dtype = files_.find(embedding)->dtype;
  weights.format = options.weights;
  weights.owned.reserve(wanted_.size());
  const DType compute = compute_dtype(embedding, options);
  for (const Wanted& wanted : wanted_)
    if (format_of(wanted, options) == WeightFormat::kStored)
      load_floats(weights, wanted, compute, allocator);
  if (options.weights == WeightFormat::kStored) return;
  load_codes(weights, options, allocator);
  weights.files.reset();
}

void WeightLoader::load_floats(LoadedWeights& weights, const Wanted& wanted, DType compute,
                               Allocator& allocator) const {
  const StoredTensor& stored = *files_.find(wanted.name);
  const TensorView view = stored.view();
  if (in_place(wanted, stored.dtype, compute)) {
    wanted.matrix->stored = view;
    weights.mapped_bytes += stored.bytes;
    return;
  }
  weights.owned.push_back(clone(allocator, view, wanted.matrix ? compute : DType::kF32, "weights"));
  const TensorView& copy = weights.owned.back();
  weights.converted_bytes += static_cast<size_t>(copy.byte_size());
  if (wanted.matrix) wanted.matrix->stored = copy;
  if (wanted.vector) *wanted.vector = copy.as<const float>();
}

std::vector<NamedCodes> WeightLoader::coded_matrices(const LoadOptions& options) const {
  std::vector<NamedCodes> all;
  for (const Wanted& wanted : wanted_) {
    const WeightFormat format = format_of(wanted, options);
    if (format != WeightFormat::kStored)
      all.push_back({wanted.name,
                     static_cast<size_t>(coded_bytes(format, wanted.shape[0], wanted.shape[1]))});
  }
  return all;
}

// `codes` as coded_matrices() lists them, with their data.
void WeightLoader::use_codes(const LoadOptions& options,
                             const std::vector<NamedCodes>& codes) const {
  size_t next = 0;
  for (const Wanted& wanted : wanted_) {
    const WeightFormat format = format_of(wanted, options);
    if (format != WeightFormat::kStored)
      wanted.matrix->coded = {codes[next++].data, format, wanted.shape[0], wanted.shape[1]};
  }
}

void WeightLoader::load_codes(LoadedWeights& weights, const LoadOptions& options,
                              Allocator& allocator) const {
  std::vector<NamedCodes> codes = coded_matrices(options);
  const std::filesystem::path path = codes_path(folder_, options.weights);
  const std::string origin = options.keep_codes ? codes_origin(files_, options.weights) : "";
  const auto note = [&](const std::string& text) {
    if (options.note) options.note(text);
  };
  if (options.keep_codes) {
    std::string why;
    weights.kept_codes = open_codes(path, origin, codes, why);
    if (!why.empty()) note(str(path.string(), " is made anew: ", why));
  }
  if (weights.kept_codes) {
    for (NamedCodes& one : codes) {
      one.data = weights.kept_codes->find(one.name)->data;
      weights.mapped_bytes += one.bytes;
    }
    return use_codes(options, codes);
  }
  make_codes(weights, options, codes, allocator);
  use_codes(options, codes);
  if (!options.keep_codes) return;
  try {
    write_codes(path, origin, codes);
  } catch (const Error& error) {
    note(str("the codes are not kept: ", error.what()));
  }
}

void WeightLoader::make_codes(LoadedWeights& weights, const LoadOptions& options,
                              std::vector<NamedCodes>& codes, Allocator& allocator) const {
  ThreadPool threads(choose_threads(options.threads));
  weights.codes.reserve(codes.size());
  size_t next = 0;
  for (const Wanted& wanted : wanted_) {
    const WeightFormat format = format_of(wanted, options);
    if (format == WeightFormat::kStored) continue;
    NamedCodes& to = codes[next++];
    std::byte* data = weights.codes.emplace_back(allocator, to.bytes, "weights").data();
    const StoredTensor& stored = *files_.find(wanted.name);
    encode_matrix(stored.view(), format, data, threads);
    forget_pages({stored.data, stored.bytes});
    weights.converted_bytes += to.bytes;
    to.data = data;
  }
}

}  // namespace larder
