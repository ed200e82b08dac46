#include "rudder/remote/told_adapters.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace rudder::remote {
namespace {

constexpr size_t kPartBytes = size_t{16} << 20;
constexpr int64_t kMostElements = int64_t{1} << 40;

tl::unexpected<Error> no_adapter() {
  return fail(ErrorCode::kIo, "what the front told of an adapter is none");
}

MatrixText matrix_text(const tensor::View& matrix, const std::vector<std::byte>& memory) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  return {.begin = static_cast<uint64_t>(data - memory.data()),
          .dtype = matrix.dtype,
          .rows = matrix.shape[0],
          .columns = matrix.shape[1]};
}

AdapterText adapter_text(const lora::NamedAdapter& named) {
  const lora::Adapter& adapter = *named.adapter;
  AdapterText text{.name = named.name,
                   .path = named.path,
                   .key = adapter.key,
                   .max_rank = adapter.max_rank,
                   .bytes = adapter.memory.size(),
                   .deltas = {}};
  for (const lora::Delta& delta : adapter.deltas) {
    text.deltas.push_back({.target = delta.target,
                           .scale = delta.scale,
                           .a = matrix_text(delta.a, adapter.memory),
                           .b = matrix_text(delta.b, adapter.memory),
                           .gains = delta.gains,
                           .offsets = delta.offsets});
  }
  return text;
}

Result<tensor::View> view_of(const MatrixText& text, std::vector<std::byte>& memory) {
  if (text.rows < 0 || text.columns < 0 || text.rows > kMostElements / (text.columns + 1) ||
      text.begin > memory.size()) {
    return no_adapter();
  }
  const tensor::View view{
      .data = memory.data() + text.begin, .dtype = text.dtype, .shape = {text.rows, text.columns}};
  if (view.bytes() > memory.size() - text.begin) return no_adapter();
  return view;
}

}  // namespace

void ToldAdapters::tell(const std::shared_ptr<const lora::NamedAdapter>& adapter,
                        const Send& send) {
  const lora::Adapter& content = *adapter->adapter;
  const bool is_new = told_.insert_or_assign(content.key, adapter->adapter).second;
  if (!is_new) return;
  send(adapter_text(*adapter));
  for (size_t begin = 0; begin < content.memory.size(); begin += kPartBytes) {
    const size_t count = std::min(kPartBytes, content.memory.size() - begin);
    const auto* data = reinterpret_cast<const char*>(content.memory.data() + begin);
    send(AdapterBytes{.key = content.key, .bytes = {data, count}});
  }
}

void ToldAdapters::forget_unused(const Send& send) {
  std::erase_if(told_, [&](const auto& one) {
    if (!one.second.expired()) return false;
    send(ForgetAdapter{one.first});
    return true;
  });
}

Result<void> HeldAdapters::begin(AdapterText text) {
  if (coming_) return no_adapter();
  coming_ = std::move(text);
  memory_.clear();
  return coming_->bytes == 0 ? finish() : Result<void>();
}

Result<void> HeldAdapters::append(const AdapterBytes& part) {
  if (!coming_ || part.key != coming_->key || part.bytes.empty() ||
      part.bytes.size() > coming_->bytes - memory_.size()) {
    return no_adapter();
  }
  const auto* data = reinterpret_cast<const std::byte*>(part.bytes.data());
  memory_.insert(memory_.end(), data, data + part.bytes.size());
  return memory_.size() == coming_->bytes ? finish() : Result<void>();
}

Result<void> HeldAdapters::finish() {
  AdapterText text = std::move(*coming_);
  coming_.reset();
  auto adapter = std::make_shared<lora::Adapter>();
  adapter->key = text.key;
  adapter->max_rank = text.max_rank;
  adapter->memory = std::exchange(memory_, {});
  for (DeltaText& delta : text.deltas) {
    RUDDER_TRY(const tensor::View a, view_of(delta.a, adapter->memory));
    RUDDER_TRY(const tensor::View b, view_of(delta.b, adapter->memory));
    adapter->deltas.push_back({.target = delta.target,
                               .scale = delta.scale,
                               .a = a,
                               .b = b,
                               .gains = std::move(delta.gains),
                               .offsets = std::move(delta.offsets)});
  }
  held_[text.key] = std::make_shared<const lora::NamedAdapter>(
      std::move(text.name), std::move(text.path), std::move(adapter));
  return {};
}

Result<std::shared_ptr<const lora::NamedAdapter>> HeldAdapters::find(
    const lora::AdapterKey& key) const {
  const auto found = held_.find(key);
  if (found != held_.end()) return found->second;
  return fail(ErrorCode::kInternal, "the engine process was not told of the request's adapter",
              "model");
}

}  // namespace rudder::remote
