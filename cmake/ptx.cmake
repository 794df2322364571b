# The programs of tests/ptx: the kernels as nvcc compiles them, run from their PTX on the machine of
# tests/simt. One for each GPU of the build, and one of which the flags of LL wrap, as in tests/simt.
file(GLOB _kernels CONFIGURE_DEPENDS csrc/cuda/*.cu)
file(GLOB _ptx CONFIGURE_DEPENDS tests/ptx/*.cpp)
list(FILTER _ptx EXCLUDE REGEX "/kernels\\.cpp$|_test\\.cpp$")
add_library(ringkern_ptx STATIC ${_ptx})
target_link_libraries(ringkern_ptx PUBLIC ringkern_simt_flags)

# As tests/simt has it, but for the constants that only a simulation changes.
add_library(ringkern_simt_shipped STATIC ${_machine})
target_link_libraries(ringkern_simt_shipped PUBLIC ringkern_simt_flags)

add_custom_target(ptx_tests)
function(add_ptx_programs name arch simulator)
  add_library(ringkern_ptx_${name} OBJECT ${_kernels})
  target_link_libraries(ringkern_ptx_${name} PRIVATE ringkern_flags)
  target_compile_definitions(ringkern_ptx_${name} PRIVATE
    $<TARGET_PROPERTY:${simulator},COMPILE_DEFINITIONS>)
  set_target_properties(ringkern_ptx_${name} PROPERTIES CUDA_PTX_COMPILATION ON
    CUDA_ARCHITECTURES ${arch}-virtual CUDA_COMPILER_LAUNCHER "")
  set(_list ${CMAKE_CURRENT_BINARY_DIR}/ptx/${name}.txt)
  file(GENERATE OUTPUT ${_list} CONTENT "$<JOIN:$<TARGET_OBJECTS:ringkern_ptx_${name}>,\n>\n")
  foreach(test ring probe)
    set(_target tests_ptx_${name}_${test}_test)
    add_executable(${_target} tests/simt/${test}_test.cpp tests/ptx/kernels.cpp)
    target_compile_definitions(${_target} PRIVATE RK_PTX_FILES="${_list}")
    target_link_libraries(${_target} PRIVATE ringkern_ptx ${simulator} ringkern_check)
    add_dependencies(${_target} ringkern_ptx_${name})
    add_dependencies(ptx_tests ${_target})
    add_test(NAME ptx/${name}/${test} COMMAND ${_target} ${ARGN})
    set_tests_properties(ptx/${name}/${test} PROPERTIES TIMEOUT 600)
  endforeach()
endfunction()
add_ptx_programs(short 90 ringkern_simt)
