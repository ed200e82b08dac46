// A quantised module of safetensors (GPTQ, AWQ, compressed-tensors, bitsandbytes, HQQ, fp8 in
// blocks) is refused by config.json or a tensor, or read in the format that the memory budget was
// told, every row of it. The first line of the input is config.json, the rest is model.safetensors.
#include <span>
#include <string>
#include <vector>

#include "require.h"
#include "rudder/model/quantised/low_bits.h"
#include "rudder/ops/stored_row.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::fuzz {
namespace {

using model::StoredAs;

constexpr int64_t kRows = 32;
constexpr int64_t kInputs = 128;
constexpr std::initializer_list<ErrorCode> kLowBitRefusals = {
    ErrorCode::kCorruptFile, ErrorCode::kUnsupported, ErrorCode::kInvalidArgument,
    ErrorCode::kNotFound, ErrorCode::kTooLarge};

void require_low_bits(const weights::Checkpoint& checkpoint,
                      const model::Quantisation::Group& group) {
  model::ModuleTensors::Names taken;
  const model::ModuleTensors tensors(checkpoint, "model.layers.0.mlp.down_proj", &taken);
  if (!model::has_low_bits(tensors, group)) return;
  const auto format = model::low_bit_format(tensors, group);
  if (!format) return require_error(format.error(), kLowBitRefusals);
  for (const bool reads : {false, true}) {
    model::Memory memory;
    const auto part = model::read_low_bits(tensors, group, kRows, kInputs, reads, memory);
    if (!part) return require_error(part.error(), kLowBitRefusals);
    for (const std::string& name : taken) {
      RUDDER_CHECK(checkpoint.find(name) != nullptr, "{} is not there", name);
    }
    if (!reads) continue;
    RUDDER_CHECK(part->format == *format, "{} is not {}", ops::format_name(part->format),
                 ops::format_name(*format));
    RUDDER_CHECK(part->out() == kRows && part->in() == kInputs);
    std::vector<float> row(kInputs);
    for (int64_t r = 0; r < kRows; ++r) ops::read_stored_row(*part, r, row.data());
  }
}

}  // namespace

void fuzz_low_bits(std::string_view input) {
  const CpuBound bound(10);
  const size_t line = input.find('\n');
  if (line == std::string_view::npos) return;
  // Tensors lie in memory as a file is mapped.
  const std::string config(input.substr(0, line));
  const std::string file(input.substr(line + 1));
  const auto checkpoint =
      weights::Checkpoint::open_memory({{"config.json", std::as_bytes(std::span(config))},
                                        {"model.safetensors", std::as_bytes(std::span(file))}});
  if (!checkpoint) return require_error(checkpoint.error(), kLowBitRefusals);
  const auto quantisation = model::read_quantisation(**checkpoint);
  if (!quantisation)
    return require_error(quantisation.error(), kLowBitRefusals, "memory/config.json");
  const auto group = quantisation->group_of("model.layers.0.mlp.down_proj");
  if (!group) return require_error(group.error(), kLowBitRefusals);
  if (*group == nullptr) return;
  if ((*group)->as == StoredAs::kWide || (*group)->as == StoredAs::kFp8Rows) return;
  require_low_bits(**checkpoint, **group);
}

}  // namespace rudder::fuzz
