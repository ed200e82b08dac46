// What the stages of a pipeline on GPUs have of each other: messages between two of them, whoever
// comes late; marks by which a stage that works is told from one that stands still; and what is
// refused. Where there are not two GPUs all but the refusals is skipped by name.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "rudder/cuda/cuda_ops.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/peer_message.h"

namespace rudder::cuda {
namespace {

using std::chrono::milliseconds;
using tensor::DType;
using tensor::View;

template <typename T>
T made(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().to_string());
  return std::move(*result);
}

// A stream of a device that stands still until it is released: what waits for it waits.
class Blocked {
 public:
  explicit Blocked(int32_t device) : message_(made(PeerMessage::make(device, 64))) {
    use_device(device);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    const auto stand = [](void* released) {
      while (!*static_cast<std::atomic<bool>*>(released)) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    };
    cudaLaunchHostFunc(stream_, stand, &released_);
    message_->post(stream_);
  }
  ~Blocked() {
    release();
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  ops::Message& message() { return *message_; }
  void release() { released_ = true; }

 private:
  const std::unique_ptr<PeerMessage> message_;
  std::atomic<bool> released_ = false;
  cudaStream_t stream_ = nullptr;
};

class StageMessages : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = int64_t{32} << 20;

  void SetUp() override {
    load_kernels_early();
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
      GTEST_SKIP() << "needs 2 GPUs, " << count << " visible";
    }
    const std::vector<int32_t> devices = {0, 1};
    stages_ = made(make_cuda_stages({}, devices));
    for (const auto& stage : stages_) {
      device_.push_back(made(stage->allocate(DType::kU8, {kBytes})));
      staging_.push_back(made(stage->allocate_staging(kBytes)));
    }
  }

  // Enqueues on stage 0: `bytes` of the staging memory become the message.
  void send(ops::Message& message, int64_t bytes) {
    stages_[0]->copy_in(device_[0].rows(0, bytes), staging_[0].rows(0, bytes));
    stages_[0]->copy(message.memory().rows(0, bytes), device_[0].rows(0, bytes));
    stages_[0]->post(message);
  }
  // Enqueues on stage 1: the message comes to its staging memory.
  void receive(ops::Message& message, int64_t bytes) {
    stages_[1]->await(message);
    stages_[1]->copy(device_[1].rows(0, bytes), message.memory().rows(0, bytes));
    stages_[1]->copy_out(staging_[1].rows(0, bytes), device_[1].rows(0, bytes));
  }
  void finish(size_t stage) {
    const auto event = stages_[stage]->make_event();
    stages_[stage]->record(*event);
    const Result<void> done = event->wait();
    ASSERT_TRUE(done) << done.error().to_string();
  }
  void fill(int64_t bytes) {
    auto* const to = static_cast<uint8_t*>(staging_[0].data);
    const auto start = static_cast<uint8_t>(random_());
    for (int64_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(start + i * 7);
  }
  bool has_come(int64_t bytes) const {
    return std::memcmp(staging_[0].data, staging_[1].data, static_cast<size_t>(bytes)) == 0;
  }

  std::vector<std::unique_ptr<ops::Ops>> stages_;
  std::vector<View> device_;
  std::vector<View> staging_;
  std::mt19937 random_{7};
};

TEST_F(StageMessages, BytesComeOfEverySize) {
  const auto message = made(stages_[0]->make_message(kBytes));
  EXPECT_TRUE(message->has_arrived()) << "nothing is posted";
  for (const int64_t bytes : {int64_t{4}, int64_t{60}, int64_t{4096}, int64_t{524'288}, kBytes}) {
    for (int round = 0; round < 20; ++round) {
      fill(bytes);
      send(*message, bytes);
      receive(*message, bytes);
      finish(1);
      ASSERT_TRUE(has_come(bytes)) << bytes << " bytes, round " << round;
      EXPECT_TRUE(message->has_arrived());
    }
  }
}

// The receiver has enqueued all that it will before the sender's device has begun.
TEST_F(StageMessages, AReceiverWaitsForALateSender) {
  constexpr int64_t kSome = 1 << 20;
  const auto message = made(stages_[0]->make_message(kSome));
  for (int round = 0; round < 10; ++round) {
    fill(kSome);
    Blocked blocked(0);
    stages_[0]->await(blocked.message());
    send(*message, kSome);
    receive(*message, kSome);
    std::memset(staging_[1].data, 0, kSome);
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_FALSE(message->has_arrived());
    blocked.release();
    finish(1);
    ASSERT_TRUE(has_come(kSome)) << "round " << round;
  }
}

TEST_F(StageMessages, AMessageOutlivesItsSender) {
  fill(4096);
  const auto message = made(stages_[0]->make_message(4096));
  send(*message, 4096);
  finish(0);
  const View sent = staging_[0];
  std::vector<uint8_t> kept(4096);
  std::memcpy(kept.data(), sent.data, kept.size());
  stages_[0].reset();
  receive(*message, 4096);
  finish(1);
  EXPECT_EQ(std::memcmp(kept.data(), staging_[1].data, kept.size()), 0);
}

// Progress is what others tell a long step from one that never ends by.
TEST_F(StageMessages, ProgressIsThatOfTheDeviceNotOfItsHost) {
  const auto message = made(stages_[1]->make_message(64));
  finish(1);
  const uint64_t before = stages_[1]->progress();
  {
    Blocked blocked(1);
    stages_[1]->await(blocked.message());
    stages_[1]->post(*message);
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_EQ(stages_[1]->progress(), before) << "the device stands still";
    EXPECT_FALSE(message->has_arrived());
    blocked.release();
    finish(1);
  }
  EXPECT_EQ(stages_[1]->progress(), before + 1);
  EXPECT_TRUE(message->has_arrived());
  EXPECT_EQ(made(make_cuda_ops({}))->progress(), 0u) << "a device alone marks nothing";
}

TEST(StageDevices, ThatCannotBeStagesAreRefusedByName) {
  const std::vector<int32_t> one_twice = {0, 0};
  const auto shared = make_cuda_stages({}, one_twice);
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().message, "GPU 0 cannot be two ranks: each needs one of its own");
  EXPECT_EQ(shared.error().where, "pipeline-parallel-size");
  const std::vector<int32_t> missing = {0, 100};
  const auto none = make_cuda_stages({}, missing);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(none.error().message.find("rank 100 needs a GPU of its own"), std::string::npos);
  EXPECT_EQ(none.error().where, "pipeline-parallel-size");
}

}  // namespace
}  // namespace rudder::cuda
