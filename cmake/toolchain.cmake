# Flags, compiler cache and linker that every target shares.
find_program(RUDDER_CCACHE ccache)
if(RUDDER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RUDDER_CCACHE})
endif()
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
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
if(RUDDER_SANITIZE)  # a third less to compile than with -O2
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1 -DNDEBUG")
endif()

if(RUDDER_SANITIZE)
  rudder_compile_options(-fsanitize=${RUDDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${RUDDER_SANITIZE})
  if(CMAKE_UNITY_BUILD)
    rudder_compile_options(-Wno-subobject-linkage)  # a source that another includes is no header
  endif()
else()
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    rudder_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
  add_link_options(-Wl,-z,relro,-z,now)
endif()
