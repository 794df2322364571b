# Decides whether the CUDA kernels are compiled, and for which GPUs.
#
# in:  RK_CUDA        AUTO (kernels where a usable nvcc is found), ON (insist), OFF
#      RK_CUDA_ARCHS  "80 90 100" to override the choice below
# out: RK_NVCC_VERSION, RK_CUDA_ARCH_NAMES, and the language CUDA enabled; or RK_WITHOUT_CUDA, a
#      sentence that says why there are no kernels.

# CMake would look on PATH alone, and would remember a compiler that has gone since.
unset(RK_NVCC CACHE)
find_program(RK_NVCC NAMES "$ENV{CUDACXX}" nvcc
  PATHS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" ENV PATH /usr/local/cuda/bin
  NO_DEFAULT_PATH)

set(RK_WITHOUT_CUDA "")
if(NOT RK_CUDA)
  set(RK_WITHOUT_CUDA "switched off (RINGKERN_CUDA=0 or RK_CUDA=OFF)")
elseif(NOT RK_NVCC)
  set(RK_WITHOUT_CUDA "no nvcc in CUDACXX, CUDA_HOME, PATH or /usr/local/cuda/bin")
else()
  execute_process(COMMAND ${RK_NVCC} --version OUTPUT_VARIABLE _banner RESULT_VARIABLE _failed)
  if(_failed OR NOT _banner MATCHES "V([0-9]+\\.[0-9]+\\.[0-9]+)")
    set(RK_WITHOUT_CUDA "${RK_NVCC} --version does not answer")
  elseif(CMAKE_MATCH_1 VERSION_LESS 12.0)
    set(RK_WITHOUT_CUDA "${RK_NVCC} is ${CMAKE_MATCH_1}; C++20 in kernels needs CUDA 12.0")
  else()
    set(RK_NVCC_VERSION ${CMAKE_MATCH_1})
  endif()
endif()

if(RK_WITHOUT_CUDA)
  if(RK_CUDA AND NOT RK_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "ringkern: CUDA kernels were asked for (RK_CUDA=${RK_CUDA}), "
      "but ${RK_WITHOUT_CUDA}.")
  endif()
  return()
endif()

if(RK_CUDA_ARCHS)
  string(REGEX MATCHALL "[0-9]+[a-f]?" _archs "${RK_CUDA_ARCHS}")
  string(REGEX REPLACE "[0-9]+[a-f]?" "" _rest "${RK_CUDA_ARCHS}")
  if(NOT _archs OR NOT _rest MATCHES "^[ ,;]*$")
    message(FATAL_ERROR "ringkern: RINGKERN_CUDA_ARCHS is \"${RK_CUDA_ARCHS}\"; "
      "expected numbers as in \"80 90 100\".")
  endif()
else()
  set(_archs 80 90)
  if(RK_NVCC_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND _archs 100)
  endif()
endif()

# A cubin for each, and PTX of the last one, which newer GPUs compile when they load it.
list(GET _archs -1 _newest)
list(TRANSFORM _archs PREPEND "sm_" OUTPUT_VARIABLE RK_CUDA_ARCH_NAMES)
list(APPEND RK_CUDA_ARCH_NAMES "compute_${_newest}")
list(JOIN RK_CUDA_ARCH_NAMES " " RK_CUDA_ARCH_NAMES)
list(TRANSFORM _archs APPEND "-real")
set(CMAKE_CUDA_ARCHITECTURES ${_archs} "${_newest}-virtual")

set(CMAKE_CUDA_COMPILER ${RK_NVCC})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
message(STATUS "ringkern: compiling kernels with ${RK_NVCC} (RINGKERN_CUDA=0 builds without)")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Every compilation leaves ptxas's report of its kernels beside the object. Placed before a launcher
# that the user asks for, such as ccache.
if(RK_TESTS)
  list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER --keep-ptx)
endif()
list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER sh ${CMAKE_CURRENT_LIST_DIR}/ptxas_report.sh)
