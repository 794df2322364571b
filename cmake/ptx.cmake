# The programs of tests/ptx: the kernels as nvcc compiles them, run from their PTX on the machine of
# tests/simt. For each GPU of the build, what the build itself gave to ptxas; and compiled once more
# with the constants of tests/simt, so that flags of LL wrap.
file(GLOB _kernels CONFIGURE_DEPENDS csrc/cuda/*.cu)
list(FILTER _kernels EXCLUDE REGEX "/in_place\\.cu$") # has no such constants
file(GLOB _ptx CONFIGURE_DEPENDS tests/ptx/*.cpp)
list(FILTER _ptx EXCLUDE REGEX "/(kernel_for|host)\\.cpp$|_test\\.cpp$")
add_library(ringkern_ptx STATIC ${_ptx})
target_link_libraries(ringkern_ptx PUBLIC ringkern_simt_flags)
add_library(ringkern_ptx_kernel_for OBJECT tests/ptx/kernel_for.cpp) # the simulator calls it
target_link_libraries(ringkern_ptx_kernel_for PRIVATE ringkern_simt_flags)

add_library(ringkern_ptx_short OBJECT ${_kernels})
target_link_libraries(ringkern_ptx_short PRIVATE ringkern_flags)
target_compile_definitions(ringkern_ptx_short PRIVATE ${_short})
set_target_properties(ringkern_ptx_short PROPERTIES CUDA_PTX_COMPILATION ON
  CUDA_ARCHITECTURES 90-virtual CUDA_COMPILER_LAUNCHER "")

# The simulator with the constants that ship.
add_library(ringkern_simt_shipped STATIC ${_machine})
target_link_libraries(ringkern_simt_shipped PUBLIC ringkern_simt_flags)

# Tells a target in or below which directory its kernels are, and how the names of the files end.
function(name_ptx target directory ending)
  set(_file ${CMAKE_CURRENT_BINARY_DIR}/ptx/${target}.cpp)
  file(CONFIGURE OUTPUT ${_file} CONTENT "#include \"ptx/kernels.h\"
const char* const ptx::kDirectory = \"${directory}\";
const char* const ptx::kEnding = \"${ending}\";
")
  target_sources(${target} PRIVATE ${_file})
endfunction()

add_custom_target(ptx_tests)
# A test, over the kernels in the files that a target made and whose names end so.
function(add_ptx_test name source simulator kernels ending)
  # Compiled once for all GPUs.
  string(MAKE_C_IDENTIFIER tests_${source}_over_${simulator} _objects)
  if(NOT TARGET ${_objects})
    add_library(${_objects} OBJECT tests/${source}_test.cpp)
    target_link_libraries(${_objects} PRIVATE ringkern_ptx ${simulator} ringkern_check)
    target_compile_definitions(${_objects} PRIVATE RK_SOURCES="${CMAKE_CURRENT_SOURCE_DIR}")
  endif()
  string(MAKE_C_IDENTIFIER tests_ptx_${name}_test _target)
  add_executable(${_target} $<TARGET_OBJECTS:${_objects}>
    $<TARGET_OBJECTS:ringkern_ptx_kernel_for>)
  name_ptx(${_target} ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${kernels}.dir ${ending})
  target_link_libraries(${_target} PRIVATE ringkern_ptx ${simulator} ringkern_check)
  add_dependencies(${_target} ${kernels})
  add_dependencies(ptx_tests ${_target})
  add_test(NAME ptx/${name} COMMAND ${_target} ${ARGN})
  set_tests_properties(ptx/${name} PROPERTIES TIMEOUT 600
    SKIP_REGULAR_EXPRESSION "there is nothing to (test|run)") # as with another nvcc
endfunction()

add_ptx_test(program ptx/program ringkern_simt ringkern_ptx_short .ptx)
add_ptx_test(ring simt/ring ringkern_simt ringkern_ptx_short .ptx --seeds 300)
add_ptx_test(probe simt/probe ringkern_simt ringkern_ptx_short .ptx)
# A sample; `make ptx-mutants` runs all.
add_ptx_test(mutants ptx/mutants ringkern_simt ringkern_ptx_short .ptx --every 64)
string(REPLACE " " ";" _archs "${RK_CUDA_ARCH_NAMES}")
foreach(arch IN LISTS _archs)
  if(NOT arch MATCHES "^sm_")
    continue() # the PTX of the one before, as it ships
  endif()
  set(_shipped ringkern_simt_shipped ringkern_core .cu.o.${arch}.ptx)
  set(_pairs few)
  set(_seeds 1)
  if(arch STREQUAL "sm_90")
    set(_pairs some)
    set(_seeds 2)
  endif()
  add_ptx_test(${arch}/arithmetic ptx/arithmetic ${_shipped} --pairs ${_pairs})
  add_ptx_test(${arch}/ring simt/ring ${_shipped} --shipped 1 --seeds ${_seeds})
endforeach()
if("sm_90" IN_LIST _archs)
  add_ptx_test(costs ptx/costs ringkern_simt_shipped ringkern_core .cu.o.sm_90.ptx)
endif()

# The kernels of bench/gpu.
add_library(ringkern_ptx_bench OBJECT bench/gpu/litmus.cu bench/gpu/limits.cu)
target_link_libraries(ringkern_ptx_bench PRIVATE ringkern_flags)
set_target_properties(ringkern_ptx_bench PROPERTIES CUDA_PTX_COMPILATION ON
  CUDA_ARCHITECTURES 90-virtual CUDA_COMPILER_LAUNCHER "")
add_ptx_test(bench ptx/bench ringkern_simt_shipped ringkern_ptx_bench .ptx)

# The same in the host's memory, for fake devices: the kernels that ship.
set(_arch sm_90)
if(NOT _arch IN_LIST _archs)
  list(GET _archs 0 _arch)
endif()
set(_host ${_simt}/fiber.cpp tests/ptx/arithmetic.cpp tests/ptx/host.cpp tests/ptx/kernels.cpp
  tests/ptx/module.cpp tests/ptx/program.cpp)
add_library(ringkern_ptx_host STATIC ${_host})
target_link_libraries(ringkern_ptx_host PRIVATE ringkern_simt_flags)
name_ptx(ringkern_ptx_host ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/ringkern_core.dir
  .cu.o.${_arch}.ptx)

# Over a kernel of its own.
add_executable(tests_ptx_host_test tests/ptx/host_test.cpp ${_host})
name_ptx(tests_ptx_host_test ${CMAKE_CURRENT_SOURCE_DIR}/tests/ptx /host_test.ptx)
target_link_libraries(tests_ptx_host_test PRIVATE ringkern_simt_flags ringkern_check)
add_dependencies(ptx_tests tests_ptx_host_test)
add_test(NAME ptx/host COMMAND tests_ptx_host_test)
set_tests_properties(ptx/host PROPERTIES TIMEOUT 60)

# What compute-sanitizer is given on a GPU (bench/gpu), on a fake device.
add_executable(tests_ptx_sanitize_test tests/ptx/sanitize_test.cpp)
target_link_libraries(tests_ptx_sanitize_test
  PRIVATE ringkern_ptx_host ringkern_core ringkern_check)
add_dependencies(ptx_tests tests_ptx_sanitize_test)
add_test(NAME ptx/sanitize COMMAND tests_ptx_sanitize_test)
set_tests_properties(ptx/sanitize PROPERTIES TIMEOUT 120)
