#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/tensor/safetensors.h"

namespace larder {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr int kMaxDepth = 64;

// What the header says of one tensor, before it is checked against the data.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

// Reads the header event by event, so that a hostile one of a hundred megabytes costs time and
// memory in proportion to its length and no more. Fields that the format does not know are skipped.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const std::string& file, Header& header) : file_(file), header_(header) {}

  bool null() override { return scalar("null"); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return scalar(str(value)); }
  bool number_float(double /*value*/, const std::string& text) override { return scalar(text); }
  bool number_unsigned(uint64_t value) override {
    if (std::vector<uint64_t>* list = open_list()) {
      list->push_back(value);
      return true;
    }
    return scalar(str(value));
  }
  bool string(std::string& value) override {
    if (depth_ == 2 && in_metadata_) return add_metadata(value);
    if (depth_ == 2 && field_ == Field::kDType) {
      header_.entries.back().dtype = std::move(value);
      return true;
    }
    return scalar(in_quotes(value));
  }
  bool binary(Json::binary_t& /*value*/) override { return false; }

  bool start_object(size_t /*size*/) override {
    if (depth_ >= 2) scalar("an object");
    enter();
    return true;
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool start_array(size_t /*size*/) override {
    if (depth_ == 2 && !in_metadata_ && field_ == Field::kShape) {
      header_.entries.back().shape.emplace();
    } else if (depth_ == 2 && !in_metadata_ && field_ == Field::kOffsets) {
      header_.entries.back().offsets.emplace();
    } else {
      scalar("a list");
    }
    enter();
    return true;
  }

  bool key(std::string& key) override {
    if (depth_ == 1) begin_entry(key);
    if (depth_ == 2) begin_field(key);
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    fail(file_, ": the header is not valid JSON in UTF-8 (at its byte ", position, ")");
  }

 private:
  enum class Field { kOther, kDType, kShape, kOffsets };

  void enter() {
    if (++depth_ > kMaxDepth)
      fail(file_, ": the header is nested deeper than ", kMaxDepth, " levels");
  }

  bool leave() {
    --depth_;
    return true;
  }

  std::vector<uint64_t>* open_list() {
    if (depth_ != 3 || in_metadata_) return nullptr;
    if (field_ == Field::kShape) return &*header_.entries.back().shape;
    if (field_ == Field::kOffsets) return &*header_.entries.back().offsets;
    return nullptr;
  }

  void begin_entry(std::string& name) {
    if (!names_.insert(name).second)
      fail(file_, ": the name ", in_quotes(name), " stands twice in the header");
    in_metadata_ = name == "__metadata__";
    seen_ = {};
    if (!in_metadata_) header_.entries.push_back({std::move(name), {}, {}, {}});
  }

  void begin_field(std::string& key) {
    if (in_metadata_) {
      metadata_key_ = std::move(key);
      return;
    }
    field_ = key == "dtype"          ? Field::kDType
             : key == "shape"        ? Field::kShape
             : key == "data_offsets" ? Field::kOffsets
                                     : Field::kOther;
    if (field_ != Field::kOther && std::exchange(seen_[static_cast<size_t>(field_)], true))
      fail(file_, ": tensor ", current(), ": ", key, " stands twice");
  }

  bool add_metadata(std::string& value) {
    if (!header_.metadata.emplace(metadata_key_, std::move(value)).second)
      fail(file_, ": __metadata__ names ", in_quotes(metadata_key_), " twice");
    return true;
  }

  // A value that stands where only a value of another type may, or that nobody reads.
  bool scalar(const std::string& found) const {
    if (in_metadata_ && depth_ == 1) fail(file_, ": __metadata__ must be an object, found ", found);
    if (in_metadata_ && depth_ > 1) {
      fail(file_, ": __metadata__ ", in_quotes(metadata_key_), " must be a string, found ", found);
    }
    if (depth_ == 1) fail(file_, ": tensor ", current(), " must be an object, found ", found);
    if (depth_ > 3 || depth_ == 0) return true;
    if (field_ == Field::kDType)
      fail(file_, ": tensor ", current(), ": dtype must be a string, found ", found);
    if (field_ != Field::kOther) {
      fail(file_, ": tensor ", current(), ": ", field_ == Field::kShape ? "shape" : "data_offsets",
           " must be a list of whole numbers from 0, found ", found);
    }
    return true;
  }

  std::string current() const { return in_quotes(header_.entries.back().name); }

  const std::string& file_;
  Header& header_;
  std::set<std::string, std::less<>> names_;
  std::string metadata_key_;
  std::array<bool, 4> seen_{};
  Field field_ = Field::kOther;
  bool in_metadata_ = false;
  int depth_ = 0;
};

Header parse_header(std::string_view text, const std::string& file) {
  if (!text.starts_with('{')) fail(file, ": the header does not begin with {");
  // The parser takes a zero byte for the end of its input.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail(file, ": the header holds a zero byte (at its byte ", zero + 1, ")");
  Header header;
  HeaderReader reader(file, header);
  Json::sax_parse(text, &reader);
  return header;
}

// The length in the first eight bytes, checked against what the file holds.
uint64_t header_length(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 8)
    fail(file, ": ", bytes.size(), " bytes are too few for a safetensors file (at least 10)");
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<uint64_t>(bytes[i]);
  if (length > kMaxHeader)
    fail(file, ": a header of ", length, " bytes is above the limit of ", kMaxHeader);
  if (length > bytes.size() - 8) {
    fail(file, ": a header of ", length, " bytes, but only ", bytes.size() - 8,
         " follow; the file is cut short or is no safetensors file");
  }
  return length;
}

