#include "rudder/hub/file_selection.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rudder::hub {
namespace {

std::vector<RemoteFile> listing_of(const std::vector<std::string>& paths) {
  std::vector<RemoteFile> files;
  files.reserve(paths.size());
  for (const std::string& path : paths) files.push_back({.path = path, .size = 1});
  return files;
}

std::vector<std::string> paths_of(const std::vector<RemoteFile>& files) {
  std::vector<std::string> paths;
  paths.reserve(files.size());
  for (const RemoteFile& file : files) paths.push_back(file.path);
  return paths;
}

using Paths = std::vector<std::string>;

TEST(FileSelection, TakesWhatAServerNeedsAndNoPickleOrCode) {
  const auto listing = listing_of({"README.md",
                                   ".gitattributes",
                                   "config.json",
                                   "generation_config.json",
                                   "tokenizer.json",
                                   "tokenizer_config.json",
                                   "chat_template.jinja",
                                   "additional_chat_templates/tools.jinja",
                                   "additional_chat_templates/x/y.jinja",
                                   "merges.txt",
                                   "vocab.json",
                                   "tokenizer.model",
                                   "pytorch_model.bin",
                                   "pytorch_model.bin.index.json",
                                   "model.safetensors",
                                   "modeling_x.py",
                                   "1_Pooling/config.json",
                                   "modules.json",
                                   "onnx/config.json",
                                   "onnx/model.onnx",
                                   "x.gguf",
                                   "training_args.pt",
                                   "tf_model.h5",
                                   "optimizer.pkl",
                                   "runs/events.json"});
  EXPECT_EQ(paths_of(select_texts(listing)),
            (Paths{"1_Pooling/config.json", "additional_chat_templates/tools.jinja",
                   "chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
                   "modules.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                   "vocab.json"}));
  EXPECT_EQ(find_weight_index(listing), nullptr);
  EXPECT_EQ(paths_of(*select_weights(listing, "", "o/n")), (Paths{"model.safetensors"}));
}

TEST(FileSelection, TakesTheShardsThatTheIndexLists) {
  const auto listing =
      listing_of({"consolidated.safetensors", "model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                  "model.fp16-00001-of-00002.safetensors"});
  ASSERT_NE(find_weight_index(listing), nullptr);
  EXPECT_EQ(paths_of(*select_weights(listing, R"({"weight_map":{
      "b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors",
      "c":"model-00002-of-00002.safetensors"}})",
                                     "o/n")),
            (Paths{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}));
  for (const char* index :
       {R"({"weight_map":{"a":"model-00003-of-00002.safetensors"}})", R"({"weight_map":{}})",
        R"({"weight_map":{"a":"../model.safetensors"}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"pytorch_model.bin"}})", R"({"weight_map":{"a":"/x.safetensors"}})",
        "{}", "", "[]"}) {
    const auto weights = select_weights(listing, index, "o/n");
    ASSERT_FALSE(weights.has_value()) << index;
    EXPECT_EQ(weights.error().code, ErrorCode::kCorruptFile);
  }
}

TEST(FileSelection, OneFileOfWeightsGoesBeforeAnIndex) {
  const auto listing =
      listing_of({"model.safetensors", "model.safetensors.index.json", "config.json"});
  EXPECT_EQ(find_weight_index(listing), nullptr);
  EXPECT_EQ(paths_of(select_texts(listing)), (Paths{"config.json"}));
}

TEST(FileSelection, TakesHeadsUnderNamesOfTheirOwn) {
  EXPECT_EQ(paths_of(*select_weights(listing_of({"config.json", "medusa_lm_head.safetensors"}), "",
                                     "o/n")),
            (Paths{"medusa_lm_head.safetensors"}));
}

TEST(FileSelection, SaysWhatThereIsInPlaceOfWeights) {
  const auto why = [](const Paths& paths) {
    const auto weights = select_weights(listing_of(paths), "", "o/n");
    EXPECT_FALSE(weights.has_value());
    return weights ? std::string() : weights.error().message;
  };
  EXPECT_NE(why({"pytorch_model.bin"}).find("pickled"), std::string::npos);
  EXPECT_NE(why({"m-Q4_K_M.gguf", "imatrix.bin"}).find("GGUF"), std::string::npos);
  EXPECT_NE(why({"README.md"}).find("no weights"), std::string::npos);
  EXPECT_NE(why({"unet/model.safetensors"}).find("folders"), std::string::npos);
}

TEST(FileSelection, AGgufFileByItsQuantisation) {
  const auto listing = listing_of(
      {"README.md", "config.json", "Demo-Q4_K_M.gguf", "Demo-IQ4_XS.gguf", "Demo.Q8_0.gguf",
       "mmproj-Demo-Q8_0.gguf", "imatrix-Q8_0.gguf", "BF16/Demo-BF16-00002-of-00002.gguf",
       "BF16/Demo-BF16-00001-of-00002.gguf", "Demo-Q6_K-00001-of-00003.gguf",
       "Demo-Q6_K-00003-of-00003.gguf", "a/Demo-Q2_K.gguf", "b/Demo-Q2_K.gguf", "F16.gguf"});
  const auto chosen = [&](std::string_view quant) {
    const auto files = select_gguf(listing, quant, "o/n");
    return files ? paths_of(*files) : Paths{files.error().to_string()};
  };
  EXPECT_EQ(chosen("Q4_K_M"), (Paths{"Demo-Q4_K_M.gguf"}));
  EXPECT_EQ(chosen("q4_k_m"), (Paths{"Demo-Q4_K_M.gguf"}));
  EXPECT_EQ(chosen("Q8_0"), (Paths{"Demo.Q8_0.gguf"}));
  EXPECT_EQ(chosen("F16"), (Paths{"F16.gguf"})) << "and not the end of BF16";
  EXPECT_EQ(chosen("BF16"),
            (Paths{"BF16/Demo-BF16-00001-of-00002.gguf", "BF16/Demo-BF16-00002-of-00002.gguf"}));
  for (const auto& [quant, word] :
       std::vector<std::pair<std::string, std::string>>{{"Q5_K_M", "has no GGUF file"},
                                                        {"Q4_XS", "has no GGUF file"},
                                                        {"Q2_K", "more than one"},
                                                        {"Q6_K", "2 of the 3 parts"},
                                                        {"K_M.gguf", "has no GGUF file"}}) {
    const auto files = select_gguf(listing, quant, "o/n");
    ASSERT_FALSE(files) << quant;
    EXPECT_EQ(files.error().code, ErrorCode::kNotFound);
    EXPECT_NE(files.error().message.find(word), std::string::npos) << files.error().message;
  }
  EXPECT_NE(chosen("Q5_K_M")[0].find("Demo-IQ4_XS"), std::string::npos) << "what there is";
}

TEST(FileSelection, OfSeveralGgufFilesTheOneThatIsMeant) {
  const auto chosen = [](const Paths& listed, std::string_view quant) {
    const auto files = select_gguf(listing_of(listed), quant, "o/n");
    return files ? paths_of(*files) : Paths{files.error().message};
  };
  const Paths twice = {"x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00002-of-00002.gguf", "x-Q8_0.gguf"};
  EXPECT_EQ(chosen(twice, "q8_0"), (Paths{"x-Q8_0.gguf"})) << "whole and in parts";
  EXPECT_EQ(chosen({"x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00001-of-00003.gguf",
                    "x-Q8_0-00002-of-00002.gguf", "x-Q8_0-00003-of-00003.gguf"},
                   "Q8_0"),
            (Paths{"x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00002-of-00002.gguf"}))
      << "the other one lacks a part";
  EXPECT_EQ(chosen({"X-Q8_0.gguf", "x-q8_0.gguf"}, "q8_0"), (Paths{"x-q8_0.gguf"}));
  EXPECT_EQ(chosen({"X-Q8_0.gguf", "x-q8_0.gguf"}, "Q8_0"), (Paths{"X-Q8_0.gguf"}));
  EXPECT_NE(chosen({"X-Q8_0.gguf", "x-q8_0.gguf"}, "Q8_0.")[0].find("no GGUF"), std::string::npos);
  EXPECT_EQ(chosen({"BF16/x.gguf", "Q8_0/x.gguf"}, "bf16"), (Paths{"BF16/x.gguf"}))
      << "the folder says it";
  EXPECT_EQ(chosen({"Q8_0/mtp.gguf", "x-Q8_0.gguf"}, "Q8_0"), (Paths{"x-Q8_0.gguf"}))
      << "a file's own name goes before its folder's";
  EXPECT_NE(chosen({"Q8_0/a.gguf", "Q8_0/b.gguf"}, "Q8_0")[0].find("more than one"),
            std::string::npos);
}

// Those that differ by layer, as Unsloth names them.
TEST(FileSelection, ADynamicQuantisationIsAnotherOne) {
  const auto chosen = [](const Paths& listed, std::string_view quant, bool is_all = true) {
    const auto files = select_gguf(listing_of(listed), quant, "o/n", is_all);
    return files ? paths_of(*files) : Paths{files.error().message};
  };
  const Paths both = {"x-Q4_K_XL.gguf", "x-UD-Q4_K_XL.gguf"};
  EXPECT_EQ(chosen(both, "Q4_K_XL"), (Paths{"x-Q4_K_XL.gguf"}));
  EXPECT_EQ(chosen(both, "UD-Q4_K_XL"), (Paths{"x-UD-Q4_K_XL.gguf"}));
  EXPECT_EQ(chosen(both, "ud-q4_k_xl"), (Paths{"x-UD-Q4_K_XL.gguf"}));
  EXPECT_EQ(chosen({"x-UD-Q4_K_XL.gguf"}, "Q4_K_XL"), (Paths{"x-UD-Q4_K_XL.gguf"}))
      << "nothing else can be meant";
  EXPECT_NE(chosen({"x-UD-Q4_K_XL.gguf"}, "Q4_K_XL", false)[0].find("no GGUF"), std::string::npos)
      << "the rest of the repository is not known";
  EXPECT_EQ(chosen({"x-UD-Q4_K_XL.gguf"}, "UD-Q4_K_XL", false), (Paths{"x-UD-Q4_K_XL.gguf"}));
  EXPECT_EQ(chosen({"UD-Q4_K_XL/x-UD-Q4_K_XL.gguf", "Q4_K_XL/x.gguf"}, "Q4_K_XL"),
            (Paths{"Q4_K_XL/x.gguf"}));
  EXPECT_EQ(chosen({"CLOUD-Q8_0.gguf"}, "Q8_0", false), (Paths{"CLOUD-Q8_0.gguf"}));
}

}  // namespace
}  // namespace rudder::hub
