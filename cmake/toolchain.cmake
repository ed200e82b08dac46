# Flags, compiler cache and linker that every target shares.
# Objects do not depend on where the checkout lies: paths in them are relative to its root. So a cache of
# compilers' outputs serves every checkout on the machine.
set(RUDDER_LAUNCHER)
find_program(RUDDER_CCACHE ccache)
if(RUDDER_CCACHE)
  list(APPEND RUDDER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true
       CCACHE_SLOPPINESS=time_macros,include_file_mtime,include_file_ctime ${RUDDER_CCACHE})
endif()
set(CMAKE_CXX_COMPILER_LAUNCHER ${RUDDER_LAUNCHER})
find_program(RUDDER_LLD ld.lld)
if(RUDDER_LLD AND NOT CMAKE_EXE_LINKER_FLAGS MATCHES "fuse-ld")
  add_link_options(-fuse-ld=lld)
endif()

# For C and C++ only: nvcc has its own (cuda.cmake).
function(rudder_compile_options)
  foreach(option ${ARGN})
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:${option}>)
  endforeach()
endfunction()

rudder_compile_options(-Wall -Wextra -Wshadow)
rudder_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
# Warnings are errors with the compiler that the checks run with; a newer one warns of more, and so does
# an instrumented build.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 AND NOT RUDDER_SANITIZE)
  rudder_compile_options(-Werror)
  rudder_compile_options(-Wno-restrict)  # false on std::string concatenation in GCC 12 (PR 105651)
endif()
rudder_compile_options(-fstack-protector-strong -fno-plt)
add_compile_definitions(_GLIBCXX_ASSERTIONS)
# GCC 12 splits some functions into a hot part and an empty cold part. The empty part's unwind entry has
# the address of the next function's cold part and hides that one's, so that an exception which passes
# there ends the process. Without the split there is no empty part.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  rudder_compile_options(-fno-reorder-blocks-and-partition)
endif()
# A sanitizer's -O1 takes a third less to compile than -O2. Its -Og takes a third less again, as little as -O0 does, and is
# for a build that runs its tests once.
if(NOT RUDDER_OPTIMISE)
  set(RUDDER_OPTIMISE -O2)
  if(RUDDER_SANITIZE)
    set(RUDDER_OPTIMISE -O1)
  endif()
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-DNDEBUG")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  rudder_compile_options(${RUDDER_OPTIMISE} -g1)
endif()

# Several sources of a target are one unit, which reads their headers once. What clashes only there is no
# fault: a local name that another source has at its top, a type of an unnamed namespace in a class. The
# checks read each source alone.
if(CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
  if(RUDDER_SANITIZE)  # built as a whole, seldom after a change of one source
    set(CMAKE_UNITY_BUILD_BATCH_SIZE 32)
  endif()
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>
                      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
if(RUDDER_SANITIZE)
  rudder_compile_options(-fsanitize=${RUDDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(RUDDER_SANITIZE_LESS)
    rudder_compile_options(-fno-sanitize=${RUDDER_SANITIZE_LESS})
  endif()
  # GCC 13 keeps frames on a heap of its own, where it does not align them for vectors of 64 bytes.
  if(RUDDER_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    rudder_compile_options(--param=asan-use-after-return=0)
  endif()
  add_link_options(-fsanitize=${RUDDER_SANITIZE})
  if(RUDDER_FUZZ)
    rudder_compile_options(-fsanitize=fuzzer-no-link)  # counts the branches taken; targets link the fuzzer itself
  endif()
else()
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    rudder_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
  add_link_options(-Wl,-z,relro,-z,now)
endif()
