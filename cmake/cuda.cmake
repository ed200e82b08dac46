# The CUDA backend: built where nvcc is. RUDDER_CUDA = AUTO takes it when it is there, ON demands it, CHECK is AUTO
# without the machine code of kernels: the compiler reads them, all is linked, and no GPU is used. It takes a tenth of the time.
# OFF leaves it out. RUDDER_HAS_CUDA says what came of it. Needs the toolkit only: no GPU, no driver.
set(RUDDER_CUDA AUTO CACHE STRING "The CUDA backend: AUTO (where nvcc is), ON, CHECK (no machine code) or OFF")
set_property(CACHE RUDDER_CUDA PROPERTY STRINGS AUTO ON CHECK OFF)
set(RUDDER_HAS_CUDA OFF)

# Sanitizers stop at the driver's door; what they look for is host code that builds without CUDA.
if(RUDDER_CUDA STREQUAL "OFF" OR (RUDDER_CUDA STREQUAL "AUTO" AND RUDDER_SANITIZE))
  return()
endif()

# One architecture, machine code only: kernels use instructions of sm_90a.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(RUDDER_HAS_MACHINE_CODE ON)
if(RUDDER_CUDA STREQUAL "CHECK")
  set(CMAKE_CUDA_ARCHITECTURES 90a-virtual)
  set(RUDDER_HAS_MACHINE_CODE OFF)
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# Lines of sources, for profilers and compute-sanitizer, triple the machine code: RUDDER_LINEINFO asks for them.
option(RUDDER_LINEINFO "Machine code of kernels names lines of sources" OFF)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG --compress-mode=size")
if(NOT RUDDER_HAS_MACHINE_CODE)
  set(CMAKE_CUDA_FLAGS_RELEASE "-DNDEBUG -Xcicc -O0 --compress-mode=speed")
endif()
if(RUDDER_LINEINFO)
  string(APPEND CMAKE_CUDA_FLAGS_RELEASE " -lineinfo")
endif()
set(CMAKE_CUDA_COMPILER_LAUNCHER ${RUDDER_LAUNCHER})

# The toolkit's folder is often not on the PATH.
find_program(RUDDER_NVCC nvcc PATHS /usr/local/cuda/bin)
if(RUDDER_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(ENV{CUDACXX} ${RUDDER_NVCC})
endif()
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  find_package(CUDAToolkit)
endif()
if(CUDAToolkit_FOUND AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.9)
  set(RUDDER_HAS_CUDA ON)
  # Warnings that nvcc passes on are the host compiler's; its own are errors.
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
  message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, sm_90a")
elseif(RUDDER_CUDA STREQUAL "ON")
  message(FATAL_ERROR "RUDDER_CUDA is ON, and no nvcc of CUDA 12.9 or later that works was found")
else()
  message(STATUS "CUDA backend: left out, no nvcc of CUDA 12.9 or later was found")
endif()
