# The compiler of fuzz targets: libFuzzer is clang's. The release that tools/setup.sh installs goes before any
# other. Read before project(), which looks for a compiler where none is named.
if(RUDDER_FUZZ)
  find_program(CMAKE_C_COMPILER NAMES clang-14 clang-18 clang REQUIRED)
  find_program(CMAKE_CXX_COMPILER NAMES clang++-14 clang++-18 clang++ REQUIRED)
endif()
