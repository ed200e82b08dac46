// What the loaders refuse, and how they say it. Each case changes one thing of a dictionary that
// loads.
#include "rudder/steer/features/load_dictionary.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "rudder/base/json.h"
#include "rudder/steer/file_tensor.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::steer {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

const std::string kPublishedFolder = std::string(RUDDER_SOURCE_DIR) + "/tests/dictionaries/";

struct NewTensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::vector<float> values;
};

class LoadDictionary : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("rudder_dictionary_{}_{}", ::getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A fresh copy of a published folder.
  void copy(std::string_view name) {
    fs::remove_all(folder_);
    fs::create_directories(folder_.parent_path());
    fs::copy(kPublishedFolder + std::string(name), folder_, fs::copy_options::recursive);
  }
  std::string file(std::string_view name) const { return (folder_ / name).string(); }

  void edit(std::string_view name, const std::function<void(json::object&)>& change) const {
    const auto text = weights::read_text_file(file(name), 1 << 20);
    json::object object = parse_json(*text, "test")->as_object();
    change(object);
    write_text(name, to_json_text(object));
  }
  void write_text(std::string_view name, std::string_view text) const {
    std::ofstream(file(name), std::ios::binary) << text;
  }

  // Rewrites a safetensors file with its tensors changed; all become f32.
  void edit_tensors(std::string_view name,
                    const std::function<void(std::vector<NewTensor>&)>& change) const {
    std::vector<NewTensor> tensors;
    {
      const auto mapped = weights::MappedFile::open(file(name));
      const auto read = read_safetensors((*mapped)->bytes(), "test");
      ASSERT_TRUE(read) << read.error().to_string();
      for (const FileTensor& tensor : read->tensors) {
        NewTensor& copied = tensors.emplace_back();
        copied.name = tensor.name;
        copied.shape = tensor.shape;
        ASSERT_EQ(tensor.dtype, tensor::DType::kF32);
        copied.values.resize(tensor.bytes.size() / sizeof(float));
        std::memcpy(copied.values.data(), tensor.bytes.data(), tensor.bytes.size());
      }
    }
    change(tensors);
    std::vector<weights::TensorDecl> decls;
    for (const NewTensor& tensor : tensors) {
      weights::TensorShape shape;
      for (const uint64_t extent : tensor.shape) shape.dims[shape.rank++] = extent;
      decls.push_back({tensor.name, tensor::DType::kF32, shape});
    }
    const auto writer = weights::SafetensorsWriter::create(file(name), decls, {});
    ASSERT_TRUE(writer) << writer.error().to_string();
    for (size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_TRUE((*writer)->write(i, 0, std::as_bytes(std::span(tensors[i].values))));
    }
    ASSERT_TRUE((*writer)->finish(false));
  }
  static NewTensor& named(std::vector<NewTensor>& tensors, std::string_view name) {
    return *std::ranges::find(tensors, name, &NewTensor::name);
  }

  void expect_refused(std::string_view message, std::string_view where,
                      ErrorCode code = ErrorCode::kInvalidArgument,
                      std::string_view points = "") const {
    const auto set = load_dictionary(folder_.string(), points);
    ASSERT_FALSE(set) << message;
    EXPECT_NE(set.error().message.find(message), std::string::npos) << set.error().to_string();
    EXPECT_EQ(set.error().where, where.empty() ? folder_.string() : file(where))
        << set.error().to_string();
    EXPECT_EQ(set.error().code, code) << set.error().to_string();
  }

  fs::path folder_;
};

constexpr std::string_view kWeights = "sae_weights.safetensors";

TEST_F(LoadDictionary, TensorsThatAreNotWhatTheConfigurationSays) {
  const auto tensor_case = [&](const std::function<void(std::vector<NewTensor>&)>& change,
                               std::string_view message, std::string_view where) {
    copy("saelens_jumprelu");
    edit_tensors(kWeights, change);
    expect_refused(message, fmt::format("{}: {}", kWeights, where));
  };
  tensor_case(
      [](auto& tensors) {
        std::erase_if(tensors, [](const NewTensor& t) { return t.name == "threshold"; });
      },
      "the tensor is missing", "threshold");
  tensor_case(
      [](auto& tensors) {
        tensors.push_back({"W_gate", {1}, {0}});
      },
      "no dictionary of this kind has such a tensor", "W_gate");
  tensor_case(
      [](auto& tensors) {
        named(tensors, "W_dec").shape = {8, 20};
      },
      "shape [8, 20]", "W_dec");
  tensor_case(
      [](auto& tensors) {
        named(tensors, "b_enc").shape = {19};
        named(tensors, "b_enc").values.resize(19);
      },
      "shape [19]: [20] is needed", "b_enc");
  tensor_case(
      [](auto& tensors) {
        named(tensors, "W_enc").shape = {8, 5, 4};
      },
      "shape [8, 5, 4]: 2 extents are needed", "W_enc");
  tensor_case([](auto& tensors) { named(tensors, "W_dec").values[7] = 2e6f; }, "element 7 is",
              "W_dec");
  tensor_case(
      [](auto& tensors) {
        named(tensors, "threshold").values[3] = std::numeric_limits<float>::quiet_NaN();
      },
      "element 3 is nan", "threshold");
}

