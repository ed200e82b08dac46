#include "rudder/weights/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <numeric>

namespace rudder::weights {
namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr std::string_view kMetadataKey = "__metadata__";

// Receives the events of Boost.JSON's parser and accepts exactly the shape of a header, so that no
// document tree is built and duplicate keys are seen. on_* return false to stop; `problem` says
// why.
class HeaderHandler {
 public:
  static constexpr size_t max_object_size = SIZE_MAX;
  static constexpr size_t max_array_size = SIZE_MAX;
  static constexpr size_t max_key_size = SIZE_MAX;
  static constexpr size_t max_string_size = SIZE_MAX;
  using ec_t = boost::system::error_code;
  using text_t = boost::json::string_view;

  std::vector<TensorEntry> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string problem;
  std::string culprit;  // the tensor that the problem is about

  bool on_document_begin(ec_t&) { return true; }
  bool on_document_end(ec_t&) { return true; }

  bool on_object_begin(ec_t& ec) {
    if (state_ == State::kStart) return enter(State::kTop);
    if (state_ == State::kTop)
      return enter(key_ == kMetadataKey ? State::kMetadata : begin_tensor());
    return stop(ec, "an object stands where none belongs");
  }

  bool on_object_end(size_t, ec_t& ec) {
    if (state_ == State::kTensor && !end_tensor(ec)) return false;
    return enter(state_ == State::kTop ? State::kStart : State::kTop);
  }

  bool on_array_begin(ec_t& ec) {
    if (state_ == State::kTensor && field_ == Field::kShape) return enter(State::kShape);
    if (state_ == State::kTensor && field_ == Field::kOffsets) return enter(State::kOffsets);
    return stop(ec, "a list stands where none belongs");
  }

  bool on_array_end(size_t, ec_t& ec) {
    if (state_ == State::kOffsets && num_offsets_ != 2) {
      return stop(ec, "data_offsets does not hold two numbers");
    }
    return enter(State::kTensor);
  }

  bool on_key_part(text_t part, size_t, ec_t& ec) { return append(text_, part, ec); }
  bool on_key(text_t part, size_t, ec_t& ec) {
    if (!append(text_, part, ec)) return false;
    std::string key;
    key.swap(text_);
    if (state_ == State::kTop) {
      if (key == kMetadataKey && std::exchange(has_metadata_, true)) {
        return stop(ec, "__metadata__ is given twice");
      }
      if (tensors.size() >= kMaxTensors) return stop(ec, "there are too many tensors");
      key_ = std::move(key);
      return true;
    }
    if (state_ == State::kMetadata) {
      metadata.emplace_back(std::move(key), "");
      return true;
    }
    return begin_field(key, ec);
  }

  bool on_string_part(text_t part, size_t, ec_t& ec) { return append(text_, part, ec); }
  bool on_string(text_t part, size_t, ec_t& ec) {
    if (!append(text_, part, ec)) return false;
    std::string value;
    value.swap(text_);
    if (state_ == State::kMetadata) {
      metadata.back().second = std::move(value);
      return true;
    }
    if (state_ != State::kTensor || field_ != Field::kType) {
      return stop(ec, "a string stands where none belongs");
    }
    const Result<tensor::DType> dtype = tensor::parse_dtype(value);
    if (!dtype) return stop(ec, fmt::format("the dtype '{:.32}' is not known", value));
    tensors.back().dtype = *dtype;
    return true;
  }

  bool on_number_part(text_t part, ec_t&) {
    number_.append(part.data(), part.size());
    return true;
  }
  bool on_int64(int64_t value, text_t part, ec_t& ec) {
    number_.append(part.data(), part.size());
    const bool negative = number_.starts_with('-');
    number_.clear();
    if (negative) return stop(ec, "a number is negative");
    return on_count(static_cast<uint64_t>(value), ec);
  }
  bool on_uint64(uint64_t value, text_t, ec_t& ec) {
    number_.clear();
    return on_count(value, ec);
  }
  bool on_double(double, text_t, ec_t& ec) { return stop(ec, "a number is not a 64-bit integer"); }
  bool on_bool(bool, ec_t& ec) { return stop(ec, "a boolean stands where none belongs"); }
  bool on_null(ec_t& ec) { return stop(ec, "a null stands where none belongs"); }
  bool on_comment_part(text_t, ec_t& ec) { return stop(ec, "a comment stands in it"); }
  bool on_comment(text_t, ec_t& ec) { return stop(ec, "a comment stands in it"); }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum class Field { kType, kShape, kOffsets };

