# The programs of tests/simt: the CUDA kernels on a simulated machine. csrc/cuda/*.cu are compiled
# as C++, with tests/simt/cuda/ptx.cuh in place of csrc/cuda/ptx.cuh, and once more with mutants.
#
# Nothing here links ringkern_core: it holds the same kernels, made for a GPU.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

set(_simt ${CMAKE_CURRENT_SOURCE_DIR}/tests/simt)
set(_mutated ${CMAKE_CURRENT_BINARY_DIR}/simt/mutated)

# The needs of the simulator, whatever it runs.
add_library(ringkern_simt_flags INTERFACE)
target_link_libraries(ringkern_simt_flags INTERFACE ringkern_flags)
target_include_directories(ringkern_simt_flags BEFORE INTERFACE
  ${_simt} ${CMAKE_CURRENT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR}/csrc)
target_compile_options(ringkern_simt_flags INTERFACE -fno-strict-aliasing)

# The flag of LL wraps within a few calls, and every poll in vain looks whether to give up.
set(_short RK_LL_FLAG_BITS=4 RK_POLLS_PER_LOOK=1)
file(GLOB _machine CONFIGURE_DEPENDS ${_simt}/*.cpp)
list(FILTER _machine EXCLUDE REGEX "_test\\.cpp$")
add_library(ringkern_simt STATIC ${_machine})
target_link_libraries(ringkern_simt PUBLIC ringkern_simt_flags)
target_compile_definitions(ringkern_simt PUBLIC ${_short})

# ---- the kernels, as they are and with mutants --------------------------------------------------
file(GLOB _headers CONFIGURE_DEPENDS csrc/cuda/*.cuh)
set(_copies ${_headers})
list(FILTER _copies EXCLUDE REGEX "/ptx\\.cuh$")
list(TRANSFORM _copies REPLACE ".*/" "${_mutated}/cuda/")
add_custom_command(OUTPUT ${_mutated}/mutants.h ${_copies}
  COMMAND ${Python3_EXECUTABLE} ${_simt}/mutants.py ${CMAKE_CURRENT_SOURCE_DIR}/csrc ${_mutated}
  # It leaves alone what has not changed, which a build would take for not done.
  COMMAND ${CMAKE_COMMAND} -E touch ${_mutated}/mutants.h ${_copies}
  DEPENDS ${_headers} ${_simt}/mutants.py ${_simt}/rules.py ${_simt}/sources.py
  COMMENT "Weakening the kernels" VERBATIM)
add_custom_target(ringkern_mutants DEPENDS ${_mutated}/mutants.h)

file(GLOB _kernels RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/csrc CONFIGURE_DEPENDS csrc/cuda/*.cu)
list(REMOVE_ITEM _kernels cuda/in_place.cu) # tests/ptx has it; its threads do not meet
foreach(kernel IN LISTS _kernels)
  string(MAKE_C_IDENTIFIER ${kernel} _name)
  set(_wrapper ${CMAKE_CURRENT_BINARY_DIR}/simt/${_name}.cpp)
  file(CONFIGURE OUTPUT ${_wrapper} CONTENT "#include \"${kernel}\"\n")
  list(APPEND _wrappers ${_wrapper})
endforeach()
add_library(ringkern_simt_kernels OBJECT ${_wrappers})
target_link_libraries(ringkern_simt_kernels PUBLIC ringkern_simt)
add_library(ringkern_simt_mutants OBJECT ${_wrappers})
target_link_libraries(ringkern_simt_mutants PUBLIC ringkern_simt)
target_include_directories(ringkern_simt_mutants BEFORE PUBLIC ${_mutated})
add_dependencies(ringkern_simt_mutants ringkern_mutants)

# ---- the programs -------------------------------------------------------------------------------
add_custom_target(simt_tests)
function(add_simt_test name kernels)
  add_executable(tests_simt_${name}_test ${_simt}/${name}_test.cpp)
  target_link_libraries(tests_simt_${name}_test PRIVATE ${kernels} ringkern_simt ringkern_check)
  add_dependencies(simt_tests tests_simt_${name}_test)
  add_test(NAME simt/${name} COMMAND tests_simt_${name}_test ${ARGN})
  set_tests_properties(simt/${name} PROPERTIES TIMEOUT 600)
  if(name STREQUAL "mutants")
    set_property(TEST simt/${name} APPEND PROPERTY LABELS long)
  endif()
endfunction()
add_simt_test(litmus ringkern_simt)
add_simt_test(machine ringkern_simt)
add_simt_test(probe ringkern_simt_kernels)
if(RK_SANITIZE) # of the simulator, which is slower then; mutants would say nothing of it
  add_simt_test(ring ringkern_simt_kernels --seeds 300)
else()
  add_simt_test(ring ringkern_simt_kernels)
  add_simt_test(mutants ringkern_simt_mutants --every 8) # a sample; `make mutants` runs all
endif()