TEST_F(LoadDictionary, FieldsOfSaeLensThatItDoesNotCompute) {
  const auto field_case = [&](std::string_view folder,
                              const std::function<void(json::object&)>& change,
                              std::string_view message, std::string_view where,
                              ErrorCode code = ErrorCode::kInvalidArgument) {
    copy(folder);
    edit("cfg.json", change);
    expect_refused(message, where.empty() ? "cfg.json" : fmt::format("cfg.json: {}", where), code);
  };
  field_case(
      "saelens_standard", [](auto& c) { c["architecture"] = "temporal"; },
      "'temporal' is not supported", "architecture");
  field_case(
      "saelens_standard", [](auto& c) { c["activation_fn_str"] = "tanh-relu"; },
      "'tanh-relu' is not supported", "activation_fn_str");
  field_case(
      "saelens_standard", [](auto& c) { c["d_sae"] = 21; }, "21, the tensors have 20", "d_sae");
  field_case(
      "saelens_standard", [](auto& c) { c["d_in"] = "8"; }, "a whole number above 0", "d_in");
  field_case(
      "saelens_standard", [](auto& c) { c["normalize_activations"] = "expected_average_only_in"; },
      "fold_activation_norm_scaling_factor", "normalize_activations");
  field_case(
      "saelens_standard", [](auto& c) { c["apply_b_dec_to_input"] = 1; }, "true or false",
      "apply_b_dec_to_input");
  field_case(
      "saelens_standard", [](auto& c) { c["hook_head_index"] = 2; }, "of one head",
      "hook_head_index");
  field_case(
      "saelens_standard", [](auto& c) { c["reshape_activations"] = "hook_z"; },
      "'hook_z' is not supported", "reshape_activations");
  field_case(
      "saelens_standard",
      [](auto& c) { c["metadata"].as_object()["hook_name"] = "blocks.1.ln2.hook_normalized"; },
      "without the norm's gain", "hook_name");
  field_case(
      "saelens_transcoder", [](auto& c) { c["metadata"].as_object().erase("hook_name_out"); },
      "a transcoder needs it", "hook_name_out");
  field_case(
      "saelens_topk", [](auto& c) { c["k"] = 0; }, "a whole number above 0", "k");
  for (const char* wide : {"float32", "torch.float32", "float64"}) {
    copy("saelens_standard");
    edit("cfg.json", [&](auto& c) { c["dtype"] = wide; });
    EXPECT_TRUE(load_dictionary(folder_.string(), "")) << wide;
  }
  copy("saelens_standard");
  edit("cfg.json", [](auto& c) { c["dtype"] = "bfloat16"; });
  expect_refused("dtype F32, the configuration says 'bfloat16'",
                 fmt::format("{}: W_enc", kWeights));
  copy("saelens_before_6");
  expect_refused("the file says resid_pre.1, the command says resid_post.1", "cfg.json: hook_name",
                 ErrorCode::kInvalidArgument, "resid_post.1");
}

// SAELens and Gemma Scope 2 name the heads side by side in their own ways.
TEST_F(LoadDictionary, DictionariesOfAttnZ) {
  const auto expect_read = [&](tap::Point point) {
    const auto set = load_dictionary(folder_.string(), "");
    ASSERT_TRUE(set) << set.error().to_string();
    for (const auto& dictionary : set->layers) {
      EXPECT_EQ(dictionary->read, point);
      EXPECT_EQ(dictionary->write, point);
    }
  };
  for (const char* reshaped : {"hook_z", "none"}) {
    copy("saelens_standard");
    edit("cfg.json", [&](auto& c) {
      c["metadata"].as_object()["hook_name"] = "blocks.1.attn.hook_z";
      c["reshape_activations"] = reshaped;
    });
    expect_read({1, tap::Site::kAttnZ});
  }
  copy("gemma_scope_2");
  edit("config.json", [](auto& c) {
    for (const char* side : {"hf_hook_point_in", "hf_hook_point_out"}) {
      c[side] = "model.layers.2.self_attn.o_proj.input";
    }
  });
  expect_read({2, tap::Site::kAttnZ});
}

