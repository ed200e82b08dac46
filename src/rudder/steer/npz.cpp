// .npz: a zip archive (APPNOTE.TXT of PKWARE) of .npy arrays (numpy.lib.format), stored or
// deflated. Sizes are those of the central directory; ZIP64, encryption and other methods are
// refused, and so are arrays of objects, which are pickles.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "rudder/steer/file_tensor.h"

namespace rudder::steer {
namespace {

constexpr size_t kEndRecordBytes = 22;
constexpr size_t kMaxCommentBytes = 65535;
constexpr uint32_t kEndRecord = 0x06054b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;

struct ZipEntry {
  std::string name;
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t crc = 0;
  uint32_t packed_bytes = 0;
  uint32_t bytes = 0;
  uint32_t header_at = 0;
};

Result<std::vector<ZipEntry>> read_directory(std::span<const std::byte> file_bytes,
                                             const std::string& file) {
  if (file_bytes.size() < kEndRecordBytes) return corrupt_file("this is no zip archive", file);
  size_t at = file_bytes.size() - kEndRecordBytes;
  const size_t lowest = at > kMaxCommentBytes ? at - kMaxCommentBytes : 0;
  while (ByteCursor(file_bytes, at).take<uint32_t>() != kEndRecord) {
    if (at == lowest) return corrupt_file("this is no zip archive", file);
    --at;
  }
  ByteCursor end(file_bytes, at + 4);
  const auto disk = end.take<uint16_t>();
  const auto directory_disk = end.take<uint16_t>();
  end.take<uint16_t>();
  const auto count = end.take<uint16_t>();
  const auto directory_bytes = end.take<uint32_t>();
  const auto directory_at = end.take<uint32_t>();
  if (disk != 0 || directory_disk != 0 || directory_at == 0xffffffffU || count == 0xffffU) {
    return fail(ErrorCode::kUnsupported, "an archive of several parts or of ZIP64", file);
  }
  if (uint64_t{directory_at} + directory_bytes > at) {
    return corrupt_file("the directory lies outside of the archive", file);
  }
  ByteCursor cursor(file_bytes.first(at), directory_at);
  std::vector<ZipEntry> entries;
  for (uint16_t i = 0; i < count; ++i) {
    const auto signature = cursor.take<uint32_t>();
    cursor.take_bytes(4);  // versions
    ZipEntry entry;
    entry.flags = cursor.take<uint16_t>();
    entry.method = cursor.take<uint16_t>();
    cursor.take_bytes(4);  // time
    entry.crc = cursor.take<uint32_t>();
    entry.packed_bytes = cursor.take<uint32_t>();
    entry.bytes = cursor.take<uint32_t>();
    const auto name_bytes = cursor.take<uint16_t>();
    const auto extra_bytes = cursor.take<uint16_t>();
    const auto comment_bytes = cursor.take<uint16_t>();
    cursor.take_bytes(8);  // disk, attributes
    entry.header_at = cursor.take<uint32_t>();
    entry.name = cursor.take_text(name_bytes);
    cursor.take_bytes(uint64_t{extra_bytes} + comment_bytes);
    if (cursor.failed() || signature != kDirectoryEntry) {
      return corrupt_file(fmt::format("entry {} of the directory is broken", i), file);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool inflate_into(std::span<const std::byte> packed, std::span<std::byte> out) {
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return false;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = inflate(&stream, Z_FINISH);
  const bool whole = status == Z_STREAM_END && stream.avail_in == 0 && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole;
}

using Bytes = std::shared_ptr<const std::vector<std::byte>>;

Result<Bytes> unpack(std::span<const std::byte> file_bytes, const ZipEntry& entry,
                     const std::string& file) {
  if ((entry.flags & 1) != 0 || (entry.method != kStored && entry.method != kDeflated)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("it is encrypted or compressed by method {}", entry.method),
                file + ": " + entry.name);
  }
  // A deflate stream makes at most 1032 bytes of one: what claims more is not worth the memory.
  if (entry.bytes / 1032 > entry.packed_bytes ||
      (entry.method == kStored && entry.bytes != entry.packed_bytes)) {
    return corrupt_file(fmt::format("{} bytes from {}", entry.bytes, entry.packed_bytes), file,
                        entry.name);
  }
  ByteCursor cursor(file_bytes, entry.header_at);
  const auto signature = cursor.take<uint32_t>();
  cursor.take_bytes(22);
  const auto name_bytes = cursor.take<uint16_t>();
  const auto extra_bytes = cursor.take<uint16_t>();
  const std::string_view name = cursor.take_text(name_bytes);
  cursor.take_bytes(extra_bytes);
  const auto packed = cursor.take_bytes(entry.packed_bytes);
  if (cursor.failed() || signature != kLocalHeader || name != entry.name) {
    return corrupt_file("its place in the archive is broken", file, entry.name);
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(entry.bytes);
  if (entry.method == kStored) {
    std::ranges::copy(packed, bytes->begin());
  } else if (!inflate_into(packed, *bytes)) {
    return corrupt_file("its compressed data is broken", file, entry.name);
  }
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(bytes->data()), static_cast<uInt>(bytes->size()));
  if (crc != entry.crc) return corrupt_file("its checksum is wrong", file, entry.name);
  return Bytes(std::move(bytes));
}

// The header of an array: a Python dict of three entries in any order, read without Python.
struct ArrayHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  bool read(ArrayHeader& header) {
    unsigned seen = 0;
    if (!take('{')) return false;
    while (!take('}')) {
      std::string key;
      if (!take_string(key) || !take(':')) return false;
      unsigned bit = 0;
      if (key == "descr") {
        bit = 1;
        if (!take_string(header.descr)) return false;
      } else if (key == "fortran_order") {
        bit = 2;
        header.fortran_order = take_word("True");
        if (!header.fortran_order && !take_word("False")) return false;
      } else if (key == "shape") {
        bit = 4;
        if (!take_shape(header.shape)) return false;
      }
      if (bit == 0 || (seen & bit) != 0) return false;
      seen |= bit;
      take(',');
    }
    skip_spaces();
    return seen == 7 && text_.empty();
  }

 private:
  void skip_spaces() {
    const size_t spaces = text_.find_first_not_of(" \n");
    text_.remove_prefix(std::min(spaces, text_.size()));
  }
  bool take(char c) {
    skip_spaces();
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool take_word(std::string_view word) {
    skip_spaces();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool take_string(std::string& out) {
    skip_spaces();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) return false;
    const size_t end = text_.find(text_[0], 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool take_shape(std::vector<uint64_t>& shape) {
    if (!take('(')) return false;
    while (!take(')')) {
      skip_spaces();
      uint64_t extent = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), extent);
      if (error != std::errc{}) return false;
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      shape.push_back(extent);
      if (!take(',') && !text_.starts_with(')')) return false;
    }
    return true;
  }

  std::string_view text_;
};

struct ArrayType {
  std::string_view descr;
  tensor::DType dtype;
};
constexpr std::array<ArrayType, 5> kArrayTypes = {{{"<f4", tensor::DType::kF32},
                                                   {"<f2", tensor::DType::kF16},
                                                   {"<f8", tensor::DType::kF64},
                                                   {"<i4", tensor::DType::kI32},
                                                   {"<i8", tensor::DType::kI64}}};

Result<FileTensor> read_array(Bytes bytes, std::string name, const std::string& file) {
  ByteCursor cursor(*bytes);
  const bool magic = cursor.take_text(6) == "\x93NUMPY";
  const auto major = cursor.take<uint8_t>();
  cursor.take<uint8_t>();
  const uint32_t length = major == 1 ? cursor.take<uint16_t>() : cursor.take<uint32_t>();
  const std::string_view text = cursor.take_text(length);
  ArrayHeader header;
  if (!magic || major < 1 || major > 3 || cursor.failed() || !HeaderReader(text).read(header)) {
    return corrupt_file("this is no .npy array", file, name);
  }
  const auto* type = std::ranges::find(kArrayTypes, header.descr, &ArrayType::descr);
  if (type == kArrayTypes.end() || header.fortran_order) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("dtype '{}'{}: little-endian f2, f4, f8, i4 or i8 in C order is needed",
                            header.descr, header.fortran_order ? " in Fortran order" : ""),
                file + ": " + name);
  }
  uint64_t needed = 0;
  if (!checked_bytes(header.shape, tensor::dtype_bytes(type->dtype), needed) ||
      needed != cursor.left()) {
    return corrupt_file("its size is not that of its shape", file, name);
  }
  FileTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = type->dtype;
  tensor.shape = std::move(header.shape);
  tensor.bytes = cursor.take_bytes(needed);
  tensor.owned = std::move(bytes);
  return tensor;
}

}  // namespace

Result<FileTensors> read_npz(std::span<const std::byte> bytes, const std::string& file) {
  RUDDER_TRY(const std::vector<ZipEntry> entries, read_directory(bytes, file));
  FileTensors result;
  for (const ZipEntry& entry : entries) {
    constexpr std::string_view kSuffix = ".npy";
    if (!entry.name.ends_with(kSuffix)) {
      return corrupt_file("only .npy arrays are expected", file, entry.name);
    }
    std::string name = entry.name.substr(0, entry.name.size() - kSuffix.size());
    const bool twice =
        std::ranges::find(result.tensors, name, &FileTensor::name) != result.tensors.end();
    if (twice) return corrupt_file("it is in the archive twice", file, name);
    RUDDER_TRY(Bytes unpacked, unpack(bytes, entry, file));
    RUDDER_TRY(FileTensor tensor, read_array(std::move(unpacked), std::move(name), file));
    result.tensors.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace rudder::steer
