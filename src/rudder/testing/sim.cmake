# The simulator twice: `sim` over the rooms as everyone gets them, `sim_mutants` over a second build
# of them in which one seeded bug at a time can be switched on (base/mutants.h).
set(sim_sources sim.cpp sim_check.cpp sim_config.cpp sim_constraint.cpp sim_episode.cpp sim_main.cpp
    sim_reference.cpp sim_taps.cpp)
set(sim_steps 2000000)
set(sim_steps_full 5000000)
set(mutant_steps 400000)
set(timeout 600)
if(RUDDER_SANITIZE)
  set(sim_steps 100000)
  set(sim_steps_full 1000000)
  set(timeout 3000)
endif()

add_executable(sim ${sim_sources})
target_link_libraries(sim PRIVATE rudder_testing rudder_engine dep::cli11 dep::fmt)
# The daily run takes the first many steps long as everyone gets it, the second under the address sanitizer.
set(daily_1 "")
set(daily_2 "asan;instrumented")
foreach(seed 1 2)
  add_test(NAME sim_seed_${seed} COMMAND sim --seed ${seed} --steps ${sim_steps})
  set_tests_properties(sim_seed_${seed} PROPERTIES LABELS "sim;${daily_${seed}}" TIMEOUT ${timeout} COST 25)
  add_test(NAME sim_seed_${seed}_full COMMAND sim --seed ${seed} --steps ${sim_steps_full})
  set_tests_properties(sim_seed_${seed}_full PROPERTIES LABELS "sim;slow" TIMEOUT ${timeout})
endforeach()
add_dependencies(asan_tests sim)
add_dependencies(daily_tests sim)

set(mutant_sources ${sim_sources})
foreach(room step kv sched engine testing)
  get_target_property(sources rudder_${room} SOURCES)
  get_target_property(directory rudder_${room} SOURCE_DIR)
  list(TRANSFORM sources PREPEND ${directory}/)
  list(APPEND mutant_sources ${sources})
endforeach()
add_executable(sim_mutants ${mutant_sources})
set_target_properties(sim sim_mutants PROPERTIES UNITY_BUILD ON)  # as rudder_test's
target_compile_definitions(sim_mutants PRIVATE RUDDER_MUTANTS=1)
target_link_libraries(sim_mutants PRIVATE rudder_base rudder_step rudder_steer rudder_text rudder_constraint
                      dep::cli11 dep::fmt)
add_test(NAME sim_mutants COMMAND sim_mutants --steps ${mutant_steps})
add_dependencies(daily_tests sim_mutants)
set_tests_properties(sim_mutants PROPERTIES LABELS sim TIMEOUT ${timeout})

add_executable(engine_loop_bench EXCLUDE_FROM_ALL engine_loop_bench.cpp)
target_link_libraries(engine_loop_bench PRIVATE rudder_testing rudder_engine dep::fmt)