TEST_F(LoadDictionary, GemmaScopeNeedsToBeToldWhereItReads) {
  copy("gemma_scope");
  expect_refused("as in @resid_post.20", "");
  for (const char* points : {"resid_post", "resid_post.2,mlp_out", "resid.2", "resid_post.2,"}) {
    const auto set = load_dictionary(folder_.string(), points);
    ASSERT_FALSE(set) << points;
    EXPECT_EQ(set.error().where, "site") << points;
  }
  EXPECT_TRUE(load_dictionary(file("params.npz"), "resid_post.2"));
  // The published transcoders read another row than that, and their files do not say so.
  expect_refused("@blocks.2.ln2.hook_normalized,mlp_out.2", "", ErrorCode::kInvalidArgument,
                 "mlp_in.2,mlp_out.2");
  const auto set = load_dictionary(folder_.string(), "blocks.2.ln2.hook_normalized,mlp_out.2");
  ASSERT_TRUE(set) << set.error().to_string();
  EXPECT_EQ(set->layers[0]->input_gain, features::InputGain::kRemoved);
  EXPECT_EQ(set->layers[0]->read, (tap::Point{2, tap::Site::kMlpIn}));
}

TEST_F(LoadDictionary, GemmaScope2) {
  copy("gemma_scope_2");
  edit("config.json", [](auto& c) { c["architecture"] = "top_k"; });
  expect_refused("'top_k' is not supported", "config.json: architecture");
  copy("gemma_scope_2");
  edit("config.json", [](auto& c) { c["affine_connection"] = true; });
  expect_refused("the tensor is missing", "params.safetensors: affine_skip_connection");
  copy("gemma_scope_2_transcoder");
  edit("config.json", [](auto& c) { c["affine_connection"] = false; });
  expect_refused("no dictionary of this kind", "params.safetensors: affine_skip_connection");
  // A decoder to a layer in front of its own.
  copy("gemma_scope_2_clt");
  edit_tensors("params_layer_1.safetensors",
               [](auto& tensors) { named(tensors, "w_dec").values[0] = 1; });
  expect_refused("writes to layers in front of it", "params_layer_1.safetensors: w_dec");
  copy("gemma_scope_2_clt");
  fs::remove(file("params_layer_2.safetensors"));
  expect_refused("decoders to 3 layers; there are files of 2", "params_layer_0.safetensors: w_dec");
  copy("gemma_scope_2_clt");
  expect_refused("no site may be named", "", ErrorCode::kInvalidArgument, "mlp_in.0,mlp_out.0");
}

TEST_F(LoadDictionary, LlamaScopeAndSparsify) {
  copy("llama_scope");
  edit("hyperparams.json", [](auto& c) { c["use_glu_encoder"] = true; });
  expect_refused("true is not supported", "hyperparams.json: use_glu_encoder");
  copy("llama_scope");
  edit("hyperparams.json", [](auto& c) { c["act_fn"] = "batchtopk"; });
  expect_refused("'batchtopk' is not supported", "hyperparams.json: act_fn");
  copy("llama_scope");
  edit("hyperparams.json", [](auto& c) { c["norm_activation"] = "token-wise"; });
  expect_refused("'token-wise' is not supported", "hyperparams.json: norm_activation");
  copy("llama_scope");
  edit("hyperparams.json",
       [](auto& c) { c["dataset_average_activation_norm"].as_object()["in"] = -1; });
  expect_refused("a number above 0", "hyperparams.json: dataset_average_activation_norm: in");
  copy("sparsify/layers.1");
  edit("cfg.json", [](auto& c) { c["activation"] = "groupmax"; });
  expect_refused("'groupmax' is not supported", "cfg.json: activation");
  copy("sparsify/layers.1");
  expect_refused("behind the path", "");  // the folder's name says nothing here
}

TEST_F(LoadDictionary, FileAndCommandAgreeOnTheGain) {
  copy("manifest_topk_without_gain");
  expect_refused("the file says mlp_in.1 without the norm's gain, the command says mlp_in.1",
                 "dictionary.json: read", ErrorCode::kInvalidArgument, "mlp_in.1,mlp_out.1");
  edit("dictionary.json", [](auto& c) { c["read"] = "mlp_in.1"; });
  expect_refused("the file says mlp_in.1, the command says mlp_in.1 without the norm's gain",
                 "dictionary.json: read", ErrorCode::kInvalidArgument,
                 "blocks.1.ln2.hook_normalized,mlp_out.1");
}