  bool enter(State state) {
    state_ = state;
    return true;
  }

  bool stop(ec_t& ec, std::string why) {
    problem = std::move(why);
    if (state_ >= State::kTensor) culprit = tensors.back().name;
    ec = boost::json::error::exception;
    return false;
  }

  bool append(std::string& text, text_t part, ec_t& ec) {
    if (state_ != State::kMetadata && text.size() + part.size() > kMaxNameBytes) {
      return stop(ec, fmt::format("a name is longer than {} bytes", kMaxNameBytes));
    }
    text.append(part.data(), part.size());
    return true;
  }

  State begin_tensor() {
    tensors.emplace_back().name = std::move(key_);
    key_.clear();
    fields_seen_ = 0;
    num_offsets_ = 0;
    return State::kTensor;
  }

  bool begin_field(const std::string& key, ec_t& ec) {
    if (key == "dtype") {
      field_ = Field::kType;
    } else if (key == "shape") {
      field_ = Field::kShape;
    } else if (key == "data_offsets") {
      field_ = Field::kOffsets;
    } else {
      return stop(ec, fmt::format("the field '{:.32}' is not known", key));
    }
    const unsigned bit = 1U << static_cast<unsigned>(field_);
    if ((fields_seen_ & bit) != 0) return stop(ec, fmt::format("'{}' is given twice", key));
    fields_seen_ |= bit;
    return true;
  }

  bool end_tensor(ec_t& ec) {
    static constexpr const char* kNames[] = {"dtype", "shape", "data_offsets"};
    for (unsigned i = 0; i < 3; ++i) {
      if ((fields_seen_ & (1U << i)) == 0) {
        return stop(ec, fmt::format("the field '{}' is missing", kNames[i]));
      }
    }
    return true;
  }

  bool on_count(uint64_t value, ec_t& ec) {
    if (state_ == State::kShape) {
      TensorShape& shape = tensors.back().shape;
      if (shape.rank == kMaxRank) {
        return stop(ec, fmt::format("the shape has more than {} dimensions", kMaxRank));
      }
      shape.dims[shape.rank++] = value;
      return true;
    }
    if (state_ == State::kOffsets) {
      if (num_offsets_ == 2) return stop(ec, "data_offsets does not hold two numbers");
      (num_offsets_++ == 0 ? tensors.back().begin : tensors.back().end) = value;
      return true;
    }
    return stop(ec, "a number stands where none belongs");
  }

  State state_ = State::kStart;
  Field field_ = Field::kType;
  unsigned fields_seen_ = 0;
  int num_offsets_ = 0;
  bool has_metadata_ = false;
  std::string key_;     // the name of the entry that comes next
  std::string text_;    // a key or string that arrives in parts
  std::string number_;  // digits that arrive in parts
};

tl::unexpected<Error> corrupt(const std::string& file, const std::string& tensor,
                              std::string message) {
  std::string where = tensor.empty() ? file : fmt::format("{}: tensor '{}'", file, tensor);
  return fail(ErrorCode::kCorruptFile, std::move(message), std::move(where));
}

// Sorts by name and refuses a name given twice.
Result<void> check_names(Safetensors& header, const std::string& file) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  const auto same = [](const auto& a, const auto& b) { return a.name == b.name; };
  const auto twice = std::adjacent_find(header.tensors.begin(), header.tensors.end(), same);
  if (twice != header.tensors.end()) return corrupt(file, twice->name, "it is given twice");
  std::sort(header.metadata.begin(), header.metadata.end());
  for (size_t i = 1; i < header.metadata.size(); ++i) {
    if (header.metadata[i].first == header.metadata[i - 1].first) {
      return corrupt(
          file, "",
          fmt::format("the metadata key '{:.64}' is given twice", header.metadata[i].first));
    }
  }
  return {};
}

