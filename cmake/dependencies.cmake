# Third-party libraries, each as one interface target `dep::<name>`, header-only or static, so that
# the rudder binary runs on a machine that has none of them. Why each was chosen: docs/adr/0003.
find_package(Threads REQUIRED)

function(rudder_dependency name header)
  find_path(RUDDER_INCLUDE_${name} ${header})
  if(NOT RUDDER_INCLUDE_${name})
    message(FATAL_ERROR "${header} is missing: run tools/setup.sh, which installs what the build needs")
  endif()
  add_library(dep_${name} INTERFACE)
  add_library(dep::${name} ALIAS dep_${name})
  target_include_directories(dep_${name} SYSTEM INTERFACE ${RUDDER_INCLUDE_${name}})
endfunction()

function(rudder_static_library name file)
  find_library(RUDDER_LIBRARY_${name} ${file})
  if(NOT RUDDER_LIBRARY_${name})
    message(FATAL_ERROR "${file} is missing: run tools/setup.sh, which installs what the build needs")
  endif()
  # A target of its own, since CMake keeps the order of a static library and of those that it needs for targets alone.
  add_library(dep_${name}_archive STATIC IMPORTED GLOBAL)
  set_target_properties(dep_${name}_archive PROPERTIES IMPORTED_LOCATION ${RUDDER_LIBRARY_${name}})
  target_link_libraries(dep_${name} INTERFACE dep_${name}_archive)
endfunction()

rudder_dependency(expected tl/expected.hpp)
rudder_dependency(fmt fmt/format.h)
rudder_dependency(spdlog spdlog/spdlog.h)
rudder_dependency(boost boost/version.hpp)  # Asio, Beast and JSON are used header-only
rudder_dependency(cli11 CLI/CLI.hpp)
rudder_dependency(pcre2 pcre2.h)
rudder_static_library(pcre2 libpcre2-8.a)
rudder_dependency(utf8proc utf8proc.h)
rudder_static_library(utf8proc libutf8proc.a)
target_compile_definitions(dep_utf8proc INTERFACE UTF8PROC_STATIC)
rudder_dependency(zmq zmq.h)  # the header alone: the library is opened when it is asked for
rudder_dependency(curl curl/curl.h)  # likewise
rudder_dependency(zlib zlib.h)
rudder_static_library(zlib libz.a)
rudder_dependency(crypto openssl/crypto.h)
rudder_static_library(crypto libcrypto.a)
rudder_dependency(openssl openssl/ssl.h)
rudder_static_library(openssl libssl.a)
target_link_libraries(dep_openssl_archive INTERFACE dep_crypto_archive)

# `make serve` needs no test library; `make test` installs it first, and ctest fails without tests.
if(RUDDER_TESTS)
  find_package(GTest)
  if(NOT GTest_FOUND)
    message(STATUS "No GoogleTest: the tests are not built")
    set(RUDDER_TESTS OFF)
  endif()
endif()