TEST_F(LoadDictionary, CircuitTracer) {
  copy("circuit_tracer");
  write_text("config.yaml", "model_name: x\nfeature_input_hook: mlp.hook_in\n");
  expect_refused("a text is needed", "config.yaml: feature_output_hook");
  write_text("config.yaml", "model_name: &anchor x\n");
  expect_refused("\"key: value\"", "config.yaml: line 1");
  write_text("config.yaml", "a: 1\na: 2\n");
  expect_refused("a key of its own", "config.yaml: line 2");
  write_text("config.yaml",
             "feature_input_hook: ln1.hook_normalized\nfeature_output_hook: hook_mlp_out\n");
  expect_refused("without the norm's gain", "config.yaml");
  write_text("config.yaml",
             "feature_input_hook: ln2.hook_normalized\nfeature_output_hook: ln2.hook_normalized\n");
  expect_refused("without the norm's gain", "config.yaml");
  copy("circuit_tracer");
  edit_tensors("layer_1.safetensors", [](auto& tensors) {
    named(tensors, "activation_function.threshold").values[2] = -0.5f;
  });
  expect_refused("a threshold below 0", "layer_1.safetensors: activation_function.threshold",
                 ErrorCode::kUnsupported);
}

TEST_F(LoadDictionary, Manifests) {
  const auto field_case = [&](std::string_view folder,
                              const std::function<void(json::object&)>& change,
                              std::string_view message, std::string_view where) {
    copy(folder);
    edit("dictionary.json", change);
    expect_refused(message, where);
  };
  field_case(
      "manifest_relu", [](auto& c) { c["treshold"] = 1; }, "unknown; the fields are",
      "dictionary.json: treshold");
  field_case(
      "manifest_relu", [](auto& c) { c["format"] = "x"; }, "rudder-dictionary",
      "dictionary.json: format");
  field_case(
      "manifest_relu", [](auto& c) { c["activation"] = "tanh"; },
      "'tanh': one of relu, jumprelu, batchtopk, topk, gated", "dictionary.json: activation");
  field_case(
      "manifest_relu", [](auto& c) { c["k"] = 3; }, "only topk has it", "dictionary.json: k");
  field_case(
      "manifest_relu", [](auto& c) { c["weights"] = "../weights.safetensors"; },
      "of the same folder", "dictionary.json: weights");
  field_case(
      "manifest_relu", [](auto& c) { c["read"] = "resid_post"; }, "is no site of a layer",
      "dictionary.json: read");
  field_case(
      "manifest_batchtopk",
      [](auto& c) {
        c["read"] = "mlp_in.1";
        c["write"] = "mlp_out.1";
      },
      "a transcoder has none", "dictionary.json: norm");
  field_case(
      "manifest_relu", [](auto& c) { c["activation"] = "jumprelu"; }, "the tensor is missing",
      "weights.safetensors: threshold");
  copy("manifest_relu");
  write_text("dictionary.json", "[1]");
  expect_refused("a JSON object is needed", "dictionary.json", ErrorCode::kCorruptFile);
}

TEST_F(LoadDictionary, PicklesAndUnknownFolders) {
  fs::create_directories(folder_);
  expect_refused("no dictionary in a known format", "", ErrorCode::kUnsupported);
  write_text("ae.pt", "anything");
  expect_refused("torch.load('ae.pt', map_location='cpu', weights_only=True)", "ae.pt",
                 ErrorCode::kUnsupported);
  const auto pickle = load_dictionary(file("ae.pt"), "");
  ASSERT_FALSE(pickle);
  EXPECT_EQ(pickle.error().code, ErrorCode::kUnsupported);
  const auto absent = load_dictionary(file("absent"), "");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
}

// Files with bytes changed, cut off or grown: an Error or a dictionary, never more.
TEST_F(LoadDictionary, DamagedFiles) {
  std::mt19937_64 engine(11);
  const auto below = [&](size_t bound) { return static_cast<size_t>(engine() % bound); };
  constexpr std::string_view kFolders[] = {"saelens_gated", "gemma_scope", "gemma_scope_2_clt",
                                           "circuit_tracer", "manifest_batchtopk"};
  int refused = 0;
  constexpr int kRounds = 150;
  for (int round = 0; round < kRounds; ++round) {
    copy(kFolders[below(std::size(kFolders))]);
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    const fs::path& chosen = files[below(files.size())];
    std::ifstream in(chosen, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    for (size_t i = 1 + below(4); i > 0 && !bytes.empty(); --i) {
      // Most of what can be wrong stands at the begin of a file, or at its end.
      const size_t near = std::min<size_t>(bytes.size(), 400);
      const size_t at = below(2) == 0 ? below(near) : bytes.size() - 1 - below(near);
      switch (below(4)) {
        case 0:
          bytes.resize(at);
          break;
        case 1:
          bytes.insert(at, 1 + below(8), static_cast<char>(engine()));
          break;
        default:
          bytes[at] = static_cast<char>(engine());
      }
    }
    std::ofstream(chosen, std::ios::binary) << bytes;
    const auto set =
        load_dictionary(folder_.string(), fs::exists(file("params.npz")) ? "resid_post.1" : "");
    refused += set ? 0 : 1;
  }
  EXPECT_GT(refused, kRounds / 2);
}

}  // namespace
}  // namespace rudder::steer