// Each tensor's offsets equal its size, and together they cover the data section.
Result<void> check_cover(const Safetensors& header, uint64_t data_bytes, const std::string& file) {
  std::vector<uint32_t> order(header.tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const TensorEntry& x = header.tensors[a];
    const TensorEntry& y = header.tensors[b];
    return std::pair(x.begin, x.end) < std::pair(y.begin, y.end);
  });
  uint64_t covered = 0;
  for (const uint32_t i : order) {
    const TensorEntry& t = header.tensors[i];
    uint64_t bytes = 0;
    if (!checked_tensor_bytes(t.shape, tensor::dtype_bytes(t.dtype), bytes)) {
      return corrupt(file, t.name,
                     fmt::format("the size of shape {} overflows", t.shape.to_string()));
    }
    if (t.begin > t.end || t.end - t.begin != bytes) {
      return corrupt(file, t.name,
                     fmt::format("data_offsets [{}, {}] do not hold the {} bytes of {} {}", t.begin,
                                 t.end, bytes, tensor::dtype_name(t.dtype), t.shape.to_string()));
    }
    if (t.begin != covered) {
      return corrupt(
          file, t.name,
          fmt::format("it begins at byte {} of the data, the tensor before it ends at {}", t.begin,
                      covered));
    }
    covered = t.end;
  }
  if (covered != data_bytes) {
    return corrupt(
        file, "",
        fmt::format("the tensors take {} bytes of data, the file holds {}", covered, data_bytes));
  }
  return {};
}

Result<uint64_t> header_length(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 8) {
    return corrupt(file, "", fmt::format("{} bytes are too few for a header", bytes.size()));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<uint64_t>(bytes[i]);
  if (length > kMaxHeaderBytes) {
    return corrupt(
        file, "",
        fmt::format("the header length {} is above the limit of {}", length, kMaxHeaderBytes));
  }
  if (length > bytes.size() - 8) {
    return corrupt(
        file, "",
        fmt::format("the header length {} is beyond the file's {} bytes", length, bytes.size()));
  }
  return length;
}

}  // namespace

TensorShape TensorShape::of(std::initializer_list<uint64_t> dims) {
  TensorShape shape;
  for (const uint64_t d : dims) shape.dims.at(shape.rank++) = d;
  return shape;
}

std::string TensorShape::to_string() const {
  return fmt::format("[{}]", fmt::join(extents(), ", "));
}

bool checked_tensor_bytes(const TensorShape& shape, uint64_t unit, uint64_t& bytes) {
  bytes = unit;
  bool overflow = false;
  for (const uint64_t d : shape.extents()) {
    overflow = __builtin_mul_overflow(bytes, d, &bytes) || overflow;
  }
  return !overflow;
}

const TensorEntry* Safetensors::find(std::string_view name) const {
  const auto before = [](const TensorEntry& t, std::string_view wanted) { return t.name < wanted; };
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name, before);
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

Result<Safetensors> parse_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  RUDDER_TRY(const uint64_t length, header_length(bytes, file));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  if (!text.starts_with('{')) return corrupt(file, "", "the header does not begin with '{'");
  const size_t last = text.find_last_not_of(' ');
  if (text[last] != '}') return corrupt(file, "", "the header does not end with '}' and spaces");

  boost::json::parse_options options;
  options.max_depth = 4;
  boost::json::basic_parser<HeaderHandler> parser(options);
  HeaderHandler& handler = parser.handler();
  boost::system::error_code ec;
  const size_t used = parser.write_some(false, text.data(), last + 1, ec);
  if (!handler.problem.empty()) return corrupt(file, handler.culprit, std::move(handler.problem));
  if (ec || used != last + 1) {
    const std::string why = ec ? ec.message() : "text follows the object";
    return corrupt(file, "", fmt::format("the header is not JSON near byte {}: {}", used, why));
  }
  Safetensors out;
  out.tensors = std::move(handler.tensors);
  out.metadata = std::move(handler.metadata);
  out.data = bytes.subspan(8 + length);
  RUDDER_TRY_VOID(check_names(out, file));
  RUDDER_TRY_VOID(check_cover(out, out.data.size(), file));
  return out;
}

}  // namespace rudder::weights
