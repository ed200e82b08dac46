include(${CMAKE_CURRENT_LIST_DIR}/rooms.cmake)

add_custom_target(asan_tests)
add_custom_target(tsan_tests)
# What the daily run builds beside the binary without a sanitizer.
add_custom_target(daily_tests)
# Every test labelled gpu; gpu_tests.txt in the build folder lists them. Built by this target alone: only a
# machine with a GPU runs them.
add_custom_target(gpu_tests)

# rudder_room(NAME cache SRCS a.cpp ROOMS base DEPS pcre2 TESTS a_test.cpp TEST_ROOMS testing LABELS unit)
# One static library a room, one test binary a room. ROOMS are rooms below (checked against the
# table), DEPS are third-party interface targets. TEST_ROOMS are only for the test binary.
function(rudder_room)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;ROOMS;DEPS" ${ARGN})
  foreach(room ${ARG_ROOMS})
    if(NOT room IN_LIST RUDDER_ROOM_${ARG_NAME})
      message(FATAL_ERROR "room ${ARG_NAME} may not depend on room ${room}: see cmake/rooms.cmake")
    endif()
  endforeach()
  set(target rudder_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${CMAKE_SOURCE_DIR}/src)
  foreach(room ${ARG_ROOMS})
    target_link_libraries(${target} ${scope} rudder_${room})
  endforeach()
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${target} ${scope} dep::${dep})
  endforeach()
  target_link_libraries(${target} ${scope} Threads::Threads)
endfunction()

# rudder_test(NAME cache_test SRCS a_test.cpp ROOMS kv testing LABELS unit [ARGS ...] [TIMEOUT seconds]
#             [SANITIZERS asan tsan] [OPTIMISED] [FULL "Full/*" ...])
# FULL: the cases (patterns of gtest_filter) that only make test-full runs, as NAME without _test and with
# _full_test_1, _2, ..., labelled slow: shards of them, which several cores take side by side.
# SANITIZERS: the presets that `make test` builds and runs it under: what parses bytes of strangers is
# under asan, what has threads under tsan. Target asan_tests / tsan_tests builds them. There a test finds all
# that it finds elsewhere, so the daily run of release leaves it out (label instrumented), but for one that is
# OPTIMISED: it bounds the time of what is shipped, or has more cases without a sanitizer. Target daily_tests
# builds what that run has; `make test-full` has every test in every preset.
# A test's sources are compiled together, which halves the time that tests take to build: names in their
# unnamed namespaces are unique within a room (tools/unit_names.py). The test's own sources are optimised less
# than the rooms that it tests, for a quarter less time to compile.
# Tests find their files from the repository's root, where they are started: those labelled gpu may run on
# another machine than they were built on, and no object depends on where the checkout lies.
set(RUDDER_FULL_SHARDS 8)

# What is a test's own: compiled together, and optimised less.
function(rudder_compile_as_test target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT RUDDER_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-O1>)
  endif()
endfunction()

function(rudder_test)
  if(NOT RUDDER_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "OPTIMISED" "NAME;TIMEOUT" "SRCS;ROOMS;DEPS;LABELS;ARGS;DEFS;SANITIZERS;FULL" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  rudder_compile_as_test(${ARG_NAME})
  foreach(room ${ARG_ROOMS})
    target_link_libraries(${ARG_NAME} PRIVATE rudder_${room})
  endforeach()
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${ARG_NAME} PRIVATE dep::${dep})
  endforeach()
  if("gpu" IN_LIST ARG_LABELS)
    add_dependencies(gpu_tests ${ARG_NAME})
    set_property(GLOBAL APPEND_STRING PROPERTY RUDDER_GPU_TESTS "$<TARGET_FILE:${ARG_NAME}>\n")
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON BUILD_RPATH "$ORIGIN;${CUDAToolkit_LIBRARY_DIR}")
  endif()
  target_compile_definitions(${ARG_NAME} PRIVATE RUDDER_SOURCE_DIR="." ${ARG_DEFS})
  target_link_libraries(${ARG_NAME} PRIVATE GTest::gtest GTest::gtest_main)
  set(labels ${ARG_LABELS} ${ARG_SANITIZERS})
  if(ARG_SANITIZERS AND NOT ARG_OPTIMISED)
    list(APPEND labels instrumented)
  elseif(NOT "gpu" IN_LIST ARG_LABELS)
    add_dependencies(daily_tests ${ARG_NAME})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)  # for what hangs: a busy machine takes its time
  endif()
  # As much slower as a test may become.
  if(RUDDER_SANITIZE STREQUAL "thread")
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 10")
  elseif(RUDDER_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  if(ARG_FULL)
    list(JOIN ARG_FULL ":" full)
    list(APPEND ARG_ARGS --gtest_filter=-${full})
    string(REGEX REPLACE "_test$" "_full_test" full_name ${ARG_NAME})
    math(EXPR full_timeout "${ARG_TIMEOUT} * 3")
    foreach(shard RANGE 1 ${RUDDER_FULL_SHARDS})
      math(EXPR index "${shard} - 1")
      add_test(NAME ${full_name}_${shard} COMMAND ${ARG_NAME} --gtest_filter=${full} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${full_name}_${shard} PROPERTIES
        LABELS "${ARG_LABELS};slow" TIMEOUT ${full_timeout}
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${RUDDER_FULL_SHARDS};GTEST_SHARD_INDEX=${index}")
    endforeach()
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  foreach(sanitizer ${ARG_SANITIZERS})
    add_dependencies(${sanitizer}_tests ${ARG_NAME})
  endforeach()
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
