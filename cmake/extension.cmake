# _C, the Python extension: csrc/torch over ringkern_core.
#
# torch is taken by path. find_package(Torch) would search for a CUDA toolkit that suits torch, pick
# GPUs of its own and fail where nvcc and torch differ in version; nothing of that is needed, for
# _C links none of torch's CUDA libraries and one source serves CPU-only and CUDA torch alike.
foreach(_needed include/torch/library.h lib/libc10.so lib/libtorch_python.so)
  if(NOT EXISTS ${RK_TORCH}/${_needed})
    message(FATAL_ERROR "ringkern: RK_TORCH=${RK_TORCH} has no ${_needed}.")
  endif()
endforeach()
if(NOT RK_PYTHON_INCLUDE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)
  set(RK_PYTHON_INCLUDE ${Python3_INCLUDE_DIRS})
endif()

file(GLOB _units CONFIGURE_DEPENDS
  csrc/torch/*.cpp csrc/p2p/torch_*.cpp csrc/hosts/torch_*.cpp)
# A library of its own, though _C alone has its objects: Ninja starts first what most steps wait
# for, and would start these, which take longest, after the whole core.
add_library(ringkern_torch STATIC ${_units})
# torch's headers are most of what a unit costs, so files are compiled in groups.
set_target_properties(ringkern_torch PROPERTIES UNITY_BUILD ON)
if(RK_ONE_UNIT)
  set_target_properties(ringkern_torch PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
else()
  set_target_properties(ringkern_torch PROPERTIES UNITY_BUILD_MODE GROUP)
  foreach(_unit IN LISTS _units)
    if(_unit MATCHES "/p2p/torch_(p2p|cuda)\\.|/torch/(choice|checks|collectives|devices)\\."
       OR _unit MATCHES "/torch/(tensors|work)\\.")
      set(_group calls)
    elseif(_unit MATCHES "/csrc/hosts/")
      set(_group hosts)
    elseif(_unit MATCHES "/torch/(communicator|quick|trace|local|runner)\\.")
      set(_group communicator)
    elseif(_unit MATCHES "/torch/(backend|backend_base|reconfigure)\\.|/csrc/p2p/"
           OR _unit MATCHES "/torch/(monitored_barrier|sparse_sum)\\.")
      set(_group backend)
    else()
      set(_group module)
    endif()
    set_source_files_properties(${_unit} PROPERTIES UNITY_GROUP ${_group})
  endforeach()
endif()
# Not SYSTEM: a pybind11 that CPATH or CXXFLAGS bring along would be found before torch's own, and
# with another pybind11 c10d's types are "incompatible function arguments".
target_include_directories(ringkern_torch BEFORE PUBLIC
  ${RK_TORCH}/include ${RK_TORCH}/include/torch/csrc/api/include ${RK_PYTHON_INCLUDE})
target_compile_definitions(ringkern_torch PUBLIC TORCH_EXTENSION_NAME=_C)
# torch's headers are full of them
target_compile_options(ringkern_torch PUBLIC -Wno-unused-parameter)
# at::parallel_for is a template. It takes OpenMP's functions from the library that torch links:
# with another one, a process would have two teams of threads.
find_package(OpenMP COMPONENTS CXX)
if(OpenMP_CXX_FOUND)
  target_compile_options(ringkern_torch PRIVATE ${OpenMP_CXX_FLAGS})
endif()
target_link_libraries(ringkern_torch PUBLIC ringkern_flags
  ${RK_TORCH}/lib/libc10.so ${RK_TORCH}/lib/libtorch_cpu.so
  ${RK_TORCH}/lib/libtorch.so ${RK_TORCH}/lib/libtorch_python.so)

add_library(_C MODULE $<TARGET_OBJECTS:ringkern_torch>)
target_link_libraries(_C PRIVATE ringkern_torch ringkern_core)
set_target_properties(_C PROPERTIES PREFIX "" SUFFIX ".so" LINKER_LANGUAGE CXX)
# The CUDA runtime inside _C is its own: it must not answer for torch's, nor torch's for it.
target_link_options(_C PRIVATE -Wl,--exclude-libs,libcudart_static.a)
