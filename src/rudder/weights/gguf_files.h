// The files of a GGUF model: one, or the parts that it was split into. Mapped and checked when they
// are opened; immutable then, any thread may read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/weights/gguf.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::weights {

struct GgufPart {
  std::shared_ptr<const MappedFile> mapped;
  GgufFile gguf;
};

// Of "NAME-00002-of-00005.gguf" all five parts, in order; the first has the metadata. Each says its
// number, how many there are, and the first how many tensors they have together: kCorruptFile, at
// the file and the key, where that is not so, or where two of them have a tensor of one name.
Result<std::vector<GgufPart>> open_gguf_files(const std::string& path);

// Whether a path names a GGUF file.
bool is_gguf_path(const std::string& path);

}  // namespace rudder::weights
