#include "rudder/base/program_symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>

namespace rudder {
namespace {

constexpr size_t kMaxNameBytes = 120;  // of one that is told

uintptr_t load_base() {
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = info->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &base);
  return base;
}

// `count` objects of the file from `offset` on; none where it is too short.
template <typename T>
std::vector<T> read_at(std::ifstream& file, uint64_t offset, size_t count) {
  std::vector<T> out(count);
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(count * sizeof(T)));
  if (!file) out.clear();
  return out;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  std::string out = status == 0 ? text.get() : name;
  if (out.size() > kMaxNameBytes) out.replace(kMaxNameBytes, std::string::npos, "...");
  return out;
}

}  // namespace

ProgramSymbols ProgramSymbols::read() {
  ProgramSymbols symbols;
  symbols.base_ = load_base();
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto header = read_at<Elf64_Ehdr>(file, 0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return symbols;
  const auto sections = read_at<Elf64_Shdr>(file, header[0].e_shoff, header[0].e_shnum);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const Elf64_Shdr& texts = sections[section.sh_link];
    const auto names = read_at<char>(file, texts.sh_offset, texts.sh_size);
    for (const Elf64_Sym& symbol :
         read_at<Elf64_Sym>(file, section.sh_offset, section.sh_size / sizeof(Elf64_Sym))) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_name >= names.size()) continue;
      const std::string_view rest(names.data() + symbol.st_name, names.size() - symbol.st_name);
      symbols.functions_.push_back(
          {symbol.st_value, symbol.st_size, std::string(rest.substr(0, rest.find('\0')))});
    }
  }
  std::ranges::sort(symbols.functions_, {}, &Function::begin);
  return symbols;
}

std::string ProgramSymbols::name_of(const void* address) const {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address) - base_;
  const auto behind = std::ranges::upper_bound(functions_, at, {}, &Function::begin);
  if (behind != functions_.begin()) {
    const Function& function = *std::prev(behind);
    if (at - function.begin < function.size) return demangled(function.name.c_str());
  }
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return fmt::format("{}", address);
  }
  if (info.dli_sname != nullptr) return demangled(info.dli_sname);
  const std::string_view path = info.dli_fname;
  return fmt::format(
      "{}+{:#x}", path.substr(path.rfind('/') + 1),
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_fbase));
}

}  // namespace rudder