// Bytes that dtype and shape need. Zero dimensions do not excuse a product that overflows.
int64_t needed_bytes(const Entry& entry, DType dtype, const std::string& where) {
  int64_t nonzero = static_cast<int64_t>(dtype_size(dtype));
  bool empty = false;
  for (const uint64_t dim : *entry.shape) {
    empty = empty || dim == 0;
    if (dim == 0) continue;
    if (dim > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(nonzero, static_cast<int64_t>(dim), &nonzero)) {
      fail(where, "shape [", join(*entry.shape, ", "), "] does not fit in 64 bits");
    }
  }
  return empty ? 0 : nonzero;
}

StoredTensor check_entry(Entry& entry, std::span<const std::byte> data, const std::string& file) {
  const std::string where = str(file, ": tensor ", in_quotes(entry.name), ": ");
  if (!entry.dtype) fail(where, "dtype is missing");
  if (!entry.shape) fail(where, "shape is missing");
  if (!entry.offsets) fail(where, "data_offsets is missing");
  const auto dtype = dtype_from_safetensors(*entry.dtype);
  if (!dtype) fail(where, "unknown dtype ", in_quotes(*entry.dtype));
  if (entry.offsets->size() != 2)
    fail(where, "data_offsets has ", entry.offsets->size(), " numbers, not 2");
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end) fail(where, "data_offsets [", begin, ", ", end, "] run backwards");
  if (end > data.size()) {
    fail(where, "data_offsets [", begin, ", ", end, "] leave the data, which has ", data.size(),
         " bytes; the file is cut short or damaged");
  }
  const int64_t needed = needed_bytes(entry, *dtype, where);
  if (static_cast<uint64_t>(needed) != end - begin) {
    fail(where, "dtype ", *entry.dtype, " and shape [", join(*entry.shape, ", "), "] need ", needed,
         " bytes, but data_offsets [", begin, ", ", end, "] span ", end - begin);
  }
  StoredTensor tensor{std::move(entry.name), *dtype, {}, data.data() + begin, end - begin};
  tensor.shape.assign(entry.shape->begin(), entry.shape->end());
  return tensor;
}

// Tensors in order of offset must cover the data without a hole or an overlap.
void check_cover(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data,
                 const std::string& file) {
  const std::byte* at = data.data();
  for (const StoredTensor& tensor : tensors) {
    if (tensor.data != at) {
      fail(file, ": tensor ", in_quotes(tensor.name), " begins at data byte ",
           tensor.data - data.data(),
           tensor.data > at ? ", leaving a hole after byte " : ", overlapping what ends at byte ",
           at - data.data());
    }
    at += tensor.bytes;
  }
  const auto covered = static_cast<size_t>(at - data.data());
  if (covered != data.size()) {
    fail(file, ": the tensors cover ", covered, " bytes of data, but the file holds ", data.size());
  }
}

}  // namespace

TensorView StoredTensor::view() const {
  if (shape.size() > static_cast<size_t>(kMaxRank)) {
    fail("tensor ", in_quotes(name), " has ", shape.size(), " axes (at most ", kMaxRank,
         " are supported)");
  }
  return TensorView::contiguous(const_cast<std::byte*>(data), dtype, Shape(shape));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  const std::string file = path.string();
  const auto bytes = file_.bytes();
  const uint64_t length = header_length(bytes, file);
  Header header = parse_header({reinterpret_cast<const char*>(bytes.data()) + 8, length}, file);
  const auto data = bytes.subspan(8 + length);
  tensors_.reserve(header.entries.size());
  for (Entry& entry : header.entries) tensors_.push_back(check_entry(entry, data, file));
  std::ranges::sort(tensors_, [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.data, a.bytes) < std::pair(b.data, b.bytes);
  });
  check_cover(tensors_, data, file);
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
  metadata_ = std::move(header.metadata);
}

std::span<const std::byte> SafetensorsFile::header() const {
  const auto bytes = file_.bytes();
  const std::byte* data = tensors_.empty() ? bytes.data() + bytes.size() : tensors_.front().data;
  return bytes.first(static_cast<size_t>(data - bytes.data()));
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace larder
