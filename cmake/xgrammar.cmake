# dep::xgrammar: the C++ core of xgrammar, static, from the sources in .deps/ (tools/fetch_xgrammar.sh
# has the version and the hash). Its own CMakeLists.txt builds Python bindings and picks flags, so the
# files are compiled here. Of ours only xgrammar_engine.cpp, terminal_parser and parser_shape of src/rudder/constraint
# include it, the latter two its inner headers as <cpp/...>: docs/adr/0014.
set(xgrammar_dir ${CMAKE_SOURCE_DIR}/.deps/xgrammar-0.2.8)
if(NOT EXISTS ${xgrammar_dir}/include/xgrammar/xgrammar.h)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/fetch_xgrammar.sh RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "the sources of xgrammar are missing: run tools/setup.sh build")
  endif()
endif()
file(GLOB_RECURSE xgrammar_sources ${xgrammar_dir}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "" UNITY_BUILD OFF)
# The same flags in every preset: with a compiler cache it is compiled once. No sanitizer looks into it.
set_target_properties(xgrammar PROPERTIES COMPILE_OPTIONS "-w;-O2;-fno-plt;-fstack-protector-strong;-fno-reorder-blocks-and-partition")
target_include_directories(xgrammar SYSTEM PUBLIC ${xgrammar_dir}/include ${xgrammar_dir}
                                                  ${xgrammar_dir}/3rdparty/dlpack/include
                                                  ${xgrammar_dir}/3rdparty/picojson)
target_compile_definitions(xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
add_library(dep::xgrammar ALIAS xgrammar)
