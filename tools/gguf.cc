#include "tools/gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "larder/base/error.h"
#include "larder/tensor/shape.h"

namespace larder::tools {
namespace {

constexpr uint32_t kVersion = 3;
constexpr size_t kMaxName = 65535;  // of a key or a tensor
constexpr uint32_t kMaxDims = 4;

// Types of metadata values, as numbered by the format.
enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// The least that a value of this type takes; 0 for a type that does not exist.
size_t smallest(ValueType type) {
  constexpr std::array<size_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  const auto index = static_cast<size_t>(type);
  return index < kBytes.size() ? kBytes[index] : 0;
}

bool is_float(ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; }

// Takes values off the front of the file; never past its end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  size_t position() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

  template <class T>
  T take(std::string_view what) {
    if (left() < sizeof(T)) fail(name_, ": the file ends within ", what);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string_view text(std::string_view what, size_t limit) {
    const auto length = take<uint64_t>(what);
    if (length > left()) {
      fail(name_, ": ", what, " has a length of ", length, " bytes, but only ", left(),
           " are left in the file");
    }
    if (length > limit) fail(name_, ": ", what, " of ", length, " bytes (at most ", limit, ")");
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }

  // A number of things that follow, each of at least `least` bytes.
  size_t count(uint64_t value, size_t least, std::string_view what) const {
    if (value > left() / std::max<size_t>(least, 1)) {
      fail(name_, ": ", value, " ", what, " cannot fit in the ", left(), " bytes that are left");
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

class MetadataReader {
 public:
  MetadataReader(Cursor& cursor, const std::string& name) : cursor_(cursor), name_(name) {}

  GgufValue value(std::string_view key) {
    where_ = str("metadata ", in_quotes(key));
    const ValueType type = take_type();
    if (type == ValueType::kArray) return array();
    if (type == ValueType::kString) return string();
    if (type == ValueType::kBool) return boolean();
    if (is_float(type)) return number(type);
    return integer(type);
  }

 private:
  ValueType take_type() {
    const auto type = cursor_.take<uint32_t>(where_);
    if (smallest(static_cast<ValueType>(type)) == 0)
      fail(name_, ": ", where_, " has the unknown value type ", type);
    return static_cast<ValueType>(type);
  }

  std::string_view string() { return cursor_.text(where_, SIZE_MAX); }

  bool boolean() {
    const auto byte = cursor_.take<uint8_t>(where_);
    if (byte > 1) fail(name_, ": ", where_, " must be true or false, found the byte ", int{byte});
    return byte != 0;
  }

  double number(ValueType type) {
    return type == ValueType::kF32 ? static_cast<double>(cursor_.take<float>(where_))
                                   : cursor_.take<double>(where_);
  }

  int64_t integer(ValueType type) {
    switch (type) {
      case ValueType::kU8:
        return cursor_.take<uint8_t>(where_);
      case ValueType::kI8:
        return cursor_.take<int8_t>(where_);
      case ValueType::kU16:
        return cursor_.take<uint16_t>(where_);
      case ValueType::kI16:
        return cursor_.take<int16_t>(where_);
      case ValueType::kU32:
        return cursor_.take<uint32_t>(where_);
      case ValueType::kI32:
        return cursor_.take<int32_t>(where_);
      case ValueType::kU64: {
        const auto value = cursor_.take<uint64_t>(where_);
        if (value > static_cast<uint64_t>(INT64_MAX)) fail(name_, ": ", where_, " is ", value);
        return static_cast<int64_t>(value);
      }
      default:
        return cursor_.take<int64_t>(where_);
    }
  }

  template <class List, class Read>
  List list(size_t count, Read read) {
    List result;
    result.reserve(count);
    for (size_t i = 0; i < count; ++i) result.push_back(read());
    return result;
  }

  GgufValue array() {
    const ValueType type = take_type();
    if (type == ValueType::kArray) fail(name_, ": ", where_, " is a list of lists");
    const auto length = cursor_.take<uint64_t>(where_);
    const size_t count = cursor_.count(length, smallest(type), str("values of ", where_));
    if (type == ValueType::kString) return list<GgufStrings>(count, [&] { return string(); });
    if (is_float(type)) return list<GgufNumbers>(count, [&] { return number(type); });
    if (type == ValueType::kBool)
      return list<GgufIntegers>(count, [&] { return int64_t{boolean()}; });
    return list<GgufIntegers>(count, [&] { return integer(type); });
  }

  Cursor& cursor_;
  const std::string& name_;
  std::string where_;
};

struct Counts {
  size_t tensors, metadata;
};

Counts read_start(Cursor& cursor, const std::string& name) {
  if (cursor.take<uint32_t>("its first four bytes") != 0x46554747u)
    fail(name, ": this is no GGUF file (it does not begin with GGUF)");
  const auto version = cursor.take<uint32_t>("the version");
  if (version == __builtin_bswap32(kVersion))
    fail_as(ErrorKind::kUnsupported, name, ": a big-endian GGUF file is not supported");
  if (version != kVersion) {
    fail_as(ErrorKind::kUnsupported, name, ": GGUF version ", version,
            " is not supported (only version ", kVersion, ")");
  }
  const auto tensors = cursor.take<uint64_t>("the number of tensors");
  const auto metadata = cursor.take<uint64_t>("the number of metadata keys");
  // The least that a key with its value, and a tensor's entry, take.
  return {cursor.count(tensors, 24, "tensors"), cursor.count(metadata, 13, "metadata keys")};
}

// The types that exist beside those that larder reads, so that a refusal can name them.
std::string type_name(uint32_t type) {
  constexpr std::array<std::string_view, 31> kNames = {
      "F32",     "F16",    "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
      "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
      "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
      "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};
  if (type >= kNames.size() || kNames[type].empty()) return str("number ", type);
  return std::string(kNames[type]);
}

GgufType checked_type(uint32_t type, const std::string& where) {
  for (const GgufType known : {GgufType::kF32, GgufType::kF16, GgufType::kBF16, GgufType::kQ80,
                               GgufType::kQ40, GgufType::kQ41}) {
    if (type == static_cast<uint32_t>(known)) return known;
  }
  fail_as(ErrorKind::kUnsupported, where, "type ", type_name(type),
          " is not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_1 are)");
}

// A tensor's entry; `offset` receives where its data begin, counted from the start of all data.
GgufTensor read_entry(Cursor& cursor, const std::string& name, uint64_t& offset) {
  GgufTensor tensor;
  tensor.name = std::string(cursor.text("the name of a tensor", kMaxName));
  const std::string what = str("tensor ", in_quotes(tensor.name));
  const std::string where = str(name, ": ", what, ": ");
  const auto dims = cursor.take<uint32_t>(what);
  if (dims > kMaxDims) fail(where, dims, " dimensions (at most ", kMaxDims, ")");
  for (uint32_t i = 0; i < dims; ++i) {
    const auto dim = cursor.take<uint64_t>(what);
    if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX))
      fail(where, "dimension ", dim, " is out of range");
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  tensor.type = checked_type(cursor.take<uint32_t>(what), where);
  offset = cursor.take<uint64_t>(what);
  const GgufBlock block = gguf_block(tensor.type);
  const int64_t row = dims == 0 ? 1 : tensor.shape.back();
  if (row % block.elements != 0) {
    fail(where, "rows of ", row, " elements are no whole number of ", gguf_type_name(tensor.type),
         " blocks of ", block.elements);
  }
  try {
    const int64_t count = Shape(tensor.shape).count();
    tensor.bytes = static_cast<size_t>(checked_mul(count / block.elements, block.bytes));
  } catch (const Error& error) {
    fail(where, error.what());
  }
  return tensor;
}

size_t read_alignment(const GgufFile& file) {
  const int64_t alignment = file.integer("general.alignment").value_or(32);
  if (alignment < 8 || alignment > (1 << 20) || alignment % 8 != 0) {
    fail(file.name(), ": general.alignment ", alignment,
         " must be a multiple of 8 between 8 and 1048576");
  }
  return static_cast<size_t>(alignment);
}

// Gives every tensor its bytes, after checking that they lie in the file, aligned and apart.
void place(std::vector<GgufTensor>& tensors, const std::vector<uint64_t>& offsets,
           std::span<const std::byte> data, size_t alignment, const std::string& name) {
  std::map<uint64_t, const GgufTensor*> by_offset;
  for (size_t i = 0; i < tensors.size(); ++i) {
    GgufTensor& tensor = tensors[i];
    const std::string where = str(name, ": tensor ", in_quotes(tensor.name), ": ");
    if (offsets[i] % alignment != 0)
      fail(where, "offset ", offsets[i], " is no multiple of the alignment ", alignment);
    if (offsets[i] > data.size() || tensor.bytes > data.size() - offsets[i]) {
      fail(where, tensor.bytes, " bytes at offset ", offsets[i], " leave the data, which has ",
           data.size(), " bytes; the file is cut short or damaged");
    }
    tensor.data = data.data() + offsets[i];
    if (const auto [other, fresh] = by_offset.emplace(offsets[i], &tensor); !fresh)
      fail(where, "lies where tensor ", in_quotes(other->second->name), " lies");
  }
  const GgufTensor* before = nullptr;
  for (const auto& [offset, tensor] : by_offset) {
    if (before && before->data + before->bytes > tensor->data) {
      fail(name, ": tensor ", in_quotes(tensor->name), " overlaps tensor ",
           in_quotes(before->name));
    }
    before = tensor;
  }
}

}  // namespace

GgufBlock gguf_block(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return {1, 4};
    case GgufType::kF16:
    case GgufType::kBF16:
      return {1, 2};
    case GgufType::kQ40:
      return {32, 18};
    case GgufType::kQ41:
      return {32, 20};
    default:
      return {32, 34};  // Q8_0
  }
}

std::string_view gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return "F32";
    case GgufType::kF16:
      return "F16";
    case GgufType::kBF16:
      return "BF16";
    case GgufType::kQ40:
      return "Q4_0";
    case GgufType::kQ41:
      return "Q4_1";
    default:
      return "Q8_0";
  }
}

GgufFile::GgufFile(const std::filesystem::path& path) : name_(path.string()), file_(path) {
  Cursor cursor(file_.bytes(), name_);
  const Counts counts = read_start(cursor, name_);
  MetadataReader reader(cursor, name_);
  for (size_t i = 0; i < counts.metadata; ++i) {
    const std::string key(cursor.text("a metadata key", kMaxName));
    if (!metadata_.emplace(key, reader.value(key)).second)
      fail(name_, ": metadata ", in_quotes(key), " stands twice");
  }
  std::vector<uint64_t> offsets(counts.tensors);
  for (size_t i = 0; i < counts.tensors; ++i) {
    tensors_.push_back(read_entry(cursor, name_, offsets[i]));
    if (!by_name_.emplace(tensors_.back().name, i).second)
      fail(name_, ": tensor ", in_quotes(tensors_.back().name), " stands twice");
  }
  const size_t alignment = read_alignment(*this);
  const size_t start = (cursor.position() + alignment - 1) / alignment * alignment;
  const auto bytes = file_.bytes();
  place(tensors_, offsets, bytes.subspan(std::min(start, bytes.size())), alignment, name_);
}

const GgufTensor* GgufFile::find(std::string_view tensor) const {
  const auto it = by_name_.find(tensor);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

template <class T>
const T* GgufFile::get(std::string_view key, std::string_view expected) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  if (!value) fail(name_, ": metadata ", in_quotes(key), " must be ", expected);
  return value;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const int64_t* value = get<int64_t>(key, "a whole number");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it != metadata_.end() && std::holds_alternative<int64_t>(it->second))
    return static_cast<double>(std::get<int64_t>(it->second));
  const double* value = get<double>(key, "a number");
  if (value && !std::isfinite(*value))
    fail(name_, ": metadata ", in_quotes(key), " is not a finite number");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const bool* value = get<bool>(key, "true or false");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<std::string> GgufFile::string(std::string_view key) const {
  const std::string_view* value = get<std::string_view>(key, "a string");
  return value ? std::optional(std::string(*value)) : std::nullopt;
}

const GgufIntegers* GgufFile::integers(std::string_view key) const {
  return get<GgufIntegers>(key, "a list of whole numbers");
}

const GgufNumbers* GgufFile::numbers(std::string_view key) const {
  return get<GgufNumbers>(key, "a list of numbers");
}

const GgufStrings* GgufFile::strings(std::string_view key) const {
  return get<GgufStrings>(key, "a list of strings");
}

}  // namespace larder::tools
